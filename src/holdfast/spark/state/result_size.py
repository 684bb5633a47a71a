"""How much of a version may travel to the driver in the results of its tasks."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.spark.interop import seam
from holdfast.streams.outbox import MOST_INLINE_BYTES

_SETTING, _DEFAULT = "spark.driver.maxResultSize", "1g"


def inline_bytes(max_result_bytes: int) -> int:
    """How many bytes of deltas, and as many of rows, the tasks of one job may send.

    `max_result_bytes` is what Spark lets a driver take in a job, 0 where there is no limit. A half
    of it is left for all else that results hold.
    """
    if max_result_bytes <= 0:
        return MOST_INLINE_BYTES
    return min(MOST_INLINE_BYTES, max_result_bytes // 4)


def inline_bytes_of(session: SparkSession) -> int:
    """The same by the settings of a session's application."""
    limit = seam.sessions.application_setting(session, _SETTING) or _DEFAULT
    return inline_bytes(seam.sessions.bytes_of(session, limit))
