"""Spark's checkpoint as files of a storage, so that it can be changed without a JVM."""

from __future__ import annotations

from holdfast.engine.storage import BlobNotFound, Storage


class StoredFiles:
    """The files of one checkpoint, in a storage whose root is the checkpoint's folder."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def read_text(self, path: str) -> str | None:
        """A small text file, or None when there is none."""
        try:
            return bytes(self.storage.read(path)).decode()
        except BlobNotFound:
            return None

    def names(self, path: str) -> list[str]:
        """The names of the files and folders right below a folder, in order."""
        start = len(path) + 1 if path else 0
        below = (blob.path[start:] for blob in self.storage.list(path))
        return sorted({name.partition("/")[0] for name in below})

    def create_if_absent(self, path: str, text: str) -> bool:
        """Make a small text file, whole or not at all, unless there is one; whether it did."""
        return self.storage.create_if_absent(path, text.encode())

    def move(self, path: str, target: str) -> bool:
        """Give a small file another name; False where it is gone, or the other name is taken.

        It is there under one of the names at any moment, and under both after a crash.
        """
        try:
            data = bytes(self.storage.read(path))
        except BlobNotFound:
            return False
        is_taken = not self.storage.create_if_absent(target, data)
        if is_taken and bytes(self.storage.read(target)) != data:
            return False
        self.storage.delete(path)
        return True
