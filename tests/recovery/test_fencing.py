"""Two writers, sleepers and lost replies: one history, whoever wakes up when, and no needed file
is ever removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from oracle import Facade, FakeTime, Standalone, State, contents, opened
from seeds import budget, seed_of

from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import copy_path, data_file, manifest_path, manifest_version
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import (
    Conflict,
    Corruption,
    HoldfastError,
    IllegalState,
    Unavailable,
    VersionNotFound,
)
from holdfast.testing.faults import Call, Fault, FaultyStorage

KEEP, GRACE_MS = 3, 1000
CONF = StateStoreConf(
    min_deltas_for_snapshot=3,
    min_versions_to_retain=KEEP,
    max_versions_to_retain_in_memory=1,
    pack_threshold_bytes=0,
    grace_period_ms=GRACE_MS,
    merge_fanout=2,
    max_segments=4,
    maintenance_interval_ms=3_600_000,
)
PACKED = StateStoreConf(**{**vars(CONF), "pack_threshold_bytes": 1 << 18})
both = pytest.mark.parametrize("kind", [Standalone, Facade], ids=lambda kind: kind.name)
packing = pytest.mark.parametrize("conf", [CONF, PACKED], ids=["files", "packs"])


class SameClock(FakeTime):
    """Another process of the same host: the clocks of `other`, ids of its own."""

    def __init__(self, other: FakeTime) -> None:
        super().__init__()
        self._other = other

    def runtime(self) -> Runtime:
        return Runtime(self._other._tick, lambda: self._other.now_ms, self._new_id)


@dataclass
class World:
    """A storage, its clock, and the one history everybody must agree on."""

    kind: Any
    conf: StateStoreConf
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    time: FakeTime = field(default_factory=FakeTime)
    states: dict[int, State] = field(default_factory=lambda: {0: State()})

    def process(self, storage: Storage | None = None) -> Any:
        return opened(self.kind, storage or self.storage, SameClock(self.time), self.conf)

    @property
    def log(self) -> VersionLog:
        return VersionLog(self.storage, self.time.runtime())

    def commit(self, db: Any, name: str) -> int:
        store = db.update()
        key, value = (name, 100 + store.version), (store.version, name)
        store.put(key, value)
        state = self.states[store.version].put(key, value)
        version: int = store.commit()
        self.states[version] = state
        return version

    def check(self, but: int | None = None) -> None:
        """Every version there is equals the history; `but` may be there as something else."""
        with self.process() as db:
            for version in self.log.versions():
                if version == but:
                    continue
                store = db.read(version)
                assert contents(store) == self.states[version].visible()
                assert store.metrics.num_keys == len(self.states[version].visible())
                assert self.needed(version) <= self.files()

    def needed(self, version: int) -> set[str]:
        return self.log.load(version).files()

    def files(self) -> set[str]:
        return {blob.path for blob in self.storage.list("")}


def pausing_at(number: int, meanwhile: Callable[[], None], inner: Storage) -> FaultyStorage:
    """A storage whose user sleeps before the call of that number, while others go on."""
    return FaultyStorage(
        inner,
        lambda call: Fault.DELAY if call.number == number else None,
        sleep=lambda seconds: meanwhile(),
    )


def conflict_in(error: BaseException) -> bool:
    return isinstance(error, Conflict) or isinstance(error.__cause__, Conflict)


def its_files_are_gone(error: BaseException) -> bool:
    """Whether a sleeper could not read the version it started from, or finds its delta gone."""
    causes = [each for each in (error, error.__cause__) if isinstance(each, HoldfastError)]
    return any("missing" in each.message for each in causes)


@dataclass
class Sleeper:
    """A writer that falls asleep at one of its calls, after three versions of its own."""

    world: World
    meanwhile: Callable[[World], None]
    call: int
    version: int = 4
    acknowledged: bool = False

    def live(self) -> int:
        """Its whole life; returns how many calls the last commit took."""
        world = self.world
        with world.process() as db:
            for number in range(3):
                world.commit(db, f"before{number}")
                world.time.now_ms += GRACE_MS
                db.maintain()
        faulty = FaultyStorage(world.storage)
        with world.process(faulty) as db:
            store = db.update()
            store.put(("sleeper", 1), (1, "asleep"))
            self.state = world.states[3].put(("sleeper", 1), (1, "asleep"))
            before = len(faulty.calls)
            faulty.plan = lambda c: Fault.DELAY if c.number == before + self.call else None
            faulty._sleep = lambda seconds: self._others()
            self._commit(store)
            calls = len(faulty.calls) - before
            faulty.plan = lambda c: None
            db.maintain()
        return calls

    def _commit(self, store: Any) -> None:
        try:
            assert store.commit() == self.version
        except (Conflict, Corruption, IllegalState) as error:
            gone = self.meanwhile is retention_passes and its_files_are_gone(error)
            if not gone and not conflict_in(error):
                raise
            store.abort()
            return
        self.acknowledged = True
        self.world.states.setdefault(self.version, self.state)

    def _others(self) -> None:
        if self.world.log.newest() == self.version:
            self.world.states[self.version] = self.state  # it was created before the sleep
        self.meanwhile(self.world)


def one_commit(world: World) -> None:
    with world.process() as db:
        world.commit(db, "successor")


def two_commits_long_after(world: World) -> None:
    world.time.now_ms += 2 * GRACE_MS
    with world.process() as db:
        world.commit(db, "successor")
        world.commit(db, "successor")
        db.maintain()


def retention_passes(world: World) -> None:
    """So many commits and so long that the sleeper's version and the next are gone."""
    with world.process() as db:
        for _ in range(KEEP + 3):
            world.commit(db, "successor")
            world.time.now_ms += 2 * GRACE_MS
            db.maintain()
        assert not {4, 5} & set(world.log.versions())


