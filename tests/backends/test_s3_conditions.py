"""A server that ignores If-None-Match is detected by the first object."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from holdfast.backends import s3
from holdfast.backends.s3 import S3Storage
from holdfast.errors import InvalidArgument


class Server:
    """Objects in memory behind boto3's calls; `deaf` to conditions, or not."""

    def __init__(self, *, deaf: bool) -> None:
        self.deaf = deaf
        self.objects: dict[str, bytes] = {}
        self.puts: list[str] = []
        self.failures: dict[int, Exception] = {}
        self.vanish_before: int | None = None
        self.meta = SimpleNamespace(endpoint_url=f"http://{id(self)}")

    def put_object(self, *, Bucket: str, Key: str, Body: bytes, IfNoneMatch: str) -> None:
        self.puts.append(Key)
        if len(self.puts) == self.vanish_before:
            self.objects.pop(Key)
        if failure := self.failures.pop(len(self.puts), None):
            raise failure
        if Key in self.objects and not self.deaf:
            answer = {"Error": {"Code": "PreconditionFailed"},
                      "ResponseMetadata": {"HTTPStatusCode": 412}}  # fmt: skip
            raise ClientError(answer, "PutObject")
        self.objects[Key] = Body

    def delete_object(self, *, Bucket: str, Key: str) -> None:
        self.objects.pop(Key, None)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> S3Storage:
    monkeypatch.setattr(s3, "_proven", set())
    return S3Storage("s3://bucket/root")


def served(monkeypatch: pytest.MonkeyPatch, **how: Any) -> Server:
    server = Server(**how)
    monkeypatch.setattr(S3Storage, "client", server)
    return server


def test_a_server_that_creates_again_what_is_there_is_refused_and_nothing_is_left(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(monkeypatch, deaf=True)
    for _ in range(2):
        with pytest.raises(InvalidArgument, match="ignores If-None-Match") as refused:
            storage.create_if_absent("versions/1", b"mine")
        assert refused.value.condition == "STATE_STORE_READ_ONLY"
        assert "Use a server with conditional writes" in str(refused.value)
        assert server.objects == {}


def test_a_server_with_conditional_writes_is_asked_once_more_a_process(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(monkeypatch, deaf=False)
    assert storage.create_if_absent("a", b"1") is True
    assert server.puts == ["root/a", "root/a"]
    assert storage.create_if_absent("a", b"2") is False
    assert storage.create_if_absent("b", b"3") is True
    assert S3Storage("s3://bucket/other").create_if_absent("a", b"4") is True
    assert server.puts[2:] == ["root/a", "root/b", "other/a"]
    assert S3Storage("s3://second/third").create_if_absent("a", b"5") is True
    assert server.puts[5:] == ["third/a", "third/a"], "another bucket may be another server's"
    assert server.objects["root/b"] == b"3"


def test_a_server_that_goes_away_before_it_is_proven_is_refused(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(monkeypatch, deaf=True)
    server.failures[3] = EndpointConnectionError(endpoint_url="x")
    with pytest.raises(InvalidArgument, match="ignores If-None-Match"):
        storage.create_if_absent("a", b"1")


def test_a_question_that_gets_no_answer_is_asked_the_next_time(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(monkeypatch, deaf=False)
    server.failures[2] = EndpointConnectionError(endpoint_url="x")
    assert storage.create_if_absent("a", b"1") is True
    assert storage.create_if_absent("b", b"2") is True
    assert server.puts == ["root/a", "root/a", "root/b", "root/b"]


def test_an_object_that_was_deleted_meanwhile_is_no_reason_to_refuse_its_server(
    storage: S3Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(monkeypatch, deaf=False)
    server.vanish_before = 2
    assert storage.create_if_absent("a", b"1") is True
    assert server.objects == {}, "it stays deleted"
