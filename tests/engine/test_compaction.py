"""What is merged, what that costs, and that a merge changes nothing a reader can see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up_manifests import attempt, ref

from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import PartitionEntry, SegmentRef
from holdfast.engine.files.segment_writer import SegmentWriter
from holdfast.engine.partition.chain import Chain, SegmentCache
from holdfast.engine.partition.reader import PartitionReader
from holdfast.engine.partition.rows import NEVER
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.partition.writer import PartitionWriter
from holdfast.engine.versions.commit import Swap, swap_in
from holdfast.engine.versions.compaction import MergePlan, merge, output_path, plan
from holdfast.types import parse_schema

CONF = StateStoreConf()
KB, MB = 1_000, 1_000_000


def deltas(count: int, size: int, newest: int = 100) -> tuple[SegmentRef, ...]:
    return tuple(ref(newest - i, size=size) for i in range(count))


# What is worth merging


def test_an_empty_chain_needs_nothing() -> None:
    assert plan((), CONF) is None


def test_fewer_neighbours_of_one_size_than_the_fanout_are_left() -> None:
    chain = (*deltas(3, 10 * KB), ref(50, 1, "snapshot", size=100 * MB))
    assert plan(chain, CONF) is None


def test_neighbours_of_one_size_are_merged_once_there_are_enough() -> None:
    chain = (*deltas(4, 10 * KB), ref(50, 1, "snapshot", size=100 * MB))
    assert plan(chain, CONF) == MergePlan(0, 4, "merge")


def test_the_fanout_is_a_setting() -> None:
    chain = (*deltas(2, 10 * KB), ref(50, 1, "snapshot", size=100 * MB))
    assert plan(chain, replace(CONF, merge_fanout=2)) == MergePlan(0, 2, "merge")


def test_larger_neighbours_wait_for_their_like() -> None:
    large = [ref(90 - i, 80 - i, "merge", size=MB) for i in range(4)]
    snapshot = ref(50, 1, "snapshot", size=1_000 * MB)
    assert plan((ref(100, size=KB), *large, snapshot), CONF) == MergePlan(1, 5, "merge")
    assert plan((ref(100, size=KB), *large[:3], snapshot), CONF) is None


def test_segments_of_other_sizes_between_them_keep_neighbours_apart() -> None:
    chain = (*deltas(2, KB), ref(97, size=5 * MB), *deltas(2, KB, 96))
    snapshot = ref(50, 1, "snapshot", size=1_000 * MB)
    assert plan((*chain, snapshot), CONF) is None


def test_a_merge_of_the_whole_chain_is_a_snapshot() -> None:
    assert plan(deltas(4, 10 * KB), CONF) == MergePlan(0, 4, "snapshot")


def test_a_snapshot_waits_until_the_deltas_weigh_a_third_of_it() -> None:
    conf = replace(CONF, merge_fanout=100)
    chain = deltas(12, MB)
    heavy, light = (ref(50, 1, "snapshot", size=size) for size in (37 * MB, 36 * MB))
    assert plan((*chain, heavy), conf) is None
    assert plan((*chain, light), conf) == MergePlan(0, 13, "snapshot")


def test_a_snapshot_waits_until_enough_deltas_have_come() -> None:
    conf = replace(CONF, merge_fanout=100)
    snapshot = ref(50, 1, "snapshot", size=KB)
    assert plan((*deltas(9, MB), snapshot), conf) is None
    assert plan((*deltas(10, MB), snapshot), conf) == MergePlan(0, 11, "snapshot")


def test_a_merge_counts_for_all_the_deltas_it_holds() -> None:
    merged = ref(100, 91, "merge", size=MB)
    assert plan((merged, ref(90, 1, "snapshot", size=MB)), CONF) == MergePlan(0, 2, "snapshot")


def test_a_snapshot_that_lags_is_renewed_however_light_the_deltas_are() -> None:
    heavy = ref(50, 1, "snapshot", size=100 * MB)
    many = (ref(1049, 51, "merge", size=10 * KB), heavy)
    assert plan(many, CONF) is None
    assert plan((ref(1050), *many), CONF) == MergePlan(0, 3, "snapshot")
    assert plan((ref(1050), *many), replace(CONF, snapshot_lag=0)) is None


def test_a_chain_at_its_limit_becomes_one_snapshot() -> None:
    sizes = [KB, 5 * MB] * 12
    chain = tuple(ref(100 - i, size=size) for i, size in enumerate(sizes))
    snapshot = ref(50, 1, "snapshot", size=10_000 * MB)
    conf = replace(CONF, max_segments=25)
    assert plan((*chain, snapshot), conf) == MergePlan(0, 25, "snapshot")
    assert plan((*chain, snapshot), replace(conf, max_segments=26)) is None


@given(
    st.lists(st.integers(0, 10**9), max_size=30),
    st.integers(2, 8),
    st.integers(2, 30),
    st.integers(1, 20),
)
def test_a_plan_is_a_run_of_the_chain_and_merging_comes_to_an_end(
    sizes: list[int], fanout: int, limit: int, least: int
) -> None:
    conf = StateStoreConf(merge_fanout=fanout, max_segments=limit, min_deltas_for_snapshot=least)
    chain = tuple(ref(100 - i, size=size) for i, size in enumerate(sizes))
    for _ in range(len(chain) + 2):
        todo = plan(chain, conf)
        if todo is None:
            break
        assert 0 <= todo.start < todo.stop <= len(chain)
        assert (todo.kind == "snapshot") == (todo.stop == len(chain))
        merged = chain[todo.start : todo.stop]
        size = sum(part.info.size for part in merged)
        output = ref(merged[0].high, merged[-1].low, todo.kind, size=size)
        chain = (*chain[: todo.start], output, *chain[todo.stop :])
    assert plan(chain, conf) is None
    assert len(chain) < limit or len(chain) == 1


# What it costs

OVERHEAD = 1_500
"""What schema, footer and tail of a segment take, however few rows it has."""


class Simulated:
    """A partition whose batches change keys at random; `state` bytes hold all of them."""

    def __init__(self, delta: int, state: int | None, conf: StateStoreConf) -> None:
        self.delta, self.state, self.conf = delta, state, conf
        self.chain: tuple[SegmentRef, ...] = ()
        self.written = self.longest = 0
        if state is not None:
            self.chain = (ref(0, 0, "snapshot", size=OVERHEAD + state),)

    def batch(self, version: int) -> None:
        self.chain = (self._segment(version, version, "delta", self.delta), *self.chain)
        todo = plan(self.chain, self.conf)
        if todo is not None:
            parts = self.chain[todo.start : todo.stop]
            output = self._segment(parts[0].high, parts[-1].low, todo.kind, self._merged(parts))
            self.chain = (*self.chain[: todo.start], output, *self.chain[todo.stop :])
        self.longest = max(self.longest, len(self.chain))

    def _segment(self, high: int, low: int, kind: str, rows: int) -> SegmentRef:
        self.written += OVERHEAD + rows
        return ref(high, low, kind, size=OVERHEAD + rows)

    def _merged(self, parts: tuple[SegmentRef, ...]) -> int:
        rows = [part.info.size - OVERHEAD for part in parts]
        if self.state is None:
            return sum(rows)
        missed = 1.0
        for each in rows:
            missed *= max(0.0, 1 - each / self.state)
        return max(int(self.state * (1 - missed)), max(rows))


@pytest.mark.parametrize("delta", [100, KB, 10 * KB, 100 * KB, MB, 30 * MB])
@pytest.mark.parametrize("ratio", [1, 2, 5, 10, 30, 100, 1_000, 10_000, None])
def test_each_byte_is_written_a_few_times_and_chains_stay_short(
    delta: int, ratio: int | None
) -> None:
    simulated = Simulated(delta, None if ratio is None else delta * ratio, CONF)
    for version in range(1, 201):
        simulated.batch(version)
    amplification = simulated.written / (200 * (OVERHEAD + delta))
    print(
        f"\ndelta {delta:,}, state {'growing' if ratio is None else f'{ratio:,} times that'}: "
        f"write amplification {amplification:.1f}, at most {simulated.longest} segments"
    )
    assert amplification <= 8
    assert simulated.longest <= 13


def test_a_lagging_maintenance_still_bounds_the_chain() -> None:
    simulated = Simulated(MB, 100 * MB, CONF)
    for version in range(1, 201):
        simulated.chain = (ref(version, size=MB), *simulated.chain)
        simulated.longest = max(simulated.longest, len(simulated.chain))
        if len(simulated.chain) >= CONF.max_segments:
            simulated.batch(version)
    assert simulated.longest <= CONF.max_segments + 1


# That it changes nothing

SHAPE = StoreShape.of(parse_schema("k string, t long"), parse_schema("v long"), 1, 0)


class Partition:
    """A partition whose chain is built delta by delta, and merged where the test says."""

    def __init__(self) -> None:
        self.storage = MemoryStorage()
        self.cache = SegmentCache(self.storage, "", SHAPE.layout)
        self.entry = PartitionEntry(0, 1)
        self.version = 0
        self._attempts = 0

    @property
    def chain(self) -> Chain:
        return Chain(self.entry, self.version, self.cache)

    def commit(self, change: Any) -> int:
        """`change(writer)` makes the next version; how many keys of the last it removed."""
        writer = PartitionWriter(SHAPE, self.chain)
        change(writer)
        sealed = writer.seal()
        self.version += 1
        segments = self.entry.segments
        if sealed.pieces:
            made = self._next_attempt()
            delta = ref(self.version)
            with self.storage.open_writer(replace(delta, attempt=made).name) as blob:
                expires = any(piece.expires is not None for piece in sealed.pieces)
                segment = SegmentWriter(blob, SHAPE.layout, expires=expires)
                for piece in sealed.pieces:
                    segment.add(piece)
                info = segment.finish()
            segments = (replace(delta, attempt=made, info=info), *segments)
        self.entry = replace(
            self.entry,
            segments=segments,
            num_keys=sealed.num_keys,
            evict=sealed.bounds.evict,
            expire=sealed.bounds.expire,
        )
        return sealed.num_removed

    def merge(self, start: int, stop: int) -> Swap:
        todo = MergePlan(start, stop, "snapshot")
        done = merge(self.chain, todo, SHAPE, self.storage, "", self._next_attempt(), "none")
        self.entry = replace(self.entry, segments=swap_in(self.entry.segments, done))
        return done

    def _next_attempt(self) -> str:
        self._attempts += 1
        return attempt(self._attempts)

    def rows(self, **raised: int) -> dict[tuple[str, int], int]:
        """The state, seen through higher bounds when some are given."""
        reader = PartitionWriter(SHAPE, self.chain)
        reader.raise_bounds(**raised)
        found = {}
        for table in reader.tables():
            for row in table.to_pylist():
                assert (row["k"], row["t"]) not in found
                found[row["k"], row["t"]] = row["v"]
        return found


def partition_of(*versions: dict[str, int | None]) -> Partition:
    """A version for each dict of values by key; None removes one."""
    partition = Partition()
    for values in versions:

        def change(writer: PartitionWriter, values: dict[str, int | None] = values) -> None:
            for key, value in values.items():
                if value is None:
                    writer.remove((key, 0))
                else:
                    writer.put((key, 0), (value,))

        partition.commit(change)
    return partition


def values(partition: Partition) -> dict[str, int]:
    return {key: value for (key, _), value in partition.rows().items()}


def test_the_newest_value_of_a_key_survives_a_merge() -> None:
    partition = partition_of({"a": 1, "b": 1}, {"a": 2, "c": 2}, {"a": 3})
    partition.merge(0, 2)
    assert values(partition) == {"a": 3, "b": 1, "c": 2}
    assert [part.kind for part in partition.entry.segments] == ["merge", "delta"]


def test_a_merge_above_older_segments_keeps_tombstones() -> None:
    partition = partition_of({"a": 1, "b": 1}, {"a": None}, {"c": 1})
    done = partition.merge(0, 2)
    assert (done.output.kind, done.output.info.dead) == ("merge", 1)
    assert values(partition) == {"b": 1, "c": 1}


def test_a_merge_down_to_the_oldest_segment_drops_tombstones() -> None:
    partition = partition_of({"a": 1, "b": 1}, {"a": None}, {"c": 1})
    done = partition.merge(0, 3)
    assert (done.output.kind, done.output.info.dead) == ("snapshot", 0)
    assert done.output.info.rows == 2
    assert values(partition) == {"b": 1, "c": 1}


def test_everything_removed_leaves_an_empty_snapshot() -> None:
    partition = partition_of({"a": 1}, {"a": None})
    assert partition.merge(0, 2).output.info.rows == 0
    assert values(partition) == {}
    partition.commit(lambda writer: writer.put(("a", 0), (5,)))
    assert values(partition) == {"a": 5}


def test_an_expired_row_becomes_a_tombstone_while_an_older_one_is_below() -> None:
    partition = partition_of({"a": 1}, {"x": 1})
    partition.commit(lambda writer: writer.put(("a", 0), (2,), 1_000))
    partition.commit(lambda writer: (writer.put(("y", 0), (1,)), writer.raise_bounds(expire=1_000)))
    done = partition.merge(0, 2)
    assert done.output.info.dead == 1
    assert values(partition) == {"x": 1, "y": 1}, "the older a must not come back"
    partition.merge(0, len(partition.entry.segments))
    assert values(partition) == {"x": 1, "y": 1}


def test_a_row_that_expires_later_keeps_its_time_in_a_merge() -> None:
    partition = partition_of({"a": 1})
    partition.commit(lambda writer: writer.put(("a", 0), (2,), 1_000))
    partition.commit(lambda writer: writer.put(("b", 0), (3,)))
    partition.merge(0, 3)
    assert partition.rows(expire=999) == {("a", 0): 2, ("b", 0): 3}
    assert partition.rows(expire=1_000) == {("b", 0): 3}
    (snapshot,) = partition.entry.segments
    assert snapshot.info.zone.expires_min == 1_000
    assert snapshot.info.zone.expires_max == NEVER


def test_evicted_rows_go_with_the_next_merge() -> None:
    partition = Partition()
    partition.commit(lambda writer: [writer.put(("a", t), (t,)) for t in range(10)])
    partition.commit(lambda writer: (writer.put(("b", 9), (1,)), writer.raise_bounds(evict=6)))
    done = partition.merge(0, 2)
    assert done.output.info.rows == 4
    assert sorted(partition.rows()) == [("a", 7), ("a", 8), ("a", 9), ("b", 9)]


def test_a_merge_says_what_it_replaces_and_where_it_lies() -> None:
    partition = partition_of({"a": 1}, {"a": 2}, {"a": 3})
    before = partition.entry
    done = partition.merge(1, 3)
    assert done.inputs == tuple(part.name for part in before.segments[1:])
    assert (done.output.low, done.output.high) == (1, 2)
    where = output_path(before, MergePlan(1, 3, "snapshot"), "", done.output.attempt)
    assert where == done.output.path("")
    assert partition.storage.size(where) == done.output.info.size


def test_a_damaged_merge_is_merged_again_from_what_it_was_made_of() -> None:
    partition = partition_of({"a": 1}, {"a": 2, "b": 2}, {"c": 3})
    first = partition.merge(1, 3)
    partition.storage.delete(first.output.path(""))
    partition.cache = SegmentCache(partition.storage, "", SHAPE.layout)
    assert values(partition) == {"a": 2, "b": 2, "c": 3}
    again = partition.merge(0, 2)
    assert len(partition.entry.segments) == 1
    assert len(again.output.inputs) == 3
    assert values(partition) == {"a": 2, "b": 2, "c": 3}


KEYS = st.tuples(st.sampled_from("abcdef"), st.integers(0, 5))
CHANGES = st.lists(
    st.tuples(st.just("put"), KEYS, st.integers(0, 99), st.none() | st.integers(1, 20))
    | st.tuples(st.just("remove"), KEYS, st.none(), st.none()),
    max_size=8,
)
RAISED = st.none() | st.integers(0, 20)
VERSIONS = st.lists(st.tuples(CHANGES, RAISED, RAISED, st.booleans()), min_size=1, max_size=8)


class Oracle:
    """The same partition as a dict: the newest row of a key decides, then the bounds hide it."""

    def __init__(self) -> None:
        self.newest: dict[tuple[str, int], tuple[int | None, int | None]] = {}
        self.evict = self.expire = -1

    def apply(self, changes: Any, evict: int | None, expire: int | None) -> None:
        for what, key, value, expires in changes:
            self.newest[key] = (value, expires) if what == "put" else (None, None)
        self.evict = max(self.evict, -1 if evict is None else evict - 15)
        self.expire = max(self.expire, -1 if expire is None else expire)

    def removed(
        self, changes: Any, evict: int | None, expire: int | None, *, is_raised_first: bool
    ) -> int:
        """How many keys of the version so far `apply` would remove."""
        before, after = Oracle(), Oracle()
        for each in (before, after):
            each.newest, each.evict, each.expire = dict(self.newest), self.evict, self.expire
        hidden = 0
        if is_raised_first:
            before.apply([], evict, expire)
            hidden = len(self.rows()) - len(before.rows())
        after.apply(changes, evict, expire)
        return hidden + len(before.rows().keys() - after.rows().keys())

    def rows(self, evict: int = -1, expire: int = -1) -> dict[tuple[str, int], int]:
        evict, expire = max(evict, self.evict), max(expire, self.expire)
        return {
            key: value
            for key, (value, expires) in self.newest.items()
            if value is not None and key[1] > evict and (expires is None or expires > expire)
        }


def raise_bounds(writer: PartitionWriter, evict: int | None, expire: int | None) -> None:
    if evict is not None and evict >= 15:
        writer.raise_bounds(evict=evict - 15)
    if expire is not None:
        writer.raise_bounds(expire=expire)


@settings(max_examples=150)
@given(VERSIONS, st.randoms(use_true_random=False))
def test_merges_anywhere_leave_the_state_as_a_dict_has_it(versions: Any, random: Random) -> None:
    partition, oracle = Partition(), Oracle()
    for changes, evict, expire, is_raised_first in versions:

        def change(
            writer: PartitionWriter,
            changes: Any = changes,
            evict: Any = evict,
            expire: Any = expire,
            is_raised_first: bool = is_raised_first,
        ) -> None:
            if is_raised_first:
                raise_bounds(writer, evict, expire)
            for what, key, value, expires in changes:
                if what == "put":
                    writer.put(key, (value,), expires)
                else:
                    writer.remove(key)
            if not is_raised_first:
                raise_bounds(writer, evict, expire)

        gone = oracle.removed(changes, evict, expire, is_raised_first=is_raised_first)
        assert partition.commit(change) == gone
        oracle.apply(changes, evict, expire)
        for _ in range(random.randrange(3)):
            length = len(partition.entry.segments)
            if length >= 2:
                start = random.randrange(length - 1)
                partition.merge(start, random.randrange(start + 1, length) + 1)
                assert len(partition.entry.segments) < length
        assert partition.rows() == oracle.rows()
        assert partition.entry.num_keys == len(oracle.rows())
        assert partition.rows(evict=3, expire=15) == oracle.rows(evict=3, expire=15)


def test_a_long_chain_merges_to_what_reading_through_it_shows() -> None:
    random = Random(7)
    versions = [
        {str(random.randrange(2_000)): random.choice([None, v]) for _ in range(300)}
        for v in range(12)
    ]
    partition = partition_of(*versions)
    expected = values(partition)
    for start, stop in splits(len(partition.entry.segments), random):
        partition.merge(start, stop)
        assert values(partition) == expected
    reader = PartitionReader(SHAPE, partition.chain)
    for key in random.sample(sorted(expected), 50):
        assert reader.get((key, 0)) == (expected[key],)


def splits(length: int, random: Random) -> Iterator[tuple[int, int]]:
    while length > 1:
        start = random.randrange(length - 1)
        stop = random.randrange(start + 2, length + 1)
        yield start, stop
        length -= stop - start - 1