def a_long_night(world: World) -> None:
    world.time.now_ms += 100 * GRACE_MS


@pytest.mark.parametrize(
    ("kind", "conf", "meanwhile"),
    [
        (Standalone, CONF, one_commit),
        (Standalone, CONF, two_commits_long_after),
        (Standalone, CONF, retention_passes),
        (Standalone, PACKED, retention_passes),
        (Standalone, PACKED, a_long_night),
        (Facade, CONF, retention_passes),
        (Facade, PACKED, one_commit),
        (Facade, PACKED, two_commits_long_after),
    ],
)
def test_a_writer_asleep_at_any_call_of_its_commit_damages_nothing(
    kind: Any, conf: StateStoreConf, meanwhile: Callable[[World], None]
) -> None:
    call, outcomes = 1, []
    while True:
        sleeper = Sleeper(World(kind, conf), meanwhile, call)
        calls = sleeper.live()
        world = sleeper.world
        stray = sleeper.version not in world.states or (
            meanwhile is retention_passes and not sleeper.acknowledged
        )
        world.check(but=sleeper.version if stray else None)
        if meanwhile is a_long_night:
            assert sleeper.acknowledged
        elif sleeper.version in world.log.versions() and not stray:
            shared = world.states[sleeper.version] == sleeper.state
            assert shared or not sleeper.acknowledged
        outcomes.append(sleeper.acknowledged)
        newest = max(world.states)
        with world.process() as db:
            if (
                stray
                and sleeper.version in world.log.versions()
                and sleeper.version < newest - KEEP
            ):
                with pytest.raises(VersionNotFound):
                    db.tag("stray", sleeper.version)
            for _ in range(KEEP):
                world.commit(db, "later")
                world.time.now_ms += 2 * GRACE_MS
                db.maintain()
        world.check()
        assert max(world.states) == newest + KEEP
        if call >= calls:
            break
        call += 1
    print(f"\n{kind.name}: asleep at each of {call} calls, {sum(outcomes)} acknowledged")
    assert call > 5


