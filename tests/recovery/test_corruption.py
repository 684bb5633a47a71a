"""Damage every kind of file in every way: it is noticed or does no harm, never a wrong value.

`HOLDFAST_SEED=<number>` replays a run; the seed of each is printed.
"""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from oracle import (
    INDEX,
    KEY,
    Facade,
    FakeTime,
    Key,
    Standalone,
    State,
    Value,
    contents,
    copy_of,
    keys_of,
    normal,
    opened,
)
from test_crash_everywhere import change

from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files import segment_writer
from holdfast.engine.files.filenames import data_file, manifest_path, manifest_version, tag_name
from holdfast.engine.storage import Storage
from holdfast.engine.versions import compaction
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, HoldfastError, InvalidArgument, VersionNotFound
from holdfast.reading import verify
from holdfast.reading.root import Root as Inspected
from holdfast.testing.faults import CRASHES, Crash, FaultyStorage, crash_at

SEED = int(os.environ.get("HOLDFAST_SEED") or random.SystemRandom().randrange(1 << 32))
KINDS = ("delta", "pack", "merge", "snapshot", "manifest", "tag")
ADVICE = ("holdfast verify", "Delete that file")
GO_ON_EVERY = 5
OUTCOMES = {
    "detected": "a read or the opening raised",
    "fallback": "read round with a warning",
    "verified": "these reads did not need it, `verify` names it",
    "harmless": "nothing that was written is missing",
}


@dataclass
class Root:
    """A healthy root and what each of its versions and tags stands for."""

    kind: Any
    conf: StateStoreConf
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    states: dict[int, State] = field(default_factory=lambda: {0: State()})
    tags: dict[str, int] = field(default_factory=dict)

    @cached_property
    def needed(self) -> dict[int, set[str]]:
        """The files each version needs, its manifest among them."""
        log = VersionLog(self.storage, FakeTime().runtime())
        return {v: {manifest_path(v), *log.load(v).files()} for v in sorted(self.states)}

    def files(self, kind: str) -> list[str]:
        """The files of one kind that some version needs, and the tags."""
        tags = {blob.path for blob in self.storage.list("") if tag_name(blob.path)}
        everything = tags.union(*self.needed.values())
        return sorted(path for path in everything if kind_of(path) == kind)

    def some_versions(self, paths: list[str], rng: random.Random) -> list[int]:
        """Two versions that need one of the files, one that may not."""
        hit = [version for version, files in self.needed.items() if files & set(paths)]
        return [*rng.sample(hit, min(2, len(hit))), rng.choice(list(self.states))]


def kind_of(path: str) -> str:
    if manifest_version(path) is not None:
        return "manifest"
    if tag_name(path) is not None:
        return "tag"
    name = data_file(path)
    assert name is not None, path
    return name.kind


