"""The stateful plan of a query as text, for `explain()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame, SparkSession

from holdfast.engine.partition.shape import StoreShape
from holdfast.spark.interop import seam
from holdfast.spark.operators.columns import DELAY
from holdfast.spark.operators.operator import Operator
from holdfast.spark.pipeline.flow import Flow, Sources, Stage
from holdfast.spark.pipeline.stages import StageFrames
from holdfast.spark.state.stored import partitions_of

_UNITS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1000))
"""The units of a delay, with their length in ms."""


def stateful_plan(flow: Flow, session: SparkSession) -> str:
    """A query's operators in the order they run, with their state as a new checkpoint gets it.

    Raises InvalidArgument if the state of an operator cannot hold a column.
    """
    partitions = partitions_of(session, None, "")
    own = seam.sessions.own_session(session, partitions)
    sources = Sources(flow)
    numbers = {stage: number for number, stage in enumerate(flow.stages)}

    def named(origins: Sequence[DataFrame | Stage]) -> str:
        return ", ".join(
            f"operator {numbers[each]}"
            if isinstance(each, Stage)
            else f"source {sources.number(each)}"
            for each in origins
        )

    lines = ["== Stateful Plan =="]
    frames: dict[Stage, StageFrames] = {}
    for stage, number in numbers.items():
        frames[stage] = StageFrames.of(stage, own, partitions, frames)
        operator = stage.operator
        lines.append(f"Operator {number}: {operator.title}")
        facts = [("input", named(stage.origins)), *_facts(operator), ("watermark", _marks(stage))]
        lines += [f"  {name}: {text}" for name, text in facts]
        lines += [f"  {line}" for line in _stores(operator, frames[stage].stores)]
        lines.append(f"  partitions: {1 if operator.is_global else partitions}")
    lines.append(f"Output: {named(flow.origins)}")
    return "\n".join(lines) + "\n"


def _facts(operator: Operator) -> list[tuple[str, str]]:
    """What the state belongs to; the title says which operator it is."""
    return [(name, text) for name, text in operator.definition().items() if name != "operator"]


def _marks(stage: Stage) -> str:
    """The event times of the rows that reach a stage, and how long they may come late."""
    found = [
        f"{field.name}, delayed by {_delay(int(field.metadata[DELAY]))}"
        for rows in stage.before
        for field in rows.schema
        if DELAY in (field.metadata or {})
    ]
    return "; ".join(dict.fromkeys(found)) or "none"


def _delay(ms: int) -> str:
    for name, length in _UNITS:
        if ms and ms % length == 0:
            count = ms // length
            return f"{count} {name}{'' if count == 1 else 's'}"
    return f"{ms} ms"


def _stores(operator: Operator, stores: dict[str, StoreShape]) -> Iterator[str]:
    for name, shape in stores.items():
        index = operator.key_index
        evicted = "" if index is None else f"; evicted by {shape.key_schema.names[index]}"
        yield (
            f"store {name}: key {shape.key_schema.ddl()}; value {shape.value_schema.ddl()}{evicted}"
        )