@both
@packing
def test_of_two_writers_on_one_version_the_second_gets_a_conflict(
    kind: Any, conf: StateStoreConf
) -> None:
    world = World(kind, conf)
    with world.process() as first, world.process() as second:
        world.commit(first, "shared")
        mine, theirs = first.update(), second.update()
        for store, name in ((mine, "mine"), (theirs, "theirs")):
            store.put((name, 1), (1, name))
        assert mine.commit() == 2
        world.states[2] = world.states[1].put(("mine", 1), (1, "mine"))
        with pytest.raises((Conflict, IllegalState)) as caught:
            theirs.commit()
        assert conflict_in(caught.value)
        theirs.abort()
        world.check()
        world.commit(second, "reopened")
        world.commit(first, "again")
    world.check()


@both
@packing
@pytest.mark.parametrize("times", [1, 2, 4])
def test_a_lost_reply_is_acknowledged_once(kind: Any, conf: StateStoreConf, times: int) -> None:
    world = World(kind, conf)
    faulty = FaultyStorage(world.storage)
    with world.process(faulty) as db:
        world.commit(db, "before")
        replies = iter([Fault.LOST_REPLY] * times)
        faulty.plan = at("create_if_absent", replies)
        assert world.commit(db, "lost") == 2
        faulty.plan = lambda call: None
        assert world.log.versions()[-1] == 2
        assert world.commit(db, "after") == 3
    world.check()


def at(operation: str, faults: Iterator[Fault]) -> Callable[[Call], Fault | None]:
    return lambda call: next(faults, None) if call.operation == operation else None


@both
@packing
def test_a_commit_tried_again_after_no_answer_goes_on_from_what_is_stored(
    kind: Any, conf: StateStoreConf
) -> None:
    """The second try writes files of its own, which the stored manifest does not name."""
    world = World(kind, conf)
    faulty = FaultyStorage(world.storage)
    with world.process(faulty) as db:
        world.commit(db, "before")
        store = db.update()
        store.put(("lost", 1), (1, "lost"))
        world.states[2] = world.states[1].put(("lost", 1), (1, "lost"))
        faulty.plan = created_but_unreadable
        with pytest.raises((Unavailable, IllegalState)) as caught:
            store.commit()
        assert isinstance(caught.value, Unavailable) or isinstance(
            caught.value.__cause__, Unavailable
        )
        assert world.log.newest() == 2
        faulty.plan = lambda call: None
        assert store.commit() == 2
        world.time.now_ms += 10 * GRACE_MS
        db.maintain()
        merges = {path for path in world.files() if path.endswith((".snapshot", ".merge"))}
        data = {path for path in world.files() if data_file(path)}
        needed = world.needed(1) | world.needed(2)
        assert data - merges == needed | set(map(copy_path, needed))
        world.commit(db, "after")
    world.check()


def created_but_unreadable(call: Call) -> Fault | None:
    if call.operation == "create_if_absent":
        return Fault.LOST_REPLY
    return Fault.ERROR if call.operation == "read" and manifest_version(call.path) else None


@both
@packing
def test_abort_after_no_answer_keeps_what_a_manifest_may_name(
    kind: Any, conf: StateStoreConf
) -> None:
    world = World(kind, conf)
    faulty = FaultyStorage(world.storage)
    with world.process(faulty) as db:
        world.commit(db, "before")
        store = db.update()
        store.put(("lost", 1), (1, "lost"))
        faulty.plan = created_but_unreadable
        with pytest.raises((Unavailable, IllegalState)):
            store.commit()
        store.abort()
        faulty.plan = lambda call: None
    world.states[2] = world.states[1].put(("lost", 1), (1, "lost"))
    world.check()


@both
def test_an_old_tagged_version_cannot_be_continued(kind: Any) -> None:
    world = World(kind, CONF)
    with world.process() as db:
        for _ in range(2):
            world.commit(db, "x")
        db.tag("kept", 1)
        for _ in range(KEEP + 1):
            world.commit(db, "x")
            world.time.now_ms += 2 * GRACE_MS
            db.maintain()
        assert 1 in world.log.versions()
        assert 2 not in world.log.versions()
        provider = db.provider if kind is Standalone else None
        if provider is not None:
            store = provider.get_store(1)
            store.put(("branch", 1), (1, "branch"))
            with pytest.raises(IllegalState) as caught:
                store.commit()
            assert conflict_in(caught.value)
    assert 2 not in world.log.versions()
    world.check()


