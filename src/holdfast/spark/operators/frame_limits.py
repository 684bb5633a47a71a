"""How large the DataFrames are that processors get, by the settings of Spark's that limit them."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.spark.interop import seam
from holdfast.streams.processors.pandas import FrameLimits

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"


def frame_limits(session: SparkSession) -> FrameLimits:
    """The limits that a session sets."""
    rows = session.conf.get(_ROWS, str(FrameLimits.rows))
    size = session.conf.get(_BYTES, str(FrameLimits.bytes))
    return FrameLimits(int(str(rows)), seam.sessions.bytes_of(session, str(size)))
