"""A storage that fails on purpose: crashes, lost replies, torn blobs, stale listings.

`FaultyStorage` wraps any storage and counts every call of the SPI, including those of its writers.
Before each call it asks a *plan*, which returns a fault or None:

    faulty = FaultyStorage(MemoryStorage(), crash_at(17, Fault.CRASH_AFTER))
    with pytest.raises(Crash):
        run(faulty)             # everything from call 17 on raises Crash, as in a dead process
    check(faulty.inner)         # what a new process would find

Run once without faults to record the calls (`faulty.calls`), then once for each of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TypeVar

import pyarrow as pa

from holdfast.engine.storage import BlobInfo, BlobWriter, Storage
from holdfast.errors import Unavailable

Result = TypeVar("Result")


_Listing = list[BlobInfo]


class Crash(BaseException):
    """The process is dead. No handler for ordinary exceptions catches it."""


class Fault(Enum):
    """What goes wrong at a call."""

    CRASH_BEFORE = "crash before the call"
    CRASH_AFTER = "crash after the call, its reply lost"
    CRASH_TORN = "crash in the middle of the call"
    ERROR = "Unavailable, and the call had no effect"
    LOST_REPLY = "Unavailable, but the call took effect"
    DELAY = "the call takes long"
    STALE = "a listing shows the blobs as they were at the listing before"
    FULL = "no space left: a call that writes fails half-way, others go well"


CRASHES = (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_TORN)

_TEARS = frozenset({"write", "close", "create_if_absent"})
_CHANGES = _TEARS | {"delete", "sweep", "open_writer", "adopt"}
_FILLS = _TEARS | {"open_writer", "adopt"}


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the SPI: its number from 1, the operation and the path."""

    number: int
    operation: str
    path: str

    @property
    def can_tear(self) -> bool:
        """Whether a crash in the middle differs from one before or after."""
        return self.operation in _TEARS

    @property
    def changes(self) -> bool:
        """Whether it changes what is stored; if not, crashes before and after it are the same."""
        return self.operation in _CHANGES


Plan = Callable[[Call], Fault | None]


def no_faults(call: Call) -> None:
    """The plan in which nothing fails."""
    return


def crash_at(number: int, fault: Fault = Fault.CRASH_BEFORE) -> Plan:
    """The plan that crashes at the call with this number."""
    return lambda call: fault if call.number == number else None


def faults_at(faults: Mapping[int, Fault]) -> Plan:
    """The plan with these faults at these calls."""
    return lambda call: faults.get(call.number)


def random_faults(rng: Random, rate: float, kinds: tuple[Fault, ...]) -> Plan:
    """The plan with a fault of `kinds` at each call with probability `rate`; a seed replays it."""
    return lambda call: rng.choice(kinds) if rng.random() < rate else None


