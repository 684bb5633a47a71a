"""Random lives of a store next to a dict that knows every version."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from oracle import FakeTime, State, contents, keys_of, normal, table_of
from seeds import budget, seed_of

from holdfast.admin import clean_up as clean_up_module
from holdfast.admin import compact, gc
from holdfast.admin import compaction as compaction_module
from holdfast.admin.rollback import plan_rollback
from holdfast.admin.site import Site
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files import segment_writer
from holdfast.engine.hashing.spark_hash import Hashes, KeyHasher
from holdfast.engine.partition import shape
from holdfast.engine.storage import Storage
from holdfast.engine.versions import compaction
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Conflict, IllegalState, InvalidArgument, VersionNotFound
from holdfast.ids import StateStoreId
from holdfast.reading import Root
from holdfast.testing.faults import Call, Fault, FaultyStorage
from holdfast.types import parse_schema

KEY, VALUE = "p string, t long, f double", "v long, s string"
KEEP, GRACE_MS = 3, 1000

# Few enough that steps meet on the same key.
P, T, F = ["a", "", None], [-(2**63), 0, 7, None], [math.nan, -0.0, 0.0, None]
V, S = [0, 1, -5, 2**63 - 1, None], ["", "x", "long" * 9, None]
EXPIRIES = [None, None, 5, 10, 20, 2**62]
BOUNDS, TIMES = [-(2**63), -1, 0, 3], [0, 5, 12, 20, 50]
keys = st.tuples(st.sampled_from(P), st.sampled_from(T), st.sampled_from(F))
values = st.tuples(st.sampled_from(V), st.sampled_from(S))
seeds = st.integers(0, 2**32)


NAMES = [
    *["put", "get", "count", "remove", "put_many", "remove_many", "update_many", "evict", "expire"],
    *["get_many", "scan", "ranged", "prefix", "iterate_while_updating", "look_back"],
]


class Draw:
    """Random changes and reads. Hypothesis draws the seed: by itself it repeats itself too much
    to meet what takes several steps on one key.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.focus = self._any_key()

    def key(self) -> Any:
        return self.focus if self.rng.random() < 0.5 else self._any_key()

    def _any_key(self) -> Any:
        return (self.rng.choice(P), self.rng.choice(T), self.rng.choice(F))

    def keys(self, most: int) -> list[Any]:
        return [self.key() for _ in range(self.rng.randint(0, most))]

    def value(self) -> Any:
        return (self.rng.choice(V), self.rng.choice(S))

    def rows(self, most: int) -> list[Any]:
        return [(key, self.value(), self.rng.choice(EXPIRIES)) for key in self.keys(most)]

    def updates(self) -> list[Any]:
        distinct = {normal(key): key for key in self.keys(12)}.values()
        return [(key, self.value(), self.rng.random() < 0.3, None) for key in distinct]

    def step(self) -> tuple[Any, ...]:
        choice, rng = self.rng.choice, self.rng
        name = choice([*["put", "get", "count"] * 2, *NAMES])
        arguments: dict[str, Callable[[], tuple[Any, ...]]] = {
            "put": lambda: (self.key(), self.value(), choice(EXPIRIES)),
            "get": lambda: (self.key(),),
            "count": lambda: (self.key(),),
            "remove": lambda: (self.key(),),
            "put_many": lambda: (self.rows(30), rng.random() < 0.5),
            "remove_many": lambda: (self.keys(8),),
            "update_many": lambda: (self.updates(),),
            "evict": lambda: (choice(BOUNDS),),
            "expire": lambda: (choice(TIMES),),
            "get_many": lambda: (self.keys(12),),
            "ranged": lambda: (choice([None, *BOUNDS]), choice([None, *BOUNDS])),
            "prefix": lambda: (choice([*P, "zz"]),),
            "iterate_while_updating": lambda: (self.key(), self.value()),
            "look_back": lambda: (rng.randint(0, 20),),
        }
        return (name, *arguments.get(name, tuple)())


class Colliding(KeyHasher):
    """The hasher with most of its bits thrown away, so that different keys collide."""

    def __init__(self, schema: Any, num_routing: int) -> None:
        super().__init__(schema, num_routing)
        self.hash_row = lambda row: int(self._crush(np.array([self._hash_row_slowly_true(row)]))[0])

    def hash_columns(self, columns: Any, num_rows: int | None = None) -> Hashes:
        return self._crush(super().hash_columns(columns, num_rows))

    def _hash_row_slowly_true(self, row: Any) -> int:
        return int(KeyHasher.hash_columns(self, self._codec.to_arrow([row]), 1)[0])

    @staticmethod
    def _crush(hashes: Hashes) -> Hashes:
        return ((hashes >> 32) % 3 - 1 << 32) | (hashes & 1)


