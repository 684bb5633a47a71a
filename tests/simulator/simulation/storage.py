"""Blobs and files that all processes of a world share, and what goes wrong on the way to them."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, Sequence
from typing import TypeVar

import pyarrow as pa

from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import BlobInfo, BlobWriter, Storage
from holdfast.errors import Unavailable
from holdfast.spark.interop import local_names
from simulation.disk import Calls, Disk, File, Texts
from simulation.threads import Event, Scheduler

T = TypeVar("T")
Watch = Callable[[str, bytes], None]


class SimulatedStorage(Storage):
    """One process's way to the state's blobs; `created` hears of what create_if_absent made."""

    def __init__(self, inner: MemoryStorage, scheduler: Scheduler, created: Watch) -> None:
        self._inner, self._scheduler, self._created = inner, scheduler, created
        self._listings: dict[str, list[BlobInfo]] = {}

    @property
    def location(self) -> str:
        return self._inner.location

    def read(self, path: str) -> pa.Buffer:
        return self._call(f"read {path}", lambda: self._inner.read(path))

    def size(self, path: str) -> int | None:
        return self._call(f"size {path}", lambda: self._inner.size(path))

    def open_writer(self, path: str) -> BlobWriter:
        return _SimulatedWriter(self, self._inner.open_writer(path), path)

    def create_if_absent(self, path: str, data: bytes) -> bool:
        def create() -> bool:
            is_new = self._inner.create_if_absent(path, data)
            if is_new:
                self._created(path, data)
            return is_new

        return self._call(f"create {path}", create)

    def list(self, prefix: str) -> list[BlobInfo]:
        event = self._step(f"list {prefix}", Event.ERROR, Event.STALE)
        if event is not Event.STALE or prefix not in self._listings:
            self._listings[prefix] = self._inner.list(prefix)
        return self._listings[prefix]

    def delete(self, path: str) -> None:
        self._call(f"delete {path}", lambda: self._inner.delete(path))

    def closed(self, writer: BlobWriter, path: str) -> None:
        """Make a blob visible, as any other call."""
        self._call(f"write {path}", writer.close)

    def _call(self, what: str, work: Callable[[], T]) -> T:
        event = self._step(what, Event.ERROR, Event.LOST_REPLY)
        result = work()
        if event is Event.LOST_REPLY:
            raise Unavailable(f"The answer was lost on purpose: {what}.")
        return result

    def _step(self, what: str, *events: Event) -> Event:
        event = self._scheduler.step(what, *events)
        if event is Event.ERROR:
            raise Unavailable(f"There was no answer on purpose: {what}.")
        return event


class _SimulatedWriter(BlobWriter):
    def __init__(self, storage: SimulatedStorage, inner: BlobWriter, path: str) -> None:
        self._storage, self._inner, self._path = storage, inner, path

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        return self._inner.write(data)

    def close(self) -> None:
        self._storage.closed(self._inner, self._path)

    def discard(self) -> None:
        self._inner.discard()


class SimulatedFiles:
    """Small files of checkpoints and sinks, as `simulation.seam` offers them.

    Applications that run on one checkpoint know it by different names, `<application>:<path>`, as
    each has its own table of running queries.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.texts: MutableMapping[str, str] = {}
        self._made = 0

    def qualified(self, location: str) -> str:
        path = self.path(location)
        return f"{self._scheduler.running.process.name}:{path}"

    @staticmethod
    def path(location: str) -> str:
        return location.rpartition(":")[2]

    def read_text(self, location: str) -> str | None:
        path = self.path(location)
        return self._call(f"read {path}", lambda: self.texts.get(path))

    def exists(self, location: str) -> bool:
        path = self.path(location)
        return self._call(f"look for {path}", lambda: bool(self._below(path)) or path in self.texts)

    def delete(self, location: str) -> None:
        path = self.path(location)

        def work() -> None:
            for each in [path, *self._below(path)]:
                self.texts.pop(each, None)

        self._call(f"delete {path}", work)

    def files(self, location: str) -> list[str]:
        path = self.path(location)
        return self._call(
            f"list {path}", lambda: sorted(each[len(path) + 1 :] for each in self._below(path))
        )

    def list_names(self, location: str) -> list[str]:
        path = self.path(location)
        return self._call(
            f"list {path}",
            lambda: sorted({each[len(path) + 1 :].split("/")[0] for each in self._below(path)}),
        )

    def create_if_absent(self, location: str, text: str) -> bool:
        path = self.path(location)

        def work() -> bool:
            is_new = path not in self.texts
            if is_new:
                self.texts[path] = text
            return is_new

        return self._call(f"create {path}", work)

    def make(self, location: str, text: str) -> bool:
        """Create a file as the product does; `create_if_absent` is Spark's."""
        return self.create_if_absent(location, text)

    def make_durable(self, location: str, names: Sequence[str]) -> None:
        """These files lose nothing."""

    def rename_if_absent(self, source: str, target: str) -> bool:
        old, new = self.path(source), self.path(target)

        def work() -> bool:
            if new in self.texts or old not in self.texts:
                return False
            self.texts[new] = self.texts.pop(old)
            return True

        return self._call(f"rename {old} to {new}", work)

    def write(self, location: str, text: str) -> None:
        """What a task of Spark's writes."""
        path = self.path(location)

        def work() -> None:
            self.texts[path] = text

        self._call(f"write {path}", work)

    def _below(self, path: str) -> list[str]:
        return [each for each in self.texts if each.startswith(f"{path}/")]

    def _call(self, what: str, work: Callable[[], T]) -> T:
        event = self._scheduler.step(what, Event.ERROR, Event.LOST_REPLY)
        if event is Event.ERROR:
            raise OSError(f"There was no answer on purpose: {what}.")
        result = work()
        if event is Event.LOST_REPLY:
            raise OSError(f"The answer was lost on purpose: {what}.")
        return result


