"""Blobs in this process: the model the other backends are tested against."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pyarrow as pa

from holdfast.conf import StateStoreConf
from holdfast.engine.storage import BlobInfo, BlobNotFound, BlobWriter, Storage

_ROOTS: dict[str, MemoryStorage] = {}
_ROOTS_LOCK = threading.Lock()


class MemoryStorage(Storage):
    """Blobs in a dict. `named` returns the same storage for a name to all in the process."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._blobs: dict[str, pa.Buffer] = {}
        self._lock = threading.Lock()

    @classmethod
    def named(cls, name: str) -> MemoryStorage:
        """The process-wide storage of that name, created on first use."""
        with _ROOTS_LOCK:
            return _ROOTS.setdefault(name, cls(name))

    @classmethod
    def at(cls, location: str, options: Mapping[str, str], conf: StateStoreConf) -> MemoryStorage:
        """That of a `memory://name`; neither options nor settings change it."""
        return cls.named(location.removeprefix("memory://").strip("/"))

    @classmethod
    def forget(cls, name: str) -> None:
        """Forget the process-wide storage of that name; those who have it can still use it."""
        with _ROOTS_LOCK:
            _ROOTS.pop(name, None)

    @property
    def location(self) -> str:
        return f"memory://{self._name}"

    def read(self, path: str) -> pa.Buffer:
        with self._lock:
            if path not in self._blobs:
                raise BlobNotFound(path)
            return self._blobs[path]

    def size(self, path: str) -> int | None:
        with self._lock:
            blob = self._blobs.get(path)
        return None if blob is None else blob.size

    def open_writer(self, path: str) -> BlobWriter:
        return _MemoryWriter(self, path)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        with self._lock:
            return self._blobs.setdefault(path, blob := pa.py_buffer(bytes(data))) is blob

    def list(self, prefix: str) -> list[BlobInfo]:
        start = f"{prefix}/" if prefix else ""
        with self._lock:
            names = sorted(name for name in self._blobs if name.startswith(start))
            return [BlobInfo(name, self._blobs[name].size) for name in names]

    def delete(self, path: str) -> None:
        with self._lock:
            self._blobs.pop(path, None)

    def store(self, path: str, data: pa.Buffer) -> None:
        """Make a finished blob visible."""
        with self._lock:
            self._blobs[path] = data


class _MemoryWriter(BlobWriter):
    def __init__(self, storage: MemoryStorage, path: str) -> None:
        self._storage, self._path = storage, path
        self._sink = pa.BufferOutputStream()
        self._open = True

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        return self._sink.write(data)

    def close(self) -> None:
        self._storage.store(self._path, self._sink.getvalue())
        self._open = False

    def discard(self) -> None:
        if self._open:
            self._sink.close()
            self._open = False
