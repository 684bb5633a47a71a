"""Spark's query: its start, and what it tells of itself."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.checkpoint import SparkCheckpoint
from holdfast.spark.interop.event_times import event_time_stats
from holdfast.spark.interop.planning import PlainPlanning
from holdfast.spark.interop.scala import class_of, walk

__all__ = [
    "batch_progress",
    "event_time_stats",
    "idle_interval_ms",
    "idle_progress",
    "source_names",
    "start",
]


def start(
    session: SparkSession, checkpoint: SparkCheckpoint, writer: DataStreamWriter
) -> StreamingQuery:
    """Start Spark's query, planned as Spark plans the queries that keep state.

    Raises IllegalState, and leaves no query behind, where this Spark plans it in another way.
    """
    planning = PlainPlanning(session, checkpoint)
    begun = planning.start(writer)
    try:
        planning.check(begun)
    except BaseException:
        begun.stop()
        raise
    return begun


def source_names(frame: DataFrame) -> list[str]:
    """What Spark calls the sources of a streaming frame, in the order of its offsets."""
    found: list[Any] = []
    for node in walk(frame._jdf.queryExecution().analyzed()):
        if not node.children().isEmpty() or not node.isStreaming():
            continue
        if class_of(node).startswith("StreamingRelation") and not any(map(node.equals, found)):
            found.append(node)
    return [str(node.sourceName()) for node in found]


def idle_interval_ms(query: StreamingQuery) -> int:
    """How often Spark tells that a query is idle."""
    session = query._jsq.sparkSession()
    return int(session.sessionState().conf().streamingNoDataProgressEventInterval())


def batch_progress(query: StreamingQuery, batch_id: int) -> dict[str, Any] | None:
    """Spark's own progress of a batch; None before Spark has told.

    Spark also tells of triggers that found no data, under the number of the batch to come.
    """
    for told in reversed(list(query._jsq.recentProgress())):
        if told.batchId() == batch_id and _has_batch(told):
            return dict(json.loads(told.json()))
    return None


def idle_progress(query: StreamingQuery, *, newest: bool = False) -> list[dict[str, Any]]:
    """What Spark has told of triggers that found no data, oldest first; where only the newest is
    wanted, nothing if that was a batch.
    """
    last = [query._jsq.lastProgress()] if newest else query._jsq.recentProgress()
    every = [told for told in last if told is not None]
    return [dict(json.loads(told.json())) for told in every if not _has_batch(told)]


def _has_batch(told: Any) -> bool:
    return bool(told.durationMs().containsKey("addBatch"))
