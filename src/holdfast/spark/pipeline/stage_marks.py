"""The watermarks of each stage of a query, which follow from those of the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from holdfast.spark.operators.operator import Operator
from holdfast.spark.pipeline.flow import Stage
from holdfast.streams.watermark import Watermarks


@dataclass(frozen=True)
class StageMarks:
    """The watermarks of a stage: those of each of its inputs, and the smallest of them."""

    stage: Watermarks
    inputs: tuple[Watermarks, ...]


def stage_marks(stages: Sequence[Stage], marks: Watermarks) -> dict[Stage, StageMarks]:
    """The watermarks of each stage at those of the query.

    Rows that come out of an operator may be older than its watermark: a join emits rows that waited
    for a match. So what is behind it must go by an earlier watermark, which the operator knows. All
    follow from the query's watermarks alone, so a manifest keeps only these. As in Spark, an input
    that comes out of several others goes by the smallest of their watermarks.

    Requires: each stage comes after those it gets rows from.
    """
    found: dict[Stage, StageMarks] = {}

    def at(origin: DataFrame | Stage) -> Watermarks:
        if isinstance(origin, Stage):
            return _output(origin.operator, found[origin].stage)
        return marks

    for stage in stages:
        inputs = tuple(_smallest([*map(at, each.flow.origins)]) for each in stage.inputs)
        found[stage] = StageMarks(_smallest(inputs), inputs)
    return found


def _smallest(given: Sequence[Watermarks]) -> Watermarks:
    return replace(
        given[0],
        late_ms=min(each.late_ms for each in given),
        evict_ms=min(each.evict_ms for each in given),
    )


def _output(operator: Operator, marks: Watermarks) -> Watermarks:
    return replace(
        marks,
        late_ms=_output_ms(operator, marks.late_ms),
        evict_ms=_output_ms(operator, marks.evict_ms),
    )


def _output_ms(operator: Operator, input_ms: int) -> int:
    """As in Spark, no watermark is negative, and none moves before the query's does."""
    return max(operator.output_watermark(input_ms), 0) if input_ms else 0
