"""What the event times of a batch do to the watermarks of its query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame

from holdfast.errors import IllegalState
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import EventTimeStats
from holdfast.spark.pipeline.flow import EventTime
from holdfast.spark.pipeline.stages import StageRun
from holdfast.streams.tasks.task import TaskResult
from holdfast.streams.version import Observation, VersionStep


def observed(
    step: VersionStep,
    seen: Sequence[EventTimeStats],
    behind: Mapping[EventTime, EventTimeStats | None],
) -> VersionStep:
    """A step after what Spark saw of its batch, and what was seen behind operators.

    `seen` is empty for a version without data; a batch has an entry for each withWatermark.
    """
    return step.observed(
        [Observation(entry.max_ms if entry.rows else None, entry.delay_ms) for entry in seen],
        [
            Observation(None if found is None else found.max_ms, event_time.delay_ms)
            for event_time, found in behind.items()
        ],
    )


def check_counted(
    seen: Sequence[EventTimeStats],
    stages: Sequence[StageRun],
    results: Mapping[int, Sequence[TaskResult]],
) -> None:
    """Refuse a batch whose rows reached an operator past a watermark that counted none.

    A batch whose rows were all filtered out before their watermark is fine: no row arrives.
    """
    if not seen or any(entry.rows for entry in seen):
        return
    for number, run in enumerate(stages):
        is_counted = all(
            isinstance(origin, DataFrame) and seam.frames.counts_every_row(origin)
            for origin in run.stage.origins
        )
        if is_counted and any(result.rows or result.late_rows for result in results[number]):
            raise IllegalState(
                f"Rows of a batch reached {run.operator.title}, and Spark counted no event time "
                "of them, so nothing was committed. Report this with the output of "
                "query.explain()."
            )