@contextmanager
def small_files() -> Iterator[None]:
    """Blocks, chunks and tiers a thousandth of their size, so that small files have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segment_writer, "BLOCK_BYTES", 2048)
        patch.setattr(segment_writer, "CHUNK_ROWS", 64)
        patch.setattr(compaction, "_SMALLEST_TIER_BYTES", 6_000)
        yield


@cache
def grown(kind: Any, compression: str) -> Root:
    """A root with every kind of file, retention at work; the same each time, not to be changed."""
    rng = random.Random(1)
    conf = StateStoreConf(
        min_deltas_for_snapshot=9,
        min_versions_to_retain=7,
        max_versions_to_retain_in_memory=0,
        pack_threshold_bytes=3600,
        grace_period_ms=0,
        merge_fanout=2,
        max_segments=8,
        maintenance_interval_ms=3_600_000,
        compression=compression,
    )
    root = Root(kind, conf)
    with small_files(), opened(kind, root.storage, FakeTime(1), conf) as db:
        for number in range(16):
            size = 150 if number == 0 else 60 if number % 3 == 0 else 6
            store = db.update()
            state = root.states[store.version]
            for verb, what in changes(rng, state, number, size):
                state = change(store, state, verb, what)
            root.states[store.commit()] = state
            if number in (9, 12, 14):
                root.tags[f"tag-{number}"] = number
                db.tag(f"tag-{number}", number)
            if number in (8, 13):
                for provider in providers(db):
                    provider.do_snapshot(force=True)
            db.maintain()
        store = db.update()
        root.states[store.commit()] = state
        there = set(db.versions.versions())
    root.states = {version: state for version, state in root.states.items() if version in there}
    return root


def providers(db: Any) -> list[Any]:
    return [db.provider] if isinstance(db, Standalone) else db.database._providers


def changes(rng: random.Random, state: State, number: int, size: int) -> list[tuple[str, Any]]:
    batch: dict[Key, Value] = {}
    for _ in range(size):
        key = (f"p{rng.randrange(9)}", rng.randrange(10 * number, 400))
        text = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(30)).hex()
        batch[key] = (None if rng.random() < 0.1 else rng.randrange(-1000, 1000), text)
    known = [row[0] for row in state.rows.values()]
    gone = rng.sample(known, min(len(known), 4))
    found: list[tuple[str, Any]] = [("put_many", list(batch.items()))]
    if gone:
        found += [("remove_many", gone[1:]), ("remove", gone[0])]
    if number % 4 == 1:
        found.append(("expiring", (("soon", 1000 + number), (number, "soon"), 100 * number)))
    if number % 4 == 2:
        found += [("evict", 10 * number), ("expire", 60 * number)]
    return found


# Ways to damage a file. Each takes its bytes and those of another file of its kind.
Bytes = bytes | None


def spot(rng: random.Random, data: bytes) -> int:
    """Somewhere in a file; the ends, which hold headers and tails, more often than not."""
    low, high = rng.choice([(0, 80), (0, len(data)), (0, len(data)), (len(data) - 400, len(data))])
    return rng.randrange(max(0, low), min(len(data), high))


def span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = spot(rng, data)
    return start, min(len(data), start + rng.choice([1, 2, 8, 64, 512]))


def flip(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    at = spot(rng, data)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def overwrite(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    start, stop = span(rng, data)
    return data[:start] + rng.randbytes(stop - start) + data[stop:]


def zero(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    start, stop = span(rng, data)
    return data[:start] + bytes(stop - start) + data[stop:]


def cut(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return data[: spot(rng, data)]


def behead(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return data[spot(rng, data) + 1 :]


def excise(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    start, stop = span(rng, data)
    return data[:start] + data[stop:]


def extend(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return data + rng.choice([b"\0", b"\n", rng.randbytes(50), data, other])


def insert(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    at = spot(rng, data)
    return data[:at] + rng.randbytes(rng.choice([1, 8, 64])) + data[at:]


def swap(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    length = rng.choice([1, 8, 64])
    first, second = sorted((spot(rng, data), spot(rng, data)))
    if second + length > len(data) or first + length > second:
        return data
    middle = data[first + length : second]
    one, two = data[first : first + length], data[second : second + length]
    return data[:first] + two + middle + one + data[second + length :]


def splice(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    at = spot(rng, data)
    return data[:at] + other[at:]


def replace_by_another(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return other


def exchange(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return other  # and `damaged` puts `data` in the other's place


def empty(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return b""


def missing(rng: random.Random, data: bytes, other: bytes) -> Bytes:
    return None


DAMAGE: tuple[Callable[[random.Random, bytes, bytes], Bytes], ...] = (
    flip, overwrite, zero, cut, behead, excise, extend, insert, swap, splice,
    replace_by_another, exchange, empty, missing,
)  # fmt: skip
CELLS = [(damage, kind) for damage in DAMAGE for kind in KINDS]


def damaged(root: Root, kind: str, damage: Any, rng: random.Random) -> tuple[Storage, list[str]]:
    """A copy of the root with one file damaged (two exchanged), and their paths."""
    storage = copy_of(root.storage)
    while True:
        path, other = rng.sample(root.files(kind), 2)
        data = bytes(root.storage.read(path))
        second = bytes(root.storage.read(other))
        new = damage(rng, data, second)
        if new == data:
            continue
        if new is None:
            storage.delete(path)
            return storage, [path]
        storage.store(path, pa.py_buffer(new))
        if damage is exchange:
            storage.store(other, pa.py_buffer(data))
            return storage, [path, other]
        return storage, [path]


@dataclass
class Reader:
    """Reads a damaged root in every way and tells what it noticed."""

    root: Root
    storage: Storage
    paths: list[str]
    damage: str
    rng: random.Random
    errors: list[HoldfastError] = field(default_factory=list)

    def opened(self) -> AbstractContextManager[Any]:
        return opened(self.root.kind, self.storage, FakeTime(), self.root.conf)

    @contextmanager
    def noticing(self) -> Iterator[None]:
        """Keeps errors that say what is damaged; any other one fails the test."""
        try:
            yield
        except HoldfastError as error:
            self._check(error)
            self.errors.append(error)

    def _check(self, error: HoldfastError) -> None:
        small = kind_of(self.paths[0]) in ("manifest", "tag")
        if isinstance(error, VersionNotFound):
            assert self.damage == "missing"
            assert small
            return
        assert any(path in error.message for path in self.paths), error.message
        if isinstance(error, InvalidArgument):
            assert error.condition == "STATE_STORE_UNSUPPORTED_FORMAT"
            assert small
        else:
            assert type(error) is Corruption
            assert any(advice in error.message for advice in ADVICE), error.message

    def read(self, versions: list[int], *, thorough: bool) -> None:
        """Each version in every way, or else the first two in three ways each."""
        ways = [by_scan, by_get, by_get_many, by_iterator, by_prefix, by_range]
        self.rng.shuffle(ways)
        with self.noticing(), self.opened() as db:
            for number, version in enumerate(versions):
                for way in ways if thorough else (ways[:3], ways[3:], ways[:1])[number]:
                    with self.noticing():
                        way(db.read(version), self.root.states[version], self.rng)
            for name, version in self.root.tags.items():
                with self.noticing():
                    found = db.versions.read_tag(name)
                    if found is None:
                        raise VersionNotFound(name)
                    assert found == version

    def go_on(self) -> None:
        """Commit, snapshot and commit on top of the damage: what it spoilt must not spread."""
        with suppress(HoldfastError), self.opened() as db:
            expected: dict[int, State] = {}
            for number in range(3):
                store = db.update()
                state = expected.get(store.version) or self.root.states[store.version]
                key, value = ("p1", 5000 + number), (number, "later")
                store.put(key, value)
                expected[store.commit()] = state.put(key, value)
                with suppress(HoldfastError):
                    db.snapshot()
            for version, state in expected.items():
                for way in (by_scan, by_get, by_prefix):
                    with suppress(HoldfastError):
                        way(db.read(version), state, self.rng)


def some_keys(state: State, rng: random.Random, most: int) -> list[Key]:
    known = [row[0] for row in state.rows.values()]
    return [*rng.sample(known, min(most, len(known))), ("nobody", 1)]


def by_get(store: Any, state: State, rng: random.Random) -> None:
    expected = state.visible()
    for key in some_keys(state, rng, 12):
        assert store.get(key) == expected.get(normal(key))


def by_get_many(store: Any, state: State, rng: random.Random) -> None:
    expected = state.visible()
    keys = some_keys(state, rng, rng.choice([5, 1000]))
    found = store.get_many(keys_of(KEY, keys))
    columns = [found[name].to_pylist() for name in ("_found", "v", "s")]
    for key, there, *value in zip(keys, *columns, strict=True):
        assert there == (normal(key) in expected)
        assert not there or tuple(value) == expected[normal(key)]


def by_scan(store: Any, state: State, rng: random.Random) -> None:
    columns = store.scan().select(["p", "t", "v", "s"]).to_pydict().values()
    found = {(p, t): (v, s) for p, t, v, s in zip(*columns, strict=True)}
    assert found == state.visible()


def by_iterator(store: Any, state: State, rng: random.Random) -> None:
    assert contents(store) == state.visible()


def by_prefix(store: Any, state: State, rng: random.Random) -> None:
    prefix = f"p{rng.randrange(9)}"
    found = {normal(key): value for key, value in store.prefix_scan((prefix,))}
    assert found == {key: value for key, value in state.visible().items() if key[0] == prefix}


def by_range(store: Any, state: State, rng: random.Random) -> None:
    low, high = sorted((rng.randrange(400), rng.randrange(400)))
    found = {normal(key): value for key, value in store.get_range(low, high)}
    inside = {k: v for k, v in state.visible().items() if low <= k[INDEX] <= high}
    assert found == inside


class Warnings(logging.Handler):
    """Keeps what the chain says at WARNING."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def fallbacks() -> Iterator[list[str]]:
    """What chains log while they read round damage."""
    handler, logger = Warnings(), logging.getLogger("holdfast.engine.partition.chain")
    logger.addHandler(handler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("holdfast"), "propagate", False)
        try:
            yield handler.texts
        finally:
            logger.removeHandler(handler)


