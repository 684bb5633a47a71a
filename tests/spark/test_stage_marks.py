"""The watermarks of a stage follow from those of the query and the operators before it."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.spark.pipeline.flow import Flow, Input, Stage
from holdfast.spark.pipeline.stage_marks import stage_marks
from holdfast.streams.watermark import Watermarks

MARKS = Watermarks(late_ms=5_000, evict_ms=9_000, next_ms=12_000)


class Holding:
    """An operator that emits rows older than its watermark."""

    def __init__(self, hold_ms: int) -> None:
        self._hold_ms = hold_ms

    def output_watermark(self, input_ms: int) -> int:
        return input_ms - self._hold_ms


def stage(hold_ms: int, *inputs: list[Any]) -> Stage:
    """A stage whose inputs are of these origins each; a source is None."""
    source: Any = object()
    flows = [
        Flow(tuple(source if o is None else o for o in each), lambda f: f[0]) for each in inputs
    ]
    operator: Any = Holding(hold_ms)
    return Stage(operator, tuple(Input(flow, source) for flow in flows), source)


def bounds(marks: Watermarks) -> tuple[int, int]:
    return marks.late_ms, marks.evict_ms


def test_a_stage_behind_sources_goes_by_the_querys_watermarks() -> None:
    only = stage(1_000, [None])
    found = stage_marks([only], MARKS)[only]
    assert found.stage == MARKS
    assert found.inputs == (MARKS,)


def test_a_stage_goes_by_what_the_operators_before_it_say_of_their_output() -> None:
    first = stage(1_000, [None])
    second = stage(2_000, [first])
    third = stage(0, [second])
    found = stage_marks([first, second, third], MARKS)
    assert bounds(found[second].stage) == (4_000, 8_000)
    assert bounds(found[third].stage) == (2_000, 6_000)
    assert found[third].stage.next_ms == MARKS.next_ms


@pytest.mark.parametrize("united", [True, False], ids=["one input", "two inputs"])
def test_of_several_origins_the_smallest_watermark_counts(united: bool) -> None:
    first = stage(3_000, [None])
    both = stage(0, [None, first]) if united else stage(0, [None], [first])
    found = stage_marks([first, both], MARKS)[both]
    assert bounds(found.stage) == (2_000, 6_000)
    expected = [(2_000, 6_000)] if united else [(5_000, 9_000), (2_000, 6_000)]
    assert [bounds(each) for each in found.inputs] == expected


def test_no_watermark_is_negative_and_none_moves_before_the_querys() -> None:
    first = stage(7_000, [None])
    second = stage(-1_000, [first])
    third = stage(0, [second])
    found = stage_marks([first, second, third], MARKS)
    assert bounds(found[second].stage) == (0, 2_000)
    assert bounds(found[third].stage) == (0, 3_000)
