"""The event times of a batch, as Spark's own plan of it counted them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import IllegalState
from holdfast.spark.interop.model import EventTimeStats
from holdfast.spark.interop.scala import class_of, scala_list, walk

_INSIDE = {
    "AdaptiveSparkPlanExec": "executedPlan",
    "BroadcastQueryStageExec": "plan",
    "ResultQueryStageExec": "plan",
    "ReusedExchangeExec": "child",
    "ShuffleQueryStageExec": "plan",
    "TableCacheQueryStageExec": "plan",
}
"""Nodes of executed plans that a walk takes for leaves, and what gives the plan inside each."""


def event_time_stats(query: StreamingQuery) -> list[EventTimeStats]:
    """The event times of the batch under way, one entry for each withWatermark of the query.

    Raises IllegalState when Spark's plan of the batch lacks a withWatermark of the query: without
    its figures the watermark would stand still and output would be withheld in silence.
    """
    execution = query._jsq.streamingQuery().lastExecution()
    nodes = [
        n for n in _walk_executed(execution.executedPlan()) if _is(n, "EventTimeWatermarkExec")
    ]
    wanted = {_identity(n) for n in walk(execution.analyzed()) if _is(n, "EventTimeWatermark")}
    missing = wanted - {_identity(node) for node in nodes}
    if missing and not _is_known_empty(execution.optimizedPlan()):
        raise IllegalState(
            f"Spark's plan of a batch counts no event times for {len(missing)} of the query's "
            f"{len(wanted)} watermarks, so nothing was committed. Report this with the output of "
            "query.explain()."
        )
    # An exchange that is used twice counts its rows once, as in Spark.
    counters = {int(node.eventTimeStats().id()): node for node in nodes}
    return [_stats(node) for node in counters.values()]


def _is_known_empty(plan: Any) -> bool:
    """Whether Spark has found some part of a stream to be empty, and left it out of its plan."""
    leaves = (node for node in walk(plan) if _is(node, "LocalRelation") and node.isStreaming())
    return any(leaf.data().isEmpty() for leaf in leaves)


def _walk_executed(node: Any) -> Iterator[Any]:
    """A node of an executed plan and all below it, also inside nodes that hide their plan."""
    yield node
    inside = _INSIDE.get(class_of(node))
    below = scala_list(node.children()) if inside is None else [getattr(node, inside)()]
    for each in below:
        yield from _walk_executed(each)


def _is(node: Any, name: str) -> bool:
    return class_of(node) == name


def _identity(node: Any) -> str:
    return str(node.nodeId())


def _stats(node: Any) -> EventTimeStats:
    stats = node.eventTimeStats().value()
    delay_ms, rows, largest = int(node.delayMs()), int(stats.count()), int(stats.max())
    if not rows:
        return EventTimeStats(delay_ms, rows, largest)
    return EventTimeStats(delay_ms, rows, largest, int(stats.min()), int(stats.avg()))