class Life(RuleBasedStateMachine):
    """A writer, its storage and the oracle."""

    tags = Bundle("tags")

    @initialize(
        collide=st.booleans(),
        retained=st.sampled_from([0, 1, 2]),
        threshold=st.sampled_from([0, 3000, 1 << 18]),
        compression=st.sampled_from(["none", "lz4", "zstd"]),
        fanout=st.sampled_from([2, 2, 4]),
        limit=st.sampled_from([24, 24, 2]),
        past=st.lists(seeds, max_size=9),
        maintained=st.sampled_from([True, True, False]),
        chunk_rows=st.sampled_from([3, 128 << 10]),
        tier_bytes=st.sampled_from([4000, 4000, 64 << 10]),
        due=st.sampled_from([100, 100, 3]),
        ground=st.sampled_from([True, True, False]),
    )
    def start(
        self,
        collide: bool,
        retained: int,
        threshold: int,
        compression: str,
        fanout: int,
        limit: int,
        past: list[int],
        maintained: bool,
        chunk_rows: int,
        tier_bytes: int,
        due: int,
        ground: bool,
    ) -> None:
        # Small chunks, blocks and tiers, so that a few rows meet every seam there is.
        self.patches = ExitStack()
        for module, name, small in (
            (shape, "KeyHasher", Colliding if collide else KeyHasher),
            (segment_writer, "CHUNK_ROWS", chunk_rows),
            (segment_writer, "BLOCK_BYTES", 512),
            (compaction, "_SMALLEST_TIER_BYTES", tier_bytes),
        ):
            self.patches.enter_context(mock.patch.object(module, name, small))
        self.conf = StateStoreConf(
            min_deltas_for_snapshot=due,
            min_versions_to_retain=KEEP,
            max_versions_to_retain_in_memory=retained,
            pack_threshold_bytes=threshold,
            compression=compression,
            merge_fanout=fanout,
            max_segments=limit,
            grace_period_ms=GRACE_MS,
        )
        self.time = FakeTime()
        self.inner = self.new_storage()
        self.storage = FaultyStorage(self.inner)
        self.history: dict[int, State] = {0: State()}
        self.named: dict[str, int] = {}
        self.returns: list[int] = []
        self.provider = self.new_provider()
        self.begin()
        if ground:  # a large oldest segment, so that there are merges that do not reach it
            every = itertools.product(["a", "", None], [0, 7, None], [math.nan, 0.0, None])
            self.put_many([(key, (1, "ground" * 50), None) for key in every], False)
            self.commit(False)
        for seed in past:
            self.put_many(Draw(seed).rows(6), True)
            self.commit(False)
            if maintained:
                self.snapshot()

    def teardown(self) -> None:
        if hasattr(self, "patches"):
            self.patches.close()

    def new_storage(self) -> Storage:
        """An empty one for each life."""
        return MemoryStorage()

    def new_provider(self) -> HDFSBackedStateStoreProvider:
        provider = HDFSBackedStateStoreProvider(runtime=self.time.runtime(), storage=self.storage)
        store_id = StateStoreId("memory://", 0, 0)
        provider.init(store_id, parse_schema(KEY), parse_schema(VALUE), 1, 1, self.conf)
        return provider

    @property
    def newest(self) -> int:
        return max(self.history)

    def begin(self) -> None:
        self.state = self.history[self.newest]
        self.store = self.provider.get_store(self.newest)

    @rule(seed=seeds)
    def work(self, seed: int) -> None:
        draw = Draw(seed)
        for _ in range(draw.rng.randint(0, 12)):
            name, *arguments = draw.step()
            note(f"  {name}{tuple(arguments)}")
            getattr(self, name)(*arguments)

    # Changes

    def put(self, key: Any, value: Any, expires: int | None) -> None:
        self.store.put(key, value, expires_ms=expires)
        self.state = self.state.put(key, value, expires)

    def remove(self, key: Any) -> None:
        self.store.remove(key)
        self.state = self.state.remove(key)

    def put_many(self, rows: list[Any], expiring: bool) -> None:
        table = table_of(KEY, VALUE, [(key, value) for key, value, _ in rows])
        if expiring:
            table = table.append_column("_expires", pa.array([row[2] for row in rows], pa.int64()))
        self.store.put_many(table)
        for key, value, expires in rows:
            self.state = self.state.put(key, value, expires if expiring else None)

    def remove_many(self, gone: list[Any]) -> None:
        self.store.remove_many(keys_of(KEY, gone))
        for key in gone:
            self.state = self.state.remove(key)

    def update_many(self, rows: list[Any]) -> None:
        expected = self.state.visible()
        plan = {normal(row[0]): row for row in rows}

        def change(mine: pa.Table, found: pa.Table) -> pa.Table:
            asked = [
                normal(tuple(row.values())) for row in mine.select(["p", "t", "f"]).to_pylist()
            ]
            for key, row in zip(asked, found.to_pylist(), strict=True):
                assert row["_found"] == (key in expected)
                assert (row["v"], row["s"]) == expected.get(key, (None, None))
            chosen = [plan[key] for key in asked]
            return pa.table(
                {
                    "v": pa.array([row[1][0] for row in chosen], pa.int64()),
                    "s": pa.array([row[1][1] for row in chosen], pa.string()),
                    "_dead": pa.array([row[2] for row in chosen], pa.bool_()),
                    "_expires": pa.array([row[3] for row in chosen], pa.int64()),
                }
            )

        self.store.update_many(keys_of(KEY, [row[0] for row in rows]), change)
        for key, value, dead, expires in rows:
            self.state = self.state.remove(key) if dead else self.state.put(key, value, expires)

    def evict(self, upto: int) -> None:
        before = len(self.state.visible())
        self.state = self.state.evicted(upto)
        assert self.store.evict(upto) == before - len(self.state.visible())

    def expire(self, now: int) -> None:
        before = len(self.state.visible())
        self.state = self.state.expired(now)
        assert self.store.expire(now) == before - len(self.state.visible())

    # Reads

    def get(self, key: Any) -> None:
        assert self.store.get(key) == self.state.visible().get(normal(key))

    def get_many(self, wanted: list[Any]) -> None:
        self.compare_many(self.store, self.state, wanted)

    def compare_many(self, store: Any, state: State, wanted: list[Any]) -> None:
        expected = state.visible()
        found = store.get_many(keys_of(KEY, wanted)).to_pylist()
        for key, row in zip(wanted, found, strict=True):
            assert row["_found"] == (normal(key) in expected)
            assert (row["v"], row["s"]) == expected.get(normal(key), (None, None))

    def scan(self) -> None:
        found = self.store.scan().to_pylist()
        pairs = {normal((row["p"], row["t"], row["f"])): (row["v"], row["s"]) for row in found}
        assert pairs == self.state.visible()
        assert len(found) == len(pairs)

    def ranged(self, low: int | None, high: int | None) -> None:
        found = {normal(key): value for key, value in self.store.get_range(low, high)}
        expected = {
            key: value
            for key, value in self.state.visible().items()
            if (low is None and high is None)
            or (
                key[1] is not None
                and (low is None or key[1] >= low)
                and (high is None or key[1] <= high)
            )
        }
        assert found == expected

    def prefix(self, prefix: str | None) -> None:
        found = {normal(key): value for key, value in self.store.prefix_scan((prefix,))}
        expected = {k: v for k, v in self.state.visible().items() if k[0] == prefix}
        assert found == expected

    def iterate_while_updating(self, key: Any, value: Any) -> None:
        before = self.state.visible()
        running = self.store.iterator()
        self.put(key, value, None)
        assert {normal(k): v for k, v in running} == before

    def count(self, key: Any) -> None:
        self.get(key)
        self.put(key, (1, "counted"), None)
        assert self.store.metrics.num_keys == len(self.state.visible())
        self.get(key)

    def look_back(self, choice: int) -> None:
        self.compare_version(sorted(self.history)[choice % len(self.history)])

    def compare_version(self, version: int) -> None:
        state = self.history[version]
        store = self.provider.get_read_store(version)
        assert contents(store) == state.visible()
        assert store.metrics.num_keys == len(state.visible())
        wanted = [row[0] for row in state.rows.values()]
        self.compare_many(store, state, wanted)
        for key in wanted[:3]:
            assert store.get(key) == state.visible().get(normal(key))

    # The life of versions

    @rule(seed=seeds)
    def batch(self, seed: int) -> None:
        draw = Draw(seed)
        self.put_many(draw.rows(4), True)
        self.remove_many(draw.keys(3))
        self.commit(False)
        self.snapshot()
        self.compare_version(self.newest)

    @rule(seed=seeds, lost=st.booleans())
    def work_and_commit(self, seed: int, lost: bool) -> None:
        self.work(seed)
        self.commit(lost)

    def commit(self, lost: bool) -> None:
        with self.losing_replies() if lost else no_faults():
            assert self.store.commit() == self.newest + 1
        self.history[self.newest + 1] = self.state
        self.begin()
        if lost:
            self.compare_version(self.newest)

    @contextmanager
    def losing_replies(self) -> Iterator[None]:
        """The answer to the next create_if_absent is lost."""
        answers = iter([Fault.LOST_REPLY])

        def plan(call: Call) -> Fault | None:
            return next(answers, None) if call.operation == "create_if_absent" else None

        self.storage.plan = plan
        try:
            yield
        finally:
            self.storage.plan = lambda call: None

    @rule(seed=seeds, when=st.sampled_from(["write", "close", "open_writer", "create_if_absent"]))
    def commit_fails_and_is_tried_again(self, seed: int, when: str) -> None:
        self.work(seed)
        answers = iter([Fault.ERROR] * (4 if when == "create_if_absent" else 1))
        self.storage.plan = lambda call: next(answers, None) if call.operation == when else None
        try:
            self.store.commit()
        except IllegalState:
            self.storage.plan = lambda call: None
            self.store.commit()
        self.storage.plan = lambda call: None
        self.history[self.newest + 1] = self.state
        self.begin()

    @rule(seed=seeds)
    def work_and_abort(self, seed: int) -> None:
        self.work(seed)
        self.store.abort()
        self.begin()

    @rule()
    def reopen(self) -> None:
        self.provider.close()
        self.provider = self.new_provider()
        self.begin()

    @rule()
    def snapshot(self) -> None:
        self.provider.do_snapshot()

    @rule(later=st.sampled_from([0, GRACE_MS, 10 * GRACE_MS]))
    def clean(self, later: int) -> None:
        self.time.now_ms += later
        self.provider.cleanup()
        self.forget_removed(KEEP)

    def forget_removed(self, keep: int) -> None:
        log = VersionLog(self.inner, self.time.runtime())
        there = set(log.versions())
        kept = set(sorted(self.history)[-keep:]) | set(self.named.values())
        assert kept - {0} <= there
        for version in there:
            lineage = sum(made <= version for made in self.returns)
            assert log.load(version).lineage == lineage
        self.history = {
            v: s for v, s in self.history.items() if v in there or v in (0, self.newest)
        }

    @rule(target=tags, name=st.sampled_from(["x", "y", "z"]), data=st.data())
    def tag(self, name: str, data: st.DataObject) -> str:
        choices = [v for v in sorted(self.history) if v > 0]
        if choices:
            version = data.draw(st.sampled_from(choices))
            log = VersionLog(self.storage, self.time.runtime())
            if self.named.get(name, version) != version:
                with pytest.raises(InvalidArgument):
                    log.tag(name, version)
            elif self.was_let_go(version):
                with pytest.raises(VersionNotFound):
                    log.tag(name, version)
            else:
                log.tag(name, version)
                self.named[name] = version
            assert log.tags() == self.named
        return name

    # Operations from outside

    def site(self) -> Site:
        return Site(Root(self.storage), self.time.runtime(), None)

    @precondition(lambda self: len(self.history) > 2)
    @rule(seed=seeds, data=st.data())
    def roll_back(self, seed: int, data: st.DataObject) -> None:
        """History goes back, and the next version follows on the one that it went back to."""
        there = VersionLog(self.inner, self.time.runtime()).versions()
        choices = [v for v in sorted(self.history) if v in there and v != self.newest]
        if not choices:
            return
        to = data.draw(st.sampled_from(choices))
        self.work(seed)
        if self.was_let_go(to):
            with pytest.raises(VersionNotFound):
                plan_rollback(self.site(), to).run()
            return
        self.go_back(to)

    @rule(seed=seeds, bound=st.sampled_from(BOUNDS), moment=st.sampled_from(TIMES))
    def go_back_below_bounds_that_a_merge_was_made_with(
        self, seed: int, bound: int, moment: int
    ) -> None:
        """The merge waits when history goes back, and its inputs are side by side again."""
        draw = Draw(seed)
        self.put_many(draw.rows(12), True)
        self.commit(False)
        to = self.newest
        self.evict(bound)
        self.expire(moment)
        self.commit(False)
        self.provider.do_snapshot(force=True)
        self.go_back(to)
        self.put(draw.key(), draw.value(), None)
        self.commit(False)
        self.compare_version(self.newest)

    def go_back(self, to: int) -> None:
        made = plan_rollback(self.site(), to).run().version
        assert made == self.newest + 1
        with pytest.raises(IllegalState) as caught:
            self.store.commit()
        assert isinstance(caught.value.__cause__, Conflict)
        self.store.abort()
        self.history[made] = self.history[to]
        self.returns.append(made)
        self.begin()
        self.compare_version(made)

    @precondition(lambda self: self.newest > 0)
    @rule(seed=seeds)
    def compact(self, seed: int) -> None:
        self.work(seed)
        with mock.patch.object(compaction_module, "open_site", return_value=self.site()):
            plan = compact("")
        if plan.is_void:
            return
        assert plan.run().version == self.newest + 1
        with pytest.raises(IllegalState):
            self.store.commit()
        self.store.abort()
        self.history[self.newest + 1] = self.history[self.newest]
        self.begin()
        self.compare_version(self.newest)

    @precondition(lambda self: self.newest > 0)
    @rule(later=st.sampled_from([0, GRACE_MS, 10 * GRACE_MS]), keep=st.sampled_from([None, 2]))
    def clean_from_outside(self, later: int, keep: int | None) -> None:
        """What it leaves reads as before, and what the writer has prepared can be committed."""
        self.time.now_ms += later
        with mock.patch.object(clean_up_module, "open_site", return_value=self.site()):
            gc("", keep=keep).run()
        self.forget_removed(2 if keep else KEEP)

    def was_let_go(self, version: int) -> bool:
        """Whether only a tag kept a version, and it was removed: the next clean-up takes it."""
        there = VersionLog(self.inner, self.time.runtime()).versions()
        kept = version in self.named.values() or version + 1 in there
        return version != self.newest and not kept

    @rule(name=tags)
    def untag(self, name: str) -> None:
        log = VersionLog(self.storage, self.time.runtime())
        if self.named.pop(name, None) is None:
            with pytest.raises(InvalidArgument):
                log.untag(name)
        else:
            log.untag(name)

    @rule(seed=seeds, key=keys, value=values)
    def second_writer(self, seed: int, key: Any, value: Any) -> None:
        self.work(seed)
        other = self.new_provider()
        theirs = other.get_store(self.newest)
        theirs.put(key, value)
        theirs.commit()
        with pytest.raises(IllegalState) as caught:
            self.store.commit()
        assert isinstance(caught.value.__cause__, Conflict)
        self.store.abort()
        self.history[self.newest + 1] = self.history[self.newest].put(key, value)
        self.begin()

    @precondition(lambda self: any(v + 1 not in self.history for v in self.history))
    @rule(data=st.data())
    def commit_on_an_old_version(self, data: st.DataObject) -> None:
        choices = [v for v in sorted(self.history) if v != self.newest]
        if not choices:
            return
        version = data.draw(st.sampled_from(choices))
        store = self.provider.get_store(version)
        store.put(("late", 1, 1.0), (1, "late"))
        with pytest.raises(IllegalState) as caught:
            store.commit()
        assert isinstance(caught.value.__cause__, Conflict)
        with pytest.raises(VersionNotFound):
            self.provider.get_read_store(self.newest + 1)


@contextmanager
def no_faults() -> Iterator[None]:
    yield


_LIVES = 10
"""How many lives are looked at between two looks at the clock."""


def live(machine: type[Life], seed: int, lives: int, steps: int) -> None:
    run_state_machine_as_test(
        with_seed(seed)(machine),
        settings=settings(
            max_examples=lives,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def run_lives(seconds: int, steps: int) -> None:
    first = seed_of("state machine")
    until = time.monotonic() + seconds
    for number in itertools.count():
        live(Life, first + number, _LIVES, steps)
        if time.monotonic() >= until:
            break
    print(f"state machine: {(number + 1) * _LIVES} lives of up to {steps} steps in {seconds} s")


def test_any_life_of_a_store_equals_its_oracle() -> None:
    run_lives(budget("HOLDFAST_SECONDS", 20), steps=20)


@pytest.mark.soak
def test_many_long_lives_equal_their_oracle() -> None:
    run_lives(budget("HOLDFAST_SOAK_SECONDS", 900), steps=40)
