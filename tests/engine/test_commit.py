"""The rules of a commit, one by one."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_manifests import OPERATOR, SCHEMAS, STORE, manifest, prepared, ref, swap

from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest, PartitionEntry
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.commit import (
    PreparedPartition,
    Swap,
    Verdict,
    check_prepared,
    fits,
    higher,
    is_stray,
    is_within,
    judge_create,
    may_have_aged,
    next_operators,
    still_newest,
    swap_in,
)
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import IllegalState

EXPECTED = {(OPERATOR, STORE): SCHEMAS}


@pytest.mark.parametrize(
    ("created", "existing", "verdict"),
    [
        (True, None, Verdict.COMMITTED),
        (False, "mine", Verdict.COMMITTED),
        (False, "theirs", Verdict.CONFLICT),
        (False, None, Verdict.RETRY),
        (None, "mine", Verdict.COMMITTED),
        (None, "theirs", Verdict.CONFLICT),
        (None, None, Verdict.RETRY),
    ],
)
def test_a_create_is_judged_by_its_answer_and_by_what_is_there(
    created: bool | None, existing: str | None, verdict: Verdict
) -> None:
    assert judge_create(created, existing, "mine") is verdict


@pytest.mark.parametrize(
    ("waited_ms", "aged"), [(0, False), (49, False), (50, True), (1_000, True), (None, True)]
)
def test_half_the_grace_period_is_safe(waited_ms: int | None, aged: bool) -> None:
    assert may_have_aged(waited_ms, 100) is aged


def test_without_grace_every_commit_looks_again() -> None:
    assert may_have_aged(0, 0)


@pytest.mark.parametrize(
    ("newest", "next_parent", "verdict"),
    [
        (None, None, Verdict.COMMITTED),
        (4, None, Verdict.COMMITTED),
        (5, None, Verdict.COMMITTED),
        (6, "mine", Verdict.COMMITTED),
        (9, "mine", Verdict.COMMITTED),
        (6, "theirs", Verdict.CONFLICT),
        (9, None, Verdict.CONFLICT),
    ],
)
def test_a_late_version_counts_when_the_next_was_built_on_it(
    newest: int | None, next_parent: str | None, verdict: Verdict
) -> None:
    assert still_newest(Verdict.COMMITTED, 5, "mine", newest, next_parent) is verdict


@pytest.mark.parametrize("verdict", [Verdict.CONFLICT, Verdict.RETRY])
def test_looking_again_never_improves_a_verdict(verdict: Verdict) -> None:
    assert still_newest(verdict, 5, "mine", 5, None) is verdict
    assert still_newest(verdict, 5, "mine", 6, "mine") is verdict


def test_only_a_version_that_surely_lost_is_taken_back() -> None:
    assert is_stray("mine", "theirs")
    assert not is_stray("mine", "mine")
    assert not is_stray("mine", None)


def test_one_row_for_each_partition_is_accepted() -> None:
    check_prepared(manifest(4, [(), ()]), [prepared(1, 4), prepared(0, 4)], EXPECTED)


BASE = manifest(4, [(), ()])
GOOD = [prepared(0, 4), prepared(1, 4)]
WHERE = "operator 0, store 'default', partition"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([*GOOD, prepared(2, 4)], f"Version 4 has no {WHERE} 2: nothing was committed."),
        ([*GOOD, prepared(0, 4, store="x")], "has no operator 0, store 'x', partition 0"),
        ([*GOOD, prepared(1, 4)], f"Two results for {WHERE} 1: nothing was committed."),
        (
            [GOOD[0], prepared(1, 3)],
            f"The result for {WHERE} 1 is based on version 3, not on 4: nothing was committed.",
        ),
        (
            [GOOD[0], prepared(1, 4, schemas="other")],
            f"The result for {WHERE} 1 has another schema than the store: nothing was committed.",
        ),
        ([GOOD[1]], f"1 partitions have no result; the first is {WHERE} 0. Nothing was committed."),
        ([], f"2 partitions have no result; the first is {WHERE} 0. Nothing was committed."),
    ],
)
def test_a_result_that_does_not_fit_is_refused_by_name(
    rows: list[PreparedPartition], message: str
) -> None:
    with pytest.raises(IllegalState) as refused:
        check_prepared(BASE, rows, EXPECTED)
    assert message in str(refused.value)


def next_entry(base: Manifest, row: PreparedPartition, present: Any = None) -> PartitionEntry:
    (entry,) = next_operators(base, [row], present)[OPERATOR][STORE].partitions
    return entry


def test_the_delta_goes_in_front() -> None:
    base = manifest(1, [[ref(1)]])
    row = prepared(0, 1, num_keys=7)
    entry = next_entry(base, row)
    assert entry.segments == (ref(2), ref(1))
    assert entry.num_keys == 7


def test_a_commit_without_changes_keeps_the_chain() -> None:
    base = manifest(1, [[ref(1)]])
    assert next_entry(base, prepared(0, 1, delta=None)).segments == (ref(1),)


def test_each_partition_gets_its_own_row() -> None:
    base = manifest(1, [[ref(1, number=1)], [ref(1, number=2)]])
    rows = [prepared(1, 1, delta=ref(2, number=12)), prepared(0, 1, delta=ref(2, number=11))]
    entries = next_operators(base, rows)[OPERATOR][STORE].partitions
    assert [entry.segments[0] for entry in entries] == [ref(2, number=11), ref(2, number=12)]


def test_a_swap_goes_in_only_while_its_file_exists() -> None:
    chain = [ref(2), ref(1)]
    done = swap(chain, "snapshot")
    base = manifest(2, [chain])
    row = prepared(0, 2, swaps=(done,))
    path = done.output.path(base.directory(OPERATOR, STORE, 0))
    assert next_entry(base, row, {path}).segments[1].name == done.output.name
    assert next_entry(base, row, set()).segments[1:] == tuple(chain)


class Server(MemoryStorage):
    """Answers when four have asked."""

    is_remote = True

    def __init__(self) -> None:
        super().__init__()
        self._all_asked = threading.Barrier(4)

    def size(self, path: str) -> int | None:
        self._all_asked.wait(60)
        return super().size(path)


def test_a_server_is_asked_for_the_files_of_a_version_side_by_side() -> None:
    server, runtime = Server(), Runtime.system()
    for path in ("a", "c"):
        server.write(path, b"rows")
    committer = Committer(VersionLog(server, runtime), runtime, StateStoreConf.empty)
    assert committer._there(["a", "b", "c", "d"]) == {"a", "c"}


def test_bounds_never_step_back() -> None:
    base = manifest(1, [[]])
    store = base.operators[OPERATOR][STORE]
    entry = replace(store.partitions[0], evict=10, expire=None)
    base = replace(base, operators={OPERATOR: {STORE: replace(store, partitions=(entry,))}})
    after = next_entry(base, prepared(0, 1, evict=5, expire=3))
    assert (after.evict, after.expire) == (10, 3)


CHAIN = (ref(5), ref(4), ref(3), ref(2, 1, "snapshot"))


@pytest.mark.parametrize(("start", "stop"), [(0, 2), (1, 3), (2, 4), (0, 4), (1, 2)])
def test_a_swap_replaces_its_neighbours_and_keeps_them_to_fall_back_on(
    start: int, stop: int
) -> None:
    done = swap(CHAIN[start:stop])
    swapped = swap_in(CHAIN, done)
    assert [part.name for part in swapped] == [
        *(part.name for part in CHAIN[:start]),
        done.output.name,
        *(part.name for part in CHAIN[stop:]),
    ]
    assert swapped[start].inputs == CHAIN[start:stop]
    assert fits(CHAIN, done)


@pytest.mark.parametrize(
    "inputs",
    [
        (ref(5), ref(3)),
        (ref(4), ref(5)),
        (ref(6), ref(5)),
        (ref(2, 1, "snapshot"), ref(0)),
        (ref(5, number=1), ref(4, number=1)),
    ],
    ids=["a gap", "another order", "one before", "one after", "another attempt"],
)
def test_a_swap_whose_inputs_do_not_stand_side_by_side_changes_nothing(inputs: Any) -> None:
    done = swap(inputs)
    assert swap_in(CHAIN, done) == CHAIN
    assert not fits(CHAIN, done)


def test_a_swap_fits_behind_newer_deltas_but_not_twice() -> None:
    done = swap(CHAIN[:2])
    grown = (ref(7), ref(6), *CHAIN)
    once = swap_in(grown, done)
    assert [part.high for part in once] == [7, 6, 5, 3, 2]
    assert swap_in(once, done) == once


def test_what_a_merge_was_made_of_is_forgotten_with_the_next_merge() -> None:
    first = swap(CHAIN[:2], number=50)
    once = swap_in(CHAIN, first)
    twice = swap_in(once, swap(once[:2], number=51))
    assert [part.name for part in twice[0].inputs] == [once[0].name, once[1].name]
    assert all(not part.inputs for part in twice[0].inputs)


def test_segments_that_were_read_instead_of_a_damaged_one_are_what_is_kept() -> None:
    merged = swap_in(CHAIN, swap(CHAIN[:2], number=50))
    read = (*merged[0].inputs, merged[1])
    done = swap(merged[:2], number=51)
    done = Swap(done.inputs, replace(done.output, inputs=read))
    assert swap_in(merged, done)[0].inputs == read


@pytest.mark.parametrize(
    ("made_with", "bounds", "fine"),
    [
        ((None, None), (None, None), True),
        ((None, None), (5, 5), True),
        ((5, 7), (5, 7), True),
        ((5, 7), (6, 8), True),
        ((5, None), (4, 9), False),
        ((5, None), (None, 9), False),
        ((None, 7), (9, 6), False),
        ((None, 7), (9, None), False),
    ],
)
def test_a_swap_that_may_lack_rows_above_the_bounds_is_left_out(
    made_with: tuple[Any, Any], bounds: tuple[Any, Any], fine: bool
) -> None:
    done = replace(swap([ref(1)]), evict=made_with[0], expire=made_with[1])
    assert is_within(done, *bounds) == fine
    plain = manifest(1, [[ref(1)]])
    store = plain.operators[OPERATOR][STORE]
    bounded = PartitionEntry(0, 1, (ref(1),), 1, *bounds)
    base = replace(plain, operators={OPERATOR: {STORE: replace(store, partitions=(bounded,))}})
    after = next_entry(base, prepared(0, 1, swaps=(done,)))
    assert (done.output.name in [part.name for part in after.segments]) == fine
    if made_with != (None, None) and not fine:
        raised = prepared(0, 1, swaps=(done,), evict=made_with[0], expire=made_with[1])
        assert done.output.name in [part.name for part in next_entry(base, raised).segments]


def test_no_chain_takes_a_swap() -> None:
    assert swap_in((), swap([ref(1)])) == ()


@given(st.none() | st.integers(), st.none() | st.integers())
def test_the_higher_bound_wins_and_any_bound_beats_none(
    left: int | None, right: int | None
) -> None:
    known = [bound for bound in (left, right) if bound is not None]
    assert higher(left, right) == (max(known) if known else None)
