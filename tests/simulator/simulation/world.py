"""A world: storage, clock and source that its applications share, and the product code in it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock
from uuid import UUID

import xxhash

from holdfast.backends import local
from holdfast.backends.memory import MemoryStorage
from holdfast.engine import periodic
from holdfast.engine.storage import Runtime, Storage
from holdfast.spark.interop import local_names
from holdfast.spark.interop import seam as spark_seam
from holdfast.spark.running import active, ending, run, spark_query, start, ticks
from holdfast.spark.sinks import files as filesink
from holdfast.spark.sinks import plans
from holdfast.spark.state import stored
from holdfast.spark.versions import home
from holdfast.streams import outbox, process
from holdfast.streams.stores import open_providers
from holdfast.streams.stores.open_providers import OpenProviders
from holdfast.streams.tasks import task
from simulation import seam
from simulation.decisions import Decisions
from simulation.disk import Calls, Choose, Disk
from simulation.frames import Rows, Session
from simulation.journal import Journal
from simulation.spark import ModelQuery, Run, StreamWriter
from simulation.storage import (
    DiskFiles,
    DiskStorage,
    QuietStorage,
    SimulatedFiles,
    SimulatedStorage,
)
from simulation.threads import (
    Process,
    Scheduler,
    SimulatedEvent,
    SimulatedLock,
    SimulatedThread,
)

CHECKPOINT, OUT = "/cp", "/out"
STATE = f"{CHECKPOINT}/holdfast"
KEPT_PLANS = 3
"""Fewer than the product keeps: a run has not many versions."""
_worlds = 0


class World:
    """What outlives every application."""

    def __init__(self, decisions: Decisions) -> None:
        global _worlds
        _worlds += 1
        self.decisions = decisions
        self.scheduler = Scheduler(decisions)
        self.name = f"world-{_worlds}"
        self.blobs: Storage = MemoryStorage(self.name)
        """The state, for those who look on."""
        self.disk: Disk | None = None
        """The disk of the one machine that there is, if the state is on one."""
        self.calls: Calls | None = None
        """The calls of that disk."""
        self.files = SimulatedFiles(self.scheduler)
        self.source: list[Rows] = []
        """Chunks of rows; a batch has at most `most_chunks` of them."""
        self.most_chunks = 1
        self.journal = Journal(self)
        self._ids = 0

    def move_to_disk(self) -> None:
        """Have state, checkpoint and files on the disk of the one machine that there is."""
        self.disk = disk = Disk()
        self.calls = Calls(disk, f"/{self.name}", self.scheduler, self.clock_ms)
        self.blobs = QuietStorage(f"/{self.name}", self.calls)
        self.files = DiskFiles(self.scheduler, disk, (CHECKPOINT, OUT), self.new_id)

        def linked(path: str, data: bytes) -> None:
            application = self.scheduler.running.process
            if path.startswith(f"/{self.name}/") and isinstance(application, Application):
                self.journal.created(application, path.removeprefix(f"/{self.name}/"), data)

        self.calls.linked = linked
        self.scheduler.power_fails = lambda: self.lose_power(self.decisions.choose)

    def lose_power(self, choose: Choose) -> None:
        """Have the disk lose what it has not synced, as far as it is so decided."""
        assert self.disk is not None
        self.disk.root.power_lost(choose)
        self.journal.power_lost()

    def storage_of(self, application: Application) -> Storage:
        """One process's way to the state."""
        if self.calls is not None:
            return DiskStorage(self.blobs.location, self.calls, self.journal.confirmed)
        assert isinstance(self.blobs, MemoryStorage)
        created = functools.partial(self.journal.created, application)
        return SimulatedStorage(self.blobs, self.scheduler, created)

    def clock_ms(self) -> int:
        """The time of day."""
        return self.scheduler.now_ms + self.scheduler.skew_ms

    def new_id(self) -> str:
        """An id of 128 bits; the same ones in every repetition of a run."""
        self._ids += 1
        return xxhash.xxh3_128_hexdigest(str(self._ids).encode())

    def new_uuid(self) -> str:
        """The same in the form of Spark's ids."""
        return str(UUID(self.new_id()))

    @property
    def runtime(self) -> Runtime:
        """The clocks and ids of the world, for the engine."""
        return Runtime(self.clock_ms, lambda: self.scheduler.now_ms, self.new_id)


