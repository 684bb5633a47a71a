"""Spark's query: its start, and what it tells of itself."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.checkpoint import SparkCheckpoint
from holdfast.spark.interop.event_times import event_time_stats
from holdfast.spark.interop.planning import PlainPlanning

__all__ = ["event_time_stats", "idle_interval_ms", "source_progress", "start"]


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


def idle_interval_ms(query: StreamingQuery) -> int:
    """How often Spark tells that a query is idle."""
    session = query._jsq.sparkSession()
    return int(session.sessionState().conf().streamingNoDataProgressEventInterval())


def source_progress(query: StreamingQuery, batch_id: int) -> list[dict[str, Any]] | None:
    """What Spark's own progress says of a batch's sources; None before Spark has told."""
    for told in reversed(list(query._jsq.recentProgress())):
        if told.batchId() == batch_id:
            return list(json.loads(told.json())["sources"])
    return None
