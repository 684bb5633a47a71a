"""Blobs as objects on S3, or on any server with its protocol and conditional writes.

`create_if_absent` is one PUT with `If-None-Match: *`: S3 keeps the first object and answers 412 to
later ones. Some servers ignore the condition, so that two writers could commit one version. A
second PUT after the first object that a process creates detects them. Clients belong to a process,
and all storages with the same options share one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import Any, TypeVar

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError

from holdfast.clients.aws import (
    AwsOptions,
    code_of,
    is_lost,
    is_unknown_host,
    is_unreached,
    lacks_credentials,
    new_client,
    status_of,
    title_of,
)
from holdfast.clients.retrying import retried
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import is_own_data
from holdfast.engine.storage import (
    MOST_IN_MEMORY_BYTES,
    BlobInfo,
    BlobNotFound,
    BlobWriter,
    Storage,
    TooLarge,
)
from holdfast.errors import HoldfastError, InvalidArgument, Unavailable
from holdfast.schemes import S3

T = TypeVar("T")
_PART_BYTES = 8 << 20
"""A blob up to this size is one PUT; a larger one is uploaded in parts of this size."""
_MOST_COPIED_BYTES = 5 << 30
"""The largest object that S3 copies by one request."""
_CONNECTIONS = 32
_MISSING = frozenset({"NoSuchKey", "404", "NotFound"})
_DENIED = frozenset({
    "AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken",
    "RequestTimeTooSkewed", "SignatureDoesNotMatch", "401", "403", "Forbidden", "Unauthorized",
})  # fmt: skip
_ELSEWHERE = frozenset({
    "301", "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"
})  # fmt: skip
_NO_COPY = frozenset({301, 400, 403, 405, 501})
"""What a server answers that copies no objects, or not from there."""
_proven: set[tuple[str, str]] = set()
"""Endpoints and buckets that are known to honour the condition."""
_BUSY = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestTimeout"})


@dataclass(frozen=True, kw_only=True)
class _Options(AwsOptions):
    scheme = S3
    whose = "A root on S3"

    region: str | None = None
    path_style: str | None = None


class S3Storage(Storage):
    """Objects below a prefix of one bucket, which must exist."""

    is_remote = True
    writes_at_once = True

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        conf: StateStoreConf = StateStoreConf.empty,
    ) -> None:
        # In a key '?' and '#' are ordinary characters, unlike in a URI.
        scheme, _, rest = location.partition("://")
        self.bucket, _, below = rest.partition("/")
        self._prefix = below.strip("/")
        if not self.bucket or not {"?", "#"}.isdisjoint(self.bucket):
            raise InvalidArgument(f"The root {location} has no bucket. Write {S3.form}.")
        self._location = f"{scheme}://{self.bucket}/{self._prefix}".rstrip("/")
        self._options = _Options.of(options or {})
        self._limit_ms = conf.retry_timeout_ms

    @property
    def location(self) -> str:
        return self._location

    def read(self, path: str) -> pa.Buffer:
        return self._get(path)

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        if stop <= start:
            return pa.py_buffer(b"")
        return self._get(path, Range=f"bytes={start}-{stop - 1}")

    def size(self, path: str) -> int | None:
        def look() -> int | None:
            try:
                return int(self.client.head_object(**self.place(path))["ContentLength"])
            except ClientError as error:
                if code_of(error) in _MISSING:
                    return None
                raise

        return self.call("look up", path, look)

    def open_writer(self, path: str) -> BlobWriter:
        return _S3Writer(self, path)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        def create() -> bool:
            try:
                self.client.put_object(**self.place(path), Body=data, IfNoneMatch="*")
            except ClientError as error:
                if status_of(error) == 412:
                    return False
                raise
            return True

        # Retried only where the request had no effect: otherwise the caller must read it back.
        created = self.call("create", path, create, _had_no_effect)
        if created and not self._is_proven:
            self._prove(path, data)
        return created

    @property
    def _is_proven(self) -> bool:
        return (self.client.meta.endpoint_url, self.bucket) in _proven

    def _prove(self, path: str, data: bytes) -> None:
        """Raise InvalidArgument for a server that creates an object which already exists."""
        place = self.place(path)
        if self._creates(place, data):
            # Somebody may also have deleted it in between. If so, a third PUT is refused.
            self._creates(place, data)
            self.call("create", path, lambda: self.client.delete_object(**place))
            if not self._is_proven:
                raise InvalidArgument(
                    f"The server of {self._location} ignores If-None-Match, so two writers could "
                    f"commit one version. {path!r} was removed again. Use a server with "
                    "conditional writes, such as S3 itself or a newer release of this one.",
                    condition="STATE_STORE_READ_ONLY",
                )

    def _creates(self, place: Mapping[str, str], data: bytes) -> bool:
        """Whether the server creates an object again."""
        try:
            self.client.put_object(**place, Body=data, IfNoneMatch="*")
        except ClientError as error:
            if status_of(error) == 412:
                _proven.add((self.client.meta.endpoint_url, self.bucket))
            return False
        except BotoCoreError:
            return False  # the next object will show it
        return True

    def list(self, prefix: str) -> list[BlobInfo]:
        start = len(self._key("")) if self._prefix else 0
        below = self._key(f"{prefix}/" if prefix else "")

        def pages() -> list[BlobInfo]:
            pager = self.client.get_paginator("list_objects_v2")
            return [
                BlobInfo(item["Key"][start:], int(item["Size"]))
                for page in pager.paginate(Bucket=self.bucket, Prefix=below)
                for item in page.get("Contents", ())
                if not item["Key"].endswith("/")
            ]

        return sorted(self.call("list", prefix, pages), key=lambda blob: blob.path)

    def delete(self, path: str) -> None:
        self.call("delete", path, lambda: self.client.delete_object(**self.place(path)))

    def adopt(self, source: Storage, path: str) -> bool:
        """Have the server copy the object, where one client reaches both."""
        if not isinstance(source, S3Storage) or source._options != self._options:
            return False
        size = source.size(path)
        if size is None:
            raise BlobNotFound(path)
        if size > _MOST_COPIED_BYTES:
            return False

        def copy() -> bool:
            try:
                self.client.copy_object(**self.place(path), CopySource=source.place(path))
            except ClientError as error:
                if code_of(error) in _MISSING:
                    raise BlobNotFound(path) from None
                if status_of(error) in _NO_COPY:
                    return False
                raise
            return True

        return self.call("copy", path, copy)

    def sweep(self, older_than_s: float) -> int:
        """Abort uploads of this root's data files that got no new part for that long.

        Uploads of others below the root, to names that Holdfast does not use, stay.
        """
        stale = self.call("sweep", "", lambda: list(self._stale_uploads(older_than_s)))
        for upload in stale:
            self.call("sweep", "", partial(self._abort, upload))
        return len(stale)

    def _abort(self, upload: Mapping[str, Any]) -> None:
        place = {"Bucket": self.bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
        with _unless_over():
            self.client.abort_multipart_upload(**place)

    def _stale_uploads(self, older_than_s: float) -> Iterator[dict[str, Any]]:
        pager = self.client.get_paginator("list_multipart_uploads")
        now = datetime.now(UTC)
        for page in pager.paginate(Bucket=self.bucket, Prefix=self._key("")):
            for upload in page.get("Uploads", ()):
                if not is_own_data(upload["Key"].removeprefix(self._key(""))):
                    continue
                parts: Sequence[Any] = ()
                with _unless_over():
                    parts = self.client.list_parts(
                        Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                    ).get("Parts", ())
                last = max([upload["Initiated"], *(part["LastModified"] for part in parts)])
                if (now - last).total_seconds() > older_than_s:
                    yield upload

    def place(self, path: str) -> dict[str, str]:
        """Bucket and key of a blob, as boto3 takes them."""
        return {"Bucket": self.bucket, "Key": self._key(path)}

    def call(
        self,
        what: str,
        path: str,
        call: Callable[[], T],
        passes: Callable[[Exception], bool] | None = None,
    ) -> T:
        """Return what `call` returns, retried, with failures mapped."""
        try:
            return retried(call, passes or _passes, self._limit_ms)
        except (BotoCoreError, ClientError) as error:
            raise self._mapped(error, what, path) from error

    @property
    def client(self) -> Any:
        """boto3's client in this process."""
        try:
            return _client_of(os.getpid(), self._options)
        except (ValueError, BotoCoreError) as error:
            raise InvalidArgument(
                f"{self._location} cannot be reached with its options or the environment's: "
                f"{type(error).__name__}. Check endpoint_url, region and profile."
            ) from error

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _get(self, path: str, **how: str) -> pa.Buffer:
        def get() -> bytes:
            try:
                found = self.client.get_object(**self.place(path), **how)
                if not how and found["ContentLength"] > MOST_IN_MEMORY_BYTES:
                    found["Body"].close()
                    raise TooLarge(path)
                body: bytes = found["Body"].read()
            except ClientError as error:
                if status_of(error) == 416:
                    return b""
                if code_of(error) in _MISSING:
                    raise BlobNotFound(path) from None
                raise
            return body

        return pa.py_buffer(self.call("read", path, get))

    def _mapped(self, error: BotoCoreError | ClientError, what: str, path: str) -> HoldfastError:
        code = title_of(error)
        failed = f"Could not {what} {path or 'the root'!r} in {self._location}: {code}."
        if code in _DENIED or lacks_credentials(error):
            return InvalidArgument(
                f"{failed} Set credentials that may read, write, list and delete there: options "
                "key and secret, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile.",
                condition="STATE_STORE_ACCESS_DENIED",
            )
        if code == "NoSuchBucket":
            return InvalidArgument(
                f"{failed} Create the bucket {self.bucket}, or correct its name."
            )
        if code in _ELSEWHERE:
            return InvalidArgument(f"{failed} The bucket is in another region. Set `region`.")
        if is_unknown_host(error):
            return InvalidArgument(f"{failed} No such host: check endpoint_url.")
        if status_of(error) in (400, 404, 405) or not _passes(error):
            return Unavailable(f"{failed} The server rejected the request.")
        return Unavailable(f"{failed} Try again; `holdfast doctor` checks the root.")


