"""The rules of one version, held to what Spark's engine does with batches without data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.first import first_version
from holdfast.streams.outbox import Emission
from holdfast.streams.tasks.task import TaskResult
from holdfast.streams.version import (
    Observation,
    Schedule,
    VersionStep,
    initial_facts,
    rewrite_facts,
)
from holdfast.streams.watermark import Watermarks

BATCH = {"id": 0, "query_id": "q", "offsets": "o"}
IDLE, BUSY = TaskResult(()), TaskResult((), removed=1)


def base(**facts: Any) -> Manifest:
    return first_version({}, Runtime.system(), **facts)


def marked(**marks: Any) -> Manifest:
    return base(watermark=Watermarks(**marks).json())


def schedule(**given: bool) -> Schedule:
    return Schedule.starting(**{"by_clock": False, "follows_watermark": False, **given})


def committed(before: Manifest, facts: dict[str, Any]) -> Manifest:
    return replace(before, version=before.version + 1, **facts)


def test_a_batch_runs_with_the_watermark_that_the_one_before_has_brought_about() -> None:
    step = schedule().step(marked(evict_ms=5, next_ms=9), BATCH, 100)
    assert (step.marks.late_ms, step.marks.evict_ms, step.marks.clock_ms) == (5, 9, 100)


def test_the_watermark_does_not_move_in_a_tick_before_the_first_batch_of_a_run() -> None:
    step = schedule(by_clock=True).step(marked(evict_ms=5, next_ms=9), None, 100)
    assert (step.marks.evict_ms, step.marks.clock_ms) == (5, 100)
    step = schedule(by_clock=True).begun().step(marked(evict_ms=5, next_ms=9), None, 100)
    assert step.marks.evict_ms == 9


def test_a_tick_is_due_by_the_watermark_only_once_the_run_has_had_a_batch() -> None:
    follows, moved = schedule(follows_watermark=True), marked(evict_ms=5, next_ms=9)
    assert not follows.is_due(moved, until_ms=1 << 60)
    assert follows.begun().is_due(moved, until_ms=0)
    assert not follows.begun().is_due(marked(evict_ms=9, next_ms=9), until_ms=1 << 60)
    assert not schedule().begun().is_due(moved, until_ms=1 << 60)


def test_a_run_that_starts_asks_the_tasks_what_waits_for_the_clock() -> None:
    starts = schedule(by_clock=True)
    assert starts.is_due(base(), until_ms=0)
    told = starts.after([TaskResult((), due_ms=70), TaskResult((), due_ms=50), IDLE])
    assert not told.is_due(base(), until_ms=49)
    assert told.is_due(base(), until_ms=50)
    assert not told.after([IDLE]).is_due(base(), until_ms=1 << 60)
    assert told.begun().asked().is_due(base(), until_ms=0)


@pytest.mark.parametrize(
    ("given", "batch", "is_void"),
    [
        ({"by_clock": True}, None, True),
        ({"by_clock": True}, BATCH, False),
        ({"by_clock": True, "follows_watermark": True}, None, False),
    ],
)
def test_only_a_tick_by_the_clock_alone_may_become_no_version(
    given: dict[str, bool], batch: dict[str, Any] | None, is_void: bool
) -> None:
    step = schedule(**given).begun().step(marked(evict_ms=5, next_ms=9), batch, 100)
    assert step.is_void([IDLE, IDLE]) is is_void
    assert not step.is_void([IDLE, BUSY])


def test_event_times_behind_operators_follow_those_before_them() -> None:
    start = marked(policy="min", inputs=(40, 30))
    run = schedule().begun()
    step = run.step(start, BATCH, 0).observed([Observation(60, 10)], [Observation(35, 1)])
    assert (step.marks.inputs, step.marks.next_ms) == ((50, 34), 34)


def test_inputs_begin_anew_in_the_first_batch_of_a_run_and_the_combined_watermark_stays() -> None:
    start = marked(policy="min", inputs=(40, 30), evict_ms=30, next_ms=30)
    seen = [Observation(60, 10), Observation(None, 10)]
    first = schedule().step(start, BATCH, 0).observed(seen)
    assert (first.marks.inputs, first.marks.next_ms) == ((50, 0), 30)
    later = schedule().begun().step(start, BATCH, 0).observed(seen)
    assert (later.marks.inputs, later.marks.next_ms) == ((50, 30), 30)


def test_in_a_tick_the_watermarks_before_the_first_operator_stay_where_they_are() -> None:
    start = marked(inputs=(40, 30), next_ms=30)
    step = schedule().begun().step(start, None, 0).observed((), [Observation(51, 1)])
    assert (step.marks.inputs, step.marks.next_ms) == ((40, 50), 40)


def test_a_version_commits_its_batch_and_a_tick_that_of_its_base() -> None:
    first = schedule().step(base(), BATCH, 0)
    stored = committed(first.base, first.facts([Emission(1)]))
    assert (stored.batch, stored.delivered_through, len(stored.outbox)) == (BATCH, 0, 1)
    tick = schedule().begun().step(stored, None, 0)
    assert tick.facts()["batch"] == BATCH
    assert (first.numbers.epoch, tick.numbers.epoch) == (0, 1)


def test_numbers_that_were_given_up_are_left_out_once() -> None:
    step: VersionStep = schedule().step(base(), BATCH, 0, lost=2)
    assert step.numbers.last == 2
    assert schedule().step(committed(step.base, step.facts()), BATCH, 0).numbers.last == 3


@pytest.mark.parametrize("lost", [0, 2])
def test_a_version_that_delivers_nothing_takes_no_number(lost: int) -> None:
    start = base(numbering={"first": 0, "last": 4})
    for facts in (initial_facts(start, Watermarks(), lost), rewrite_facts(start, [], lost)):
        silent = committed(start, facts)
        assert silent.delivered_through == silent.version
        assert schedule().step(silent, BATCH, 0).numbers.last == 5 + lost
