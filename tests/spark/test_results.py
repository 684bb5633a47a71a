"""What travels to the driver in task results keeps to what Spark lets a driver take."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from holdfast.spark.interop import sessions
from holdfast.spark.state.result_size import MOST_INLINE_BYTES, inline_bytes, inline_bytes_of

MB = 1 << 20


@pytest.mark.parametrize(
    ("limit", "most"),
    [(0, MOST_INLINE_BYTES), (1 << 30, MOST_INLINE_BYTES), (16 * MB, 4 * MB), (MB, MB // 4)],
)
def test_deltas_and_rows_take_half_of_what_a_driver_takes(limit: int, most: int) -> None:
    assert inline_bytes(limit) == most


@pytest.mark.spark
def test_the_limit_is_the_applications(spark: SparkSession) -> None:
    assert inline_bytes_of(spark) == MOST_INLINE_BYTES
    assert [sessions.bytes_of(spark, text) for text in ("16m", "1g", "0", "77")] == [
        16 * MB, 1 << 30, 0, 77,
    ]  # fmt: skip
