"""The server copies objects where one client reaches both; other copies are left to the caller."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from holdfast.backends.s3 import S3Storage
from holdfast.engine.storage import BlobNotFound
from holdfast.errors import Unavailable


def answer(status: int, code: str) -> ClientError:
    reply = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(reply, "CopyObject")


class Server:
    """One object of some size behind boto3's calls; it fails as it is told."""

    def __init__(self, size: int = 1, failure: Exception | None = None) -> None:
        self.size, self.failure = size, failure
        self.copied: list[tuple[str, str, Any]] = []

    def head_object(self, *, Bucket: str, Key: str) -> dict[str, int]:
        return {"ContentLength": self.size}

    def copy_object(self, *, Bucket: str, Key: str, CopySource: dict[str, str]) -> None:
        if self.failure is not None:
            raise self.failure
        self.copied.append((Bucket, Key, CopySource))


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def serve(*how: Any, **named: Any) -> Server:
        server = Server(*how, **named)
        monkeypatch.setattr(S3Storage, "client", server)
        return server

    return serve


SOURCE, TARGET = S3Storage("s3://here/a root"), S3Storage("s3a://there/fork")


def test_the_server_copies_between_buckets(serve: Any) -> None:
    server = serve()
    assert TARGET.adopt(SOURCE, "0/0/1-a.delta")
    source = {"Bucket": "here", "Key": "a root/0/0/1-a.delta"}
    assert server.copied == [("there", "fork/0/0/1-a.delta", source)]


def test_other_credentials_and_objects_beyond_the_limit_are_left_to_the_caller(serve: Any) -> None:
    server = serve()
    assert not S3Storage("s3://there/fork", {"key": "a", "secret": "b"}).adopt(SOURCE, "blob")
    server.size = (5 << 30) + 1
    assert not TARGET.adopt(SOURCE, "blob")
    assert server.copied == []


@pytest.mark.parametrize("status", [403, 405, 501])
def test_a_server_that_may_not_or_cannot_copy_leaves_it_to_the_caller(
    serve: Any, status: int
) -> None:
    serve(failure=answer(status, "AccessDenied" if status == 403 else "NotImplemented"))
    assert not TARGET.adopt(SOURCE, "blob")


def test_what_is_gone_is_not_found_and_other_failures_are_told(serve: Any) -> None:
    serve(failure=answer(404, "NoSuchKey"))
    with pytest.raises(BlobNotFound):
        TARGET.adopt(SOURCE, "blob")
    serve(failure=answer(404, "NoSuchUpload"))
    with pytest.raises(Unavailable, match="Could not copy 'blob'"):
        TARGET.adopt(SOURCE, "blob")