def outcome_of(
    root: Root, kind: str, damage: Any, rng: random.Random, *, thorough: bool, go_on: bool
) -> str:
    """Damage one file, read versions that need it and others, and tell what came of it."""
    storage, paths = damaged(root, kind, damage, rng)
    reader = Reader(root, storage, paths, damage.__name__, rng)
    with fallbacks() as warnings:
        versions = list(root.states) if thorough else root.some_versions(paths, rng)
        reader.read(versions, thorough=thorough)
    assert all(any(path in text for path in paths) for text in warnings)
    checked = verify(Inspected(storage))
    named = {check.path for check in checked.problems}
    if checked.intact:
        # Nothing points at a manifest or tag that is gone; a pack has room between its deltas.
        gone = damage is missing and kind in ("manifest", "tag")
        assert gone or kind == "pack" or only_line_ends(root.storage, storage, paths)
        assert damage is missing or (not reader.errors and not warnings)
    else:
        assert named & set(paths) or any(tag_name(path) for path in named)
    if go_on:
        reader.go_on()
    if reader.errors:
        return "detected"
    if warnings:
        return "fallback"
    return "harmless" if checked.intact else "verified"


def only_line_ends(before: Storage, after: Storage, paths: list[str]) -> bool:
    """Whether nothing but the line end of a tag differs, which is no part of it."""
    return all(
        tag_name(path)
        and bytes(before.read(path)).rstrip(b"\n") == bytes(after.read(path)).rstrip(b"\n")
        for path in paths
    )


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Ways of damage by kinds of file: how many came to each outcome."""
    lines = [f"{'':20}" + "".join(f"{kind:>12}" for kind in KINDS)]
    for damage in DAMAGE:
        cells = (
            "/".join(str(counts[damage.__name__, kind, what]) for what in OUTCOMES)
            for kind in KINDS
        )
        lines.append(f"{damage.__name__:20}" + "".join(f"{cell:>12}" for cell in cells))
    return "\n".join(lines)


def run(cases: int, seed: int, *, thorough_every: int) -> None:
    print(f"\nHOLDFAST_SEED={seed}: {cases} cases")
    rng = random.Random(seed)
    roots = [
        grown(kind, compression)
        for kind in (Standalone, Facade)
        for compression in ("none", "lz4", "zstd")
    ]
    for root in roots:
        assert {kind: len(root.files(kind)) for kind in KINDS if len(root.files(kind)) < 2} == {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for number in range(cases):
        damage, kind = CELLS[number % len(CELLS)]
        root = rng.choice(roots)
        case = random.Random(rng.randrange(1 << 32))
        try:
            go_on = number % GO_ON_EVERY == 0
            thorough = number % thorough_every == 0
            what = outcome_of(root, kind, damage, case, thorough=thorough, go_on=go_on)
        except BaseException:
            print(f"case {number}: {damage.__name__} a {kind}, {root.kind.name}")
            raise
        counts[damage.__name__, kind, what] += 1
    print(" / ".join(OUTCOMES) + "\n" + table(counts))
    totals = Counter(dict.fromkeys(OUTCOMES, 0))
    for (_, _, what), count in counts.items():
        totals[what] += count
    print("\n".join(f"{totals[what]:5} {what}: {why}" for what, why in OUTCOMES.items()))
    tried = {(damage, kind) for damage, kind, _ in counts}
    assert tried == {(damage.__name__, kind) for damage, kind in CELLS}
    assert sum(totals.values()) == cases
    assert totals["fallback"] >= cases // 10
    assert totals["detected"] >= cases // 4


def test_damage_is_detected_or_harmless_and_never_a_wrong_value() -> None:
    run(252, SEED, thorough_every=50)


@pytest.mark.soak
def test_a_thousand_damages_are_detected_or_harmless() -> None:
    run(1008, SEED, thorough_every=5)


@pytest.mark.parametrize("damage", [flip, cut, extend, exchange, empty, missing])
def test_a_local_disk_reads_damage_as_such(tmp_path: Path, damage: Any) -> None:
    rng = random.Random(SEED)
    root = grown(Facade, "none")
    for kind in KINDS:
        storage, paths = damaged(root, kind, damage, rng)
        folder = tmp_path / kind
        for blob in storage.list(""):
            (folder / blob.path).parent.mkdir(parents=True, exist_ok=True)
            (folder / blob.path).write_bytes(storage.read(blob.path))
        reader = Reader(root, LocalStorage(folder), paths, damage.__name__, rng)
        reader.read(root.some_versions(paths, rng), thorough=False)
        if kind in ("manifest", "tag"):
            assert reader.errors


def ten_versions(conf: StateStoreConf) -> Root:
    """Ten versions, maintained and cleaned up after each: two of them and their files are left."""
    root = Root(Standalone, conf)
    with opened(Standalone, root.storage, FakeTime(1), conf) as db:
        for number in range(10):
            store = db.update()
            state = change(store, root.states[number], "put", (("same", 1), (number, "x" * 40)))
            state = change(store, state, "put", ((f"p{number}", number), (number, None)))
            root.states[store.commit()] = state
            db.maintain()
        root.states = {version: root.states[version] for version in db.versions.versions()}
    return root


TEN = StateStoreConf(
    min_deltas_for_snapshot=3,
    min_versions_to_retain=2,
    max_versions_to_retain_in_memory=0,
    grace_period_ms=0,
    maintenance_interval_ms=3_600_000,
)


def eleventh(storage: Storage) -> None:
    with opened(Standalone, storage, FakeTime(2), TEN) as db:
        db.snapshot()
        store = db.update()
        store.put(("eleventh", 1), (11, None))
        store.commit()


def test_two_newest_versions_open_after_a_crash_and_a_damaged_snapshot(
    caplog: pytest.LogCaptureFixture,
) -> None:
    root = ten_versions(TEN)
    assert list(root.states) == [9, 10]
    manifest = VersionLog(root.storage, FakeTime().runtime()).load(10)
    chain = manifest.entry(0, "default", 0).segments
    assert [ref.kind for ref in chain] == ["delta", "snapshot"]
    assert [ref.kind for ref in chain[1].inputs] == ["delta", "delta", "delta", "snapshot"]
    newest = chain[1].path("")
    whole = FaultyStorage(copy_of(root.storage))
    eleventh(whole)
    crashes = [(c, fault) for c in whole.calls if c.changes for fault in CRASHES]
    assert len(crashes) > 10
    rng = random.Random(SEED)
    print(f"\nHOLDFAST_SEED={SEED}: {len(crashes)} crashes")
    for call, fault in crashes:
        inner = copy_of(root.storage)
        faulty = FaultyStorage(inner, crash_at(call.number, fault))
        with suppress(Crash):
            eleventh(faulty)
        faulty.bury()
        data = bytes(root.storage.read(newest))
        hurt = rng.choice([flip, cut, behead, zero, empty, missing])(rng, data, b"")
        if hurt is None:
            inner.delete(newest)
        else:
            inner.store(newest, pa.py_buffer(hurt))
        caplog.clear()
        with opened(Standalone, inner, FakeTime(), TEN) as db:
            for version, state in root.states.items():
                for way in (by_scan, by_get, by_get_many, by_iterator):
                    way(db.read(version), state, rng)
        told = [r for r in caplog.records if r.name == "holdfast.engine.partition.chain"]
        assert hurt == data or told
        assert all(r.levelname == "WARNING" and newest in r.getMessage() for r in told)
        assert all("segments it was made from" in r.getMessage() for r in told)


def test_where_no_copy_is_left_corruption_names_the_file_and_what_to_do() -> None:
    root = ten_versions(TEN)
    for path in root.files("snapshot"):
        root.storage.delete(path)
    with opened(Standalone, root.storage, FakeTime(), TEN) as db:
        for version in root.states:
            with pytest.raises(
                Corruption, match=r"\.snapshot is damaged \(the file is mi"
            ) as caught:
                db.read(version).get(("same", 1))
            assert caught.value.condition == "STATE_STORE_CORRUPTION"
            assert any(path in caught.value.message for path in root.files("snapshot"))
            assert "`holdfast rollback CHECKPOINT --to intact`" in caught.value.message
            assert f"Version {version}" in caught.value.message