class DiskStorage(LocalStorage):
    """The product's storage on a simulated disk; `confirmed` hears of what it says it created."""

    writes_at_once = False

    def __init__(self, location: str, calls: Calls, confirmed: Watch) -> None:
        super().__init__(location)
        self._calls, self._confirmed = calls, confirmed

    def create_if_absent(self, path: str, data: bytes) -> bool:
        is_new = super().create_if_absent(path, data)
        if is_new:
            self._confirmed(path, data)
        return is_new


class QuietStorage(LocalStorage):
    """The same for those who only look on: nobody else gets a turn meanwhile."""

    def __init__(self, location: str, calls: Calls) -> None:
        super().__init__(location)
        self._calls = calls

    def read(self, path: str) -> pa.Buffer:
        with self._calls.quietly():
            return super().read(path)

    def read_range(self, path: str, start: int, stop: int) -> pa.Buffer:
        with self._calls.quietly():
            return super().read_range(path, start, stop)

    def size(self, path: str) -> int | None:
        with self._calls.quietly():
            return super().size(path)

    def list(self, prefix: str) -> list[BlobInfo]:
        with self._calls.quietly():
            return super().list(prefix)


class DiskFiles(SimulatedFiles):
    """Files of checkpoints and sinks on a simulated disk.

    Tasks of Spark's sync nothing. Its logs are taken to stay: Spark has no answer to their loss.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        disk: Disk,
        folders: tuple[str, ...],
        new_id: Callable[[], str],
    ) -> None:
        super().__init__(scheduler)
        self._disk, self._new_id = disk, new_id
        self.texts = Texts(disk, *folders)

    def make(self, location: str, text: str) -> bool:
        path = self.path(location)
        if self.exists(path):
            return False
        folder, _, name = path.rpartition("/")
        temporary = f"{folder}/.{name}.{self._new_id()}.tmp"
        self.write(temporary, text)
        try:
            is_new = self.rename_if_absent(temporary, path)
            self._scheduler.step("a file was made")
            return is_new
        finally:
            self.delete(temporary)

    def make_durable(self, location: str, names: Sequence[str]) -> None:
        local_names.sync_files(self.path(location), names)

    def rename_if_absent(self, source: str, target: str) -> bool:
        old, new = self.path(source), self.path(target)
        self._disk.make_folders(new.rpartition("/")[0])
        moved = local_names.link_if_absent(old, new)
        assert moved is not None
        return moved

    def write(self, location: str, text: str) -> None:
        path, data = self.path(location), text.encode()
        self._disk.make_folders(path.rpartition("/")[0])
        folder, name = self._disk.place(path)
        folder.names[name] = file = File()
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            self._call(f"write {path}", lambda piece=piece: file.append(piece))