class _S3Writer(BlobWriter):
    """Collects a blob of up to one part, and uploads a larger one in parts."""

    def __init__(self, storage: S3Storage, path: str) -> None:
        self._storage, self._path = storage, path
        self._buffer = bytearray()
        self._upload: dict[str, str] | None = None
        self._parts: list[dict[str, Any]] = []
        self._size = 0
        self._open = True

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        view = memoryview(data).cast("B")
        self._size += len(view)
        for start in range(0, len(view), _PART_BYTES):
            self._buffer += view[start : start + _PART_BYTES]
            if len(self._buffer) > _PART_BYTES:
                self._put_part(_PART_BYTES)
        return len(view)

    def close(self) -> None:
        if self._upload is None:
            body = bytes(self._buffer)
            place = self._storage.place(self._path)
            self._call(lambda: self._storage.client.put_object(**place, Body=body))
        else:
            self._put_part(len(self._buffer))
            self._complete(self._upload)
        self._open = False

    def discard(self) -> None:
        if not self._open:
            return
        self._open = False
        if self._upload is not None:
            # An error is already on its way to the caller; a sweep does what is left to do.
            with contextlib.suppress(BotoCoreError, ClientError):
                self._storage.client.abort_multipart_upload(**self._upload)

    def _put_part(self, size: int) -> None:
        upload = self._upload = self._upload or self._begin()
        body, number = bytes(self._buffer[:size]), len(self._parts) + 1
        del self._buffer[:size]
        sent = self._call(
            lambda: self._storage.client.upload_part(**upload, PartNumber=number, Body=body)
        )
        self._parts.append({"ETag": sent["ETag"], "PartNumber": number})

    def _begin(self) -> dict[str, str]:
        place = self._storage.place(self._path)
        begun = self._call(lambda: self._storage.client.create_multipart_upload(**place))
        return {**place, "UploadId": begun["UploadId"]}

    def _complete(self, upload: dict[str, str]) -> None:
        def complete() -> None:
            try:
                self._storage.client.complete_multipart_upload(
                    **upload, MultipartUpload={"Parts": self._parts}
                )
            except ClientError as error:
                # The reply to an earlier call may have been lost after it had succeeded.
                done = code_of(error) == "NoSuchUpload"
                if not (done and self._storage.size(self._path) == self._size):
                    raise

        self._call(complete)

    def _call(self, call: Callable[[], T]) -> T:
        return self._storage.call("write", self._path, call)


@contextlib.contextmanager
def _unless_over() -> Iterator[None]:
    """Skip an upload that was completed or aborted in the meantime."""
    try:
        yield
    except ClientError as error:
        if code_of(error) != "NoSuchUpload":
            raise


@lru_cache(maxsize=16)
def _client_of(pid: int, options: _Options) -> Any:
    """The client of a process: connections must not be shared with a fork."""
    style = {"true": "path", "false": "virtual"}.get(str(options.path_style).lower(), "auto")
    return new_client("s3", options.region, options, _CONNECTIONS, s3={"addressing_style": style})


def _had_no_effect(error: Exception) -> bool:
    """Whether a request was surely not carried out, and may be the next time."""
    return is_unreached(error) or status_of(error) in (409, 429, 503) or code_of(error) in _BUSY


def _passes(error: Exception) -> bool:
    """Whether a request may do better the next time. Requires: twice is as good as once."""
    return is_lost(error) or _had_no_effect(error) or status_of(error) >= 500