class FaultyStorage(Storage):
    """Passes every call to `inner`, and fails where the plan says so.

    A torn write or close of a writer leaves what the SPI allows. Bytes written before the close
    are never visible; a torn close leaves the first half of the blob visible, as a medium without
    an atomic rename would, which is harmless as long as nothing names a blob that was not
    closed. `create_if_absent` is whole or nothing: torn, it is nothing. Where a call cannot tear,
    CRASH_TORN is CRASH_BEFORE.
    """

    def __init__(
        self,
        inner: Storage,
        plan: Plan = no_faults,
        *,
        delay_s: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.inner = inner
        self.plan = plan
        self.calls: list[Call] = []
        self.is_dead = False
        self.read_only = inner.read_only
        self._delay_s = delay_s
        self._sleep = sleep
        self._listings: dict[str, list[BlobInfo]] = {}
        self._writers: list[BlobWriter] = []
        self._lock = threading.Lock()

    @property
    def location(self) -> str:
        return self.inner.location

    def read(self, path: str) -> pa.Buffer:
        return self.call("read", path, lambda: self.inner.read(path))

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        return self.call("read", path, lambda: self.inner.read_range(path, start, stop))

    def size(self, path: str) -> int | None:
        return self.call("size", path, lambda: self.inner.size(path))

    def open_writer(self, path: str) -> BlobWriter:
        return self.call("open_writer", path, lambda: self._open_writer(path))

    def create_if_absent(self, path: str, data: bytes) -> bool:
        return self.call("create_if_absent", path, lambda: self.inner.create_if_absent(path, data))

    def list(self, prefix: str) -> list[BlobInfo]:
        return self.call("list", prefix, lambda: self._list(prefix))

    def delete(self, path: str) -> None:
        self.call("delete", path, lambda: self.inner.delete(path))

    def adopt(self, source: Storage, path: str) -> bool:
        there = source.inner if isinstance(source, FaultyStorage) else source
        return self.call("adopt", path, lambda: self.inner.adopt(there, path))

    def sweep(self, older_than_s: float) -> int:
        return self.call("sweep", "", lambda: self.inner.sweep(older_than_s))

    def bury(self) -> None:
        """Close what the dead process held open. Call it after looking at what the process left."""
        for writer in self._writers:
            writer.discard()
        self._writers.clear()

    def call(
        self,
        operation: str,
        path: str,
        work: Callable[[], Result],
        tear: Callable[[], object] | None = None,
    ) -> Result:
        """Count a call and do it, with the fault that the plan returns."""
        with self._lock:
            if self.is_dead:
                raise Crash(f"{operation} {path} in a dead process")
            call = Call(len(self.calls) + 1, operation, path)
            self.calls.append(call)
            fault = self.plan(call)
            self.is_dead = fault in CRASHES
        return self._do(call, fault, work, tear)

    def _do(
        self,
        call: Call,
        fault: Fault | None,
        work: Callable[[], Result],
        tear: Callable[[], object] | None,
    ) -> Result:
        what = f"call {call.number}, {call.operation} {call.path}"
        is_full = fault is Fault.FULL and call.operation in _FILLS
        if (fault is Fault.CRASH_TORN or is_full) and tear is not None:
            tear()
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_TORN):
            raise Crash(f"crashed at {what}")
        if fault is Fault.ERROR:
            raise Unavailable(f"The storage did not answer, on purpose: {what}.")
        if is_full:
            raise Unavailable(f"No space was left, on purpose: {what}.")
        if fault is Fault.DELAY:
            self._sleep(self._delay_s)
        if fault is Fault.STALE and call.operation == "list" and call.path in self._listings:
            return self._listings[call.path]  # type: ignore[return-value]  # a listing's result
        result = work()
        if fault is Fault.CRASH_AFTER:
            raise Crash(f"crashed after {what}")
        if fault is Fault.LOST_REPLY:
            raise Unavailable(f"The storage's answer was lost, on purpose: {what}.")
        return result

    def _list(self, prefix: str) -> _Listing:
        found = self.inner.list(prefix)
        self._listings[prefix] = found
        return found

    def _open_writer(self, path: str) -> BlobWriter:
        inner = self.inner.open_writer(path)
        self._writers.append(inner)
        return _FaultyWriter(self, inner, path)

    def forget(self, writer: BlobWriter) -> None:
        """Forget a writer that ended normally."""
        self._writers.remove(writer)


class _FaultyWriter(BlobWriter):
    def __init__(self, storage: FaultyStorage, inner: BlobWriter, path: str) -> None:
        self._storage, self._inner, self._path = storage, inner, path
        self._written = bytearray()
        self._open = True

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        view = memoryview(data).cast("B")

        def work() -> object:
            self._written += view
            return self._inner.write(view)

        def tear() -> None:
            self._inner.write(view[: len(view) // 2])

        return self._storage.call("write", self._path, work, tear)

    def close(self) -> None:
        def work() -> None:
            self._inner.close()
            self._ended()

        def tear() -> None:
            self._inner.discard()
            self._ended()
            self._storage.inner.write(self._path, bytes(self._written[: len(self._written) // 2]))

        self._storage.call("close", self._path, work, tear)

    def discard(self) -> None:
        if not self._open or self._storage.is_dead:
            return  # a dead process cleans nothing up

        def work() -> None:
            self._inner.discard()
            self._ended()

        self._storage.call("discard", self._path, work)

    def _ended(self) -> None:
        self._open = False
        self._storage.forget(self._inner)
