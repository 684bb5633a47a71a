"""How much of a version the results of its tasks may carry to the driver."""

from __future__ import annotations

from pyspark.sql import SparkSession

from holdfast.spark.interop import seam
from holdfast.streams.outbox import MOST_INLINE_BYTES

_SETTING, _DEFAULT = "spark.driver.maxResultSize", "1g"


def inline_bytes(max_result_bytes: int) -> int:
    """How many bytes of deltas the tasks of one job may return, and as many bytes of rows.

    `max_result_bytes` is Spark's limit on the results of a job; 0 means no limit. Half of it is
    left for everything else in the results.
    """
    if max_result_bytes <= 0:
        return MOST_INLINE_BYTES
    return min(MOST_INLINE_BYTES, max_result_bytes // 4)


def inline_bytes_of(session: SparkSession) -> int:
    """The same, from the settings of a session's application."""
    limit = seam.sessions.application_setting(session, _SETTING) or _DEFAULT
    return inline_bytes(seam.sessions.bytes_of(session, limit))
