"""What Spark's query tells of itself."""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery


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
