"""A storage that lets something else happen in the middle of what a test does."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import BlobInfo
from holdfast.errors import Unavailable


class Interrupting(MemoryStorage):
    """Runs something once, just before or just after the first call of a kind on a path."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[tuple[str, str], Callable[[], None]] = {}
        self._after: dict[tuple[str, str], Callable[[], None]] = {}

    def before(self, call: str, path: str, work: Callable[[], None]) -> None:
        """Run `work` before the next such call."""
        self._before[call, path] = work

    def after(self, call: str, path: str, work: Callable[[], None]) -> None:
        """Run `work` when the next such call was done; what it raises is the call's answer."""
        self._after[call, path] = work

    def _reach(self, which: dict[tuple[str, str], Callable[[], None]], *call: str) -> None:
        work = which.pop((call[0], call[1]), None)
        if work is not None:
            work()

    def list(self, prefix: str) -> list[BlobInfo]:
        self._reach(self._before, "list", prefix)
        found = super().list(prefix)
        self._reach(self._after, "list", prefix)
        return found

    def read(self, path: str) -> pa.Buffer:
        self._reach(self._before, "read", path)
        found = super().read(path)
        self._reach(self._after, "read", path)
        return found

    def create_if_absent(self, path: str, data: bytes) -> bool:
        self._reach(self._before, "create", path)
        created = super().create_if_absent(path, data)
        self._reach(self._after, "create", path)
        return created

    def delete(self, path: str) -> None:
        self._reach(self._before, "delete", path)
        super().delete(path)


def no_answer() -> None:
    """What a call that got no reply does."""
    raise Unavailable("no answer")