class Application(Process):
    """A driver's process, its executors included."""

    def __init__(self, world: World, name: str, settings: Mapping[str, str]) -> None:
        super().__init__(name)
        self.world = world
        self.session = Session(self, settings)
        self.storage = world.storage_of(self)
        self.holdings = OpenProviders(lambda: world.scheduler.now_ms / 1000)
        self.query: ModelQuery | None = None
        self.run = Run()
        self.stop_query: Callable[[], None] | None = None
        """Stops the query that the user has started, once there is one."""

    def stream_writer(self) -> StreamWriter:
        """What `writeStream` gives here."""
        return StreamWriter(self)

    def job(self, what: str) -> None:
        """Run a job of Spark's, as far as others notice."""
        self.world.scheduler.step(f"job: {what}")
        if self.query is not None:
            self.query.check_cancelled()


class _Here:
    """The holdings of the process whose turn it is."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        application: Any = self._world.scheduler.running.process
        return getattr(application.holdings, name)


class _NoWatch:
    """Nobody follows the progress of a query."""

    def __init__(self, conf: object, shared: object) -> None:
        self.told: list[object] = []

    def started(self, inner: object) -> None: ...

    def progressed(self, progress: object, batch_id: int | None) -> None: ...

    def ended(self, error: object) -> None: ...


@contextmanager
def inhabited(world: World) -> Iterator[None]:
    """Have the product's code run in a world: what it takes from machine and JVM comes from it."""
    scheduler = world.scheduler
    threads = SimpleNamespace(
        RLock=lambda: SimulatedLock(scheduler),
        Lock=lambda: SimulatedLock(scheduler, is_reentrant=False),
        Event=lambda: SimulatedEvent(scheduler),
        Thread=lambda **given: SimulatedThread(scheduler, **given),
        current_thread=lambda: scheduler.running.thread,
    )
    clock = SimpleNamespace(
        sleep=lambda seconds: scheduler.sleep(seconds * 1000),
        time_ns=lambda: world.clock_ms() * 1_000_000,
        monotonic=time.monotonic,
    )

    def storage(*_: object) -> Storage:
        application: Any = scheduler.running.process
        found: Storage = application.storage
        return found

    def new_uuid() -> UUID:
        return UUID(world.new_id())

    patches: list[tuple[object, str, Any]] = [
        (Runtime, "system", lambda: world.runtime),
        *((module, "threading", threads) for module in (active, ending, run, start)),
        (run, "time", clock),
        (spark_query, "threading", threads),
        (spark_query, "time", clock),
        (start, "Watch", _NoWatch),
        (periodic, "threading", threads),
        (ticks, "time", clock),
        (active, "_runs", {}),
        (active, "_known_ids", {}),
        (active, "_ends", {}),
        (home, "open_storage", storage),
        (home, "uuid4", new_uuid),
        (filesink, "uuid4", new_uuid),
        (plans, "_KEPT", KEPT_PLANS),
        (stored, "open_storage", storage),
        (task, "open_storage", storage),
        (outbox, "open_storage", storage),
        (open_providers, "here", _Here(world)),
        (process, "acknowledge", lambda: None),
        (spark_seam, "sessions", seam.Sessions()),
        (spark_seam, "frames", seam.Frames()),
        (spark_seam, "tasks", seam.Tasks()),
        (spark_seam, "queries", seam.Queries()),
        (spark_seam, "files", seam.Files(world.files)),
    ]  # fmt: skip
    if (calls := world.calls) is not None:
        ids = SimpleNamespace(token_hex=lambda size: world.new_id()[: 2 * size])
        patches += [
            (local, "os", calls), (local, "open", calls.open_file),
            (local, "map_or_read", calls.read), (local, "read_file_range", calls.read_range),
            (local, "secrets", ids),
            (local, "time", SimpleNamespace(time=lambda: world.clock_ms() / 1000)),
            (local_names, "os", calls),
        ]  # fmt: skip
    undo = []
    try:
        for target, name, twin in patches:
            patch = mock.patch.object(target, name, twin, create=name == "open")
            patch.start()
            undo.append(patch)
        yield
    finally:
        for patch in reversed(undo):
            patch.stop()
