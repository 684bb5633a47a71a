"""What PySpark's tests get in the place of PySpark's own: operators, queries and state of Holdfast.

The tests are unchanged. So what they call is replaced in the process that runs them: a stream is
wrapped by `stateful()` where it gets its first stateful operator, or else where it is written.
What others call, Holdfast among them, stays Spark's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame
from pyspark.sql.functions import lit
from pyspark.sql.group import GroupedData
from pyspark.sql.readwriter import DataFrameReader
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import holdfast
from holdfast.spark.frame import StatefulDataFrame
from pyspark_suites.state_reads import SOURCES, StateRead
from pyspark_suites.suites import PACKAGE

_KEY = "_passed_on"
_OPERATORS = ("groupBy", "dropDuplicates", "dropDuplicatesWithinWatermark")
_PROCESSED = ("transformWithState", "transformWithStateInPandas", "applyInPandasWithState")


def wrap_spark() -> None:
    """Have the tests of this process use Holdfast wherever they use streams or state."""
    for name in _OPERATORS:
        _replace(ClassicDataFrame, name, partial(_operator, name))
    for name in _PROCESSED:
        _replace(GroupedData, name, partial(_on_static_rows, name))
    _replace(DataFrameReader, "format", _reads_of_state)
    _replace(SparkSession, "streams", _property(_streams))
    for frame in (ClassicDataFrame, StatefulDataFrame):
        _replace(frame, "writeStream", _property(_write_stream))


def _replace(owner: type, name: str, make: Callable[[Any], Any]) -> None:
    """Put into the place of an attribute what `make` makes of it."""
    setattr(owner, name, make(getattr(owner, name)))


def _property(getter: Callable[[Any, Any], Any]) -> Callable[[Any], property]:
    def make(native: property | cached_property[Any]) -> property:
        get = native.func if isinstance(native, cached_property) else native.fget
        return property(partial(getter, get))

    return make


def _tests_call() -> bool:
    """Whether the function that asks was called by one of Spark's tests."""
    caller: str = sys._getframe(2).f_globals["__name__"]
    return caller.startswith(PACKAGE)


def _operator(name: str, native: Callable[..., Any]) -> Callable[..., Any]:
    def call(frame: DataFrame, *args: Any) -> Any:
        if not _tests_call():
            return native(frame, *args)
        if frame.isStreaming:
            return getattr(holdfast.stateful(frame), name)(*args)
        made = native(frame, *args)
        made.holdfast_args = args
        return made

    return call


def _on_static_rows(name: str, native: Callable[..., DataFrame]) -> Callable[..., Any]:
    """Processors over the groups of a DataFrame that is not a stream."""

    def call(grouped: Any, *args: Any, **kwargs: Any) -> Any:
        if not _tests_call():
            return native(grouped, *args, **kwargs)
        groups = holdfast.stateful(grouped._df).groupBy(*grouped.holdfast_args)
        return getattr(groups, name)(*args, **kwargs)

    return call


def _reads_of_state(native: Callable[..., DataFrameReader]) -> Callable[..., Any]:
    def call(reader: Any, source: str) -> Any:
        return StateRead(reader._spark, source) if source in SOURCES else native(reader, source)

    return call


def _streams(native: Callable[[SparkSession], Any], session: SparkSession) -> Any:
    if not _tests_call():
        return native(session)
    made: Any = holdfast.streams  # a function; the checker takes it for the package of that name
    return session.__dict__.setdefault("_holdfast_streams", made(session))


def _write_stream(native: Callable[[Any], Any], frame: DataFrame | StatefulDataFrame) -> Any:
    """The writer of a stream, which goes through an operator that emits each row as it is.

    Only where it has none: Spark itself would run it, and show nothing of Holdfast.
    """
    if not _tests_call() or not frame.isStreaming:
        return native(frame)
    wrapped = frame if isinstance(frame, StatefulDataFrame) else holdfast.stateful(frame)
    if wrapped._flow.stages:
        return native(wrapped)
    keyed = wrapped.withColumn(_KEY, lit(0))
    groups = keyed.groupBy(_KEY)
    passed = groups.transformWithState(_PassOn(), keyed.schema, "Append", "None")
    return passed.drop(_KEY).writeStream


class _PassOn(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        yield from rows

    def close(self) -> None:
        pass