class Watch:
    """Knows which commit made each file unreachable, and refuses deletes that come too early."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed_at: dict[int, int] = {}
        self.last_needed: dict[str, int] = {}
        self.deleted = 0
        self.processes: list[Any] = []

    def look(self) -> None:
        """Take note of the versions there are."""
        for version in self.world.log.versions():
            if version not in self.committed_at:
                self.committed_at[version] = self.world.log.load(version).committed_at_ms
                self.last_needed.update(dict.fromkeys(self.world.needed(version), version))

    def kept(self) -> set[int]:
        versions = self.world.log.versions()
        return {*versions[-KEEP:], *self.world.log.tags().values()} & set(versions)

    def plan(self, call: Call) -> None:
        if call.operation != "delete":
            return
        name, version = data_file(call.path), manifest_version(call.path)
        assert version is None or version not in self.kept()
        if name is None:
            return
        self.deleted += 1
        for there in self.world.log.versions():
            assert call.path not in self.world.needed(there), "a version that is there needs it"
        for process in self.processes:
            assert call.path not in self.waiting(process), "a merge that waits"
        if call.path in self.last_needed:
            decided = self.last_needed[call.path] + KEEP
        else:
            decided = name.version  # it lost when its version was committed without it
        waited = self.world.time.now_ms - self.committed_at[decided]
        assert waited >= GRACE_MS, f"{call.path} was given {waited} ms"

    def waiting(self, db: Any) -> set[str]:
        if isinstance(db, Standalone):
            return set(db.provider.waiting_files())
        return {path for each in db.database._providers for path in each.waiting_files()}


@both
@packing
def test_cleaning_removes_only_what_nobody_needs_and_after_its_grace(
    kind: Any, conf: StateStoreConf
) -> None:
    seed = seed_of("cleaning")
    removed = 0
    for number in range(budget("HOLDFAST_CLEANINGS", 6)):
        rng = Random(seed + number)
        world = World(kind, conf)
        watch = Watch(world)
        storage = FaultyStorage(world.storage, watch.plan)
        with world.process(storage) as db:
            watch.processes.append(db)
            for step in range(25):
                world.time.now_ms += rng.choice([1, 10, GRACE_MS // 2, GRACE_MS])
                action = rng.random()
                if action < 0.55:
                    world.commit(db, rng.choice("abc"))
                elif action < 0.65:
                    lose(world, db)
                elif action < 0.75:
                    db.snapshot()
                elif action < 0.8 and watch.kept():
                    db.tag(f"t{step}", rng.choice(sorted(watch.kept())))
                else:
                    db.maintain()
                watch.look()
            removed += watch.deleted
        world.check()
    print(f"{kind.name}: {removed} files removed")
    assert removed


def lose(world: World, db: Any) -> None:
    """Prepare a commit whose version somebody else takes: its files are orphans."""
    loser = db.update()
    loser.put(("loser", 1), (1, "lost"))
    with world.process() as other:
        world.commit(other, "winner")
    with pytest.raises((Conflict, IllegalState)):
        loser.commit()
    loser.abort()


@both
def test_a_merge_that_waits_outlives_any_cleaning(kind: Any) -> None:
    world = World(kind, CONF)
    with world.process() as db:
        for _ in range(4):
            world.commit(db, "x")
        db.snapshot()
        merged = {path for path in world.files() if path.endswith((".snapshot", ".merge"))}
        assert merged
        world.time.now_ms += 100 * GRACE_MS
        db.maintain()
        assert merged <= world.files()
        world.commit(db, "swaps it in")
        newest = max(world.states)
        assert merged <= world.needed(newest)
        world.time.now_ms += 100 * GRACE_MS
        db.maintain()
    world.check()
    assert manifest_path(newest) in world.files()
