"""Blobs through fsspec. Read-only: fsspec's exclusive create is not exclusive.

Races of its `xb` mode have several winners on most filesystems. So a scheme can only be written to
through a backend of its own, with a proven create-if-absent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NoReturn

import fsspec
import pyarrow as pa

from holdfast.engine.storage import BlobInfo, BlobNotFound, BlobWriter, Storage
from holdfast.errors import IllegalState, InvalidArgument, Unavailable
from holdfast.schemes import remote_names


class FsspecStorage(Storage):
    """Any filesystem that fsspec supports, for reading."""

    read_only = True

    def __init__(self, location: str, options: dict[str, Any]) -> None:
        self._location = location.rstrip("/")
        try:
            self._fs, self._root = fsspec.url_to_fs(self._location, **options)
        except (ValueError, ImportError) as error:
            scheme = location.partition("://")[0]
            raise InvalidArgument(
                f"The root's scheme {scheme!r} cannot be opened: {error}. Check the address, and "
                "that the scheme's package is installed."
            ) from error

    @property
    def location(self) -> str:
        return self._location

    def read(self, path: str) -> pa.Buffer:
        with self._mapped_errors("read", path):
            try:
                return pa.py_buffer(self._fs.cat_file(self._absolute(path)))
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise BlobNotFound(path) from None

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        with self._mapped_errors("read", path):
            try:
                data = self._fs.cat_file(self._absolute(path), start=start, end=stop)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise BlobNotFound(path) from None
        return pa.py_buffer(data)

    def size(self, path: str) -> int | None:
        with self._mapped_errors("look up", path):
            try:
                found = self._fs.info(self._absolute(path))
            except (FileNotFoundError, NotADirectoryError):
                return None
        return int(found["size"]) if found["type"] == "file" else None

    def list(self, prefix: str) -> list[BlobInfo]:
        below = self._absolute(prefix)
        with self._mapped_errors("list", prefix):
            try:
                found = self._fs.find(below, detail=True)
            except (FileNotFoundError, NotADirectoryError):
                return []
        found.pop(below, None)  # a prefix that is a file itself
        start = len(self._root.rstrip("/")) + 1
        blobs = [BlobInfo(path[start:], int(info["size"])) for path, info in found.items()]
        visible = (b for b in blobs if not b.path.rpartition("/")[2].startswith("."))
        return sorted(visible, key=lambda blob: blob.path)

    def open_writer(self, path: str) -> BlobWriter:
        self._refuse()

    def create_if_absent(self, path: str, data: bytes) -> bool:
        self._refuse()

    def delete(self, path: str) -> None:
        self._refuse()

    def _refuse(self) -> NoReturn:
        scheme = self._location.partition("://")[0]
        raise IllegalState(
            f"{self._location} can only be read: {scheme!r} has no proven way to create a file "
            f"exactly once. Write to a local root, or to one on {remote_names()}.",
            condition="STATE_STORE_READ_ONLY",
        )

    def _absolute(self, path: str) -> str:
        root = str(self._root).rstrip("/")
        return f"{root}/{path}" if path else root

    @contextlib.contextmanager
    def _mapped_errors(self, what: str, path: str) -> Iterator[None]:
        try:
            yield
        except BlobNotFound:
            raise
        # Each filesystem raises exceptions of its own, for instance for missing credentials.
        except Exception as error:
            raise Unavailable(
                f"Could not {what} {path or 'the root'!r} in {self._location}: "
                f"{type(error).__name__}. Try again; `holdfast doctor` checks the root."
            ) from error
