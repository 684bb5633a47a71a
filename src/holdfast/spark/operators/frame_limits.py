"""What Spark's settings say of the DataFrames that processors get and return."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.spark.interop import seam
from holdfast.streams.processors.pandas import FrameLimits

_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"
_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_COERCES = "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"


def frame_limits(session: SparkSession) -> FrameLimits:
    """What a session sets."""
    rows = session.conf.get(_ROWS, str(FrameLimits.rows))
    size = session.conf.get(_BYTES, str(FrameLimits.bytes))
    coerces = str(session.conf.get(_COERCES, "false")).lower() == "true"
    return FrameLimits(int(str(rows)), seam.sessions.bytes_of(session, str(size)), coerces)
