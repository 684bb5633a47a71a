"""Which of Spark's test modules are run, and how the tests in them are called in reports."""

from __future__ import annotations

PACKAGE = "pyspark.sql.tests"

SUITES = {
    "state": (
        "pandas.streaming.test_pandas_transform_with_state",
        "pandas.streaming.test_pandas_transform_with_state_state_variable",
        "pandas.streaming.test_transform_with_state",
        "pandas.streaming.test_transform_with_state_state_variable",
        "pandas.test_pandas_grouped_map_with_state",
    ),
    "tester": ("pandas.streaming.test_tws_tester",),
    "streaming": ("streaming.test_streaming",),
    "foreach": ("streaming.test_streaming_foreach", "streaming.test_streaming_foreach_batch"),
    "listener": ("streaming.test_streaming_listener",),
}
"""The modules of each suite, below `PACKAGE`."""

_ABOUT_SPARK_ALONE = ("TwsTesterTests", "test_assert_classic_mode")
"""Tests without a stream: those of Spark's own tester, and one that every class inherits."""


def short_name(test_id: str) -> str:
    """Class and method: what is unique in a suite, and short enough for a table."""
    return ".".join(test_id.split(".")[-2:])


def is_run(test_id: str) -> bool:
    """Whether a test of these modules has anything to do with streams."""
    return not set(short_name(test_id).split(".")) & set(_ABOUT_SPARK_ALONE)
