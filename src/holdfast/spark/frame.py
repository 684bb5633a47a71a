"""`stateful(df)`: a streaming DataFrame whose stateful operators Holdfast runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, overload

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from holdfast.errors import InvalidArgument
from holdfast.spark.groups import GroupedStatefulData
from holdfast.spark.interop import seam
from holdfast.spark.interop.check import check_spark
from holdfast.spark.operators.columns import DELAY, quote_column
from holdfast.spark.operators.deduplication import Deduplication
from holdfast.spark.operators.keyed import KeyedOperator
from holdfast.spark.operators.on_tables import processed
from holdfast.spark.operators.operator import FrameStep, Operator
from holdfast.spark.pipeline.explanation import stateful_plan
from holdfast.spark.pipeline.flow import EventTime, Flow, Input, Sources, Stage
from holdfast.spark.refusals import (
    join_of_streams,
    method_of_a_frame,
    native_operators,
)
from holdfast.spark.state.location import is_one_host
from holdfast.spark.writer import StatefulStreamWriter

ColumnOrName = Column | str
Ordinals = Column | str | int | Sequence[Column | str | int]


def stateful(frame: DataFrame) -> StatefulDataFrame:
    """Run the stateful operators that are called on the result with Holdfast's state.

        totals = stateful(trades).groupBy("user").agg(F.sum("amount").alias("total"))

    `frame` is a DataFrame of a classic Spark session (not of Spark Connect). Returns a wrapper
    with the methods of DataFrame that a stream has; its `writeStream` starts the query.

    If `frame` is not a stream, the operators return a plain DataFrame, so that the same code,
    processors included, also runs over a table.

    Raises InvalidArgument if `frame` already has a stateful operator of Spark's own: a batch that
    is replayed after a crash would leave that operator unable to continue.
    """
    check_spark(frame)
    if is_one_host(frame.sparkSession):
        seam.sessions.share_python(frame.sparkSession)
    if native := seam.plans.native_stateful_operators(frame):
        raise native_operators(native)
    return StatefulDataFrame(frame)


class StatefulDataFrame:
    """A streaming DataFrame whose stateful operators Holdfast runs, one after another.

    `native` is Spark's own plan of the whole pipeline. It provides the schema and Spark's errors,
    and is never started once there is a stateful operator. `flow` says how Holdfast computes the
    rows; without an operator they are those of `native`.
    """

    def __init__(self, native: DataFrame, flow: Flow | None = None) -> None:
        self._native = native
        self._flow = Flow.of(native) if flow is None else flow
        self._is_plain = not self._flow.stages

    def _then(self, step: FrameStep) -> StatefulDataFrame:
        native = step(self._native)
        if self._is_plain:
            return StatefulDataFrame(native)
        return StatefulDataFrame(native, self._flow.then(step, native))

    def _through(self, operator: Operator, native: DataFrame) -> StatefulDataFrame:
        """The stream after one more stateful operator."""
        if not self._native.isStreaming:
            if isinstance(operator, KeyedOperator):
                return StatefulDataFrame(processed(operator, self._native))
            return StatefulDataFrame(native)
        stage = Stage(operator, (Input(self._flow, self._native),), native)
        return StatefulDataFrame(native, Flow.of(stage))

    def select(self, *cols: ColumnOrName | Sequence[ColumnOrName]) -> StatefulDataFrame:
        """As DataFrame.select."""
        return self._then(lambda frame: frame.select(*cols))  # type: ignore[arg-type]

    def selectExpr(self, *expr: str | list[str]) -> StatefulDataFrame:
        """As DataFrame.selectExpr."""
        return self._then(lambda frame: frame.selectExpr(*expr))  # type: ignore[arg-type]

    def filter(self, condition: Column | str) -> StatefulDataFrame:
        """As DataFrame.filter."""
        return self._then(lambda frame: frame.filter(condition))

    where = filter

    def withColumn(self, colName: str, col: Column) -> StatefulDataFrame:
        """As DataFrame.withColumn."""
        return self._then(lambda frame: frame.withColumn(colName, col))

    def withColumns(self, colsMap: dict[str, Column]) -> StatefulDataFrame:
        """As DataFrame.withColumns."""
        return self._then(lambda frame: frame.withColumns(colsMap))

    def withColumnRenamed(self, existing: str, new: str) -> StatefulDataFrame:
        """As DataFrame.withColumnRenamed."""
        return self._then(lambda frame: frame.withColumnRenamed(existing, new))

    def drop(self, *cols: ColumnOrName) -> StatefulDataFrame:
        """As DataFrame.drop."""
        return self._then(lambda frame: frame.drop(*cols))

    def alias(self, alias: str) -> StatefulDataFrame:
        """As DataFrame.alias."""
        return self._then(lambda frame: frame.alias(alias))

    def orderBy(self, *cols: Ordinals, **kwargs: Any) -> StatefulDataFrame:
        """As DataFrame.orderBy; only after an aggregation, in complete mode."""
        return self._then(lambda frame: frame.orderBy(*cols, **kwargs))

    sort = orderBy

    def join(
        self,
        other: DataFrame | StatefulDataFrame,
        on: str | list[str] | Column | list[Column] | None = None,
        how: str | None = None,
    ) -> StatefulDataFrame:
        """As DataFrame.join, with a static DataFrame, which may be wrapped."""
        static = other._native if isinstance(other, StatefulDataFrame) else other
        if not isinstance(static, DataFrame):
            raise InvalidArgument(f"join takes a static DataFrame, not {type(other).__name__}.")
        if static.isStreaming:
            raise join_of_streams()
        return self._then(lambda frame: frame.join(static, on, how))

    def union(self, other: StatefulDataFrame) -> StatefulDataFrame:
        """As DataFrame.union, with another wrapped stream."""
        return self._united(other, DataFrame.union)

    unionAll = union  # noqa: N815 - PySpark's name

    def unionByName(
        self, other: StatefulDataFrame, allowMissingColumns: bool = False
    ) -> StatefulDataFrame:
        """As DataFrame.unionByName, with another wrapped stream."""
        return self._united(other, lambda a, b: a.unionByName(b, allowMissingColumns))

    def _united(
        self, other: StatefulDataFrame, unite: Callable[[DataFrame, DataFrame], DataFrame]
    ) -> StatefulDataFrame:
        given: object = other
        if not isinstance(given, StatefulDataFrame):
            instead = " Wrap it with stateful()." if isinstance(given, DataFrame) else ""
            raise InvalidArgument(
                f"union takes another wrapped stream, not {type(given).__name__}.{instead}"
            )
        native = unite(self._native, other._native)
        if self._is_plain and other._is_plain:
            return StatefulDataFrame(native)
        return StatefulDataFrame(native, self._flow.united(other._flow, unite, native))

    def transform(
        self, func: Callable[..., StatefulDataFrame], *args: Any, **kwargs: Any
    ) -> StatefulDataFrame:
        """As DataFrame.transform; `func` gets and returns the wrapper."""
        result = func(self, *args, **kwargs)
        if not isinstance(result, StatefulDataFrame):
            raise InvalidArgument(
                f"The function passed to transform returned {type(result).__name__}. It must "
                "return the wrapper, or one made from it."
            )
        return result

    def withWatermark(self, eventTime: str, delayThreshold: str) -> StatefulDataFrame:
        """As DataFrame.withWatermark; at most once, before or after a stateful operator."""
        native = self._native.withWatermark(eventTime, delayThreshold)
        if self._is_plain:
            return StatefulDataFrame(native)
        if seam.frames.has_watermark(self._native):
            raise InvalidArgument(
                "The stream has a watermark already, and its operators use that one. Leave out the "
                "second withWatermark: Spark would wait for the later of the two forever."
            )
        event_time = EventTime(next(f for f in native.schema if DELAY in (f.metadata or {})))
        return StatefulDataFrame(native, self._flow.then(event_time.observed, native, event_time))

    def groupBy(self, *cols: Ordinals) -> GroupedStatefulData:
        """As DataFrame.groupBy."""
        listed = cols[0] if len(cols) == 1 and isinstance(cols[0], (list, tuple)) else cols
        groupings = tuple(self._grouping(each) for each in listed)
        return GroupedStatefulData(self._native, groupings, self._through)

    def _grouping(self, given: Any) -> Column:
        """A grouping column for Spark, from a column, its name, or its position counted from 1."""
        if isinstance(given, Column):
            return given
        if isinstance(given, str):
            return F.col(given)
        columns = self.columns
        if type(given) is int and 1 <= given <= len(columns):
            return self._native[quote_column(columns[given - 1])]
        raise InvalidArgument(
            f"groupBy takes columns, their names or their places from 1 to {len(columns)}, not "
            f"{given!r}."
        )

    groupby = groupBy

    def agg(self, *exprs: Column | dict[str, str]) -> StatefulDataFrame:
        """As DataFrame.agg: one group of all rows."""
        return self.groupBy().agg(*exprs)

    def distinct(self) -> StatefulDataFrame:
        """As DataFrame.distinct: of equal rows, only the first ever passes."""
        return self.dropDuplicates()

    def dropDuplicates(self, subset: list[str] | None = None) -> StatefulDataFrame:
        """As DataFrame.dropDuplicates: of each key, only the first row ever passes."""
        return self._deduplicated(self._native.dropDuplicates(subset), subset)

    drop_duplicates = dropDuplicates

    def dropDuplicatesWithinWatermark(self, subset: list[str] | None = None) -> StatefulDataFrame:
        """As DataFrame.dropDuplicatesWithinWatermark."""
        native = self._native.dropDuplicatesWithinWatermark(subset)
        return self._deduplicated(native, subset, within_watermark=True)

    def _deduplicated(
        self, native: DataFrame, subset: list[str] | None, *, within_watermark: bool = False
    ) -> StatefulDataFrame:
        before = self._native
        if subset is not None and not subset:
            raise InvalidArgument(
                "The list of columns to compare is empty. Name some, or leave out the list to "
                "compare all columns."
            )
        names = before.columns if subset is None else seam.columns.columns_called(before, subset)
        operator = Deduplication(before, names, within_watermark=within_watermark)
        return self._through(operator, native)

    @property
    def schema(self) -> StructType:
        """The schema of the output."""
        return self._native.schema

    @property
    def columns(self) -> list[str]:
        """The column names of the output."""
        return self._native.columns

    @property
    def isStreaming(self) -> bool:
        """Whether it is a stream."""
        return bool(self._native.isStreaming)

    def printSchema(self, level: int | None = None) -> None:
        """As DataFrame.printSchema."""
        self._native.printSchema(level)

    def explain(self, extended: bool | str | None = None, mode: str | None = None) -> None:
        """As DataFrame.explain: the stateful operators, then Spark's plan of what reaches them.

        For each operator: what it computes and from what, its watermark, its stores with their
        columns, and the partitions that the state has with a new checkpoint. `extended` and `mode`
        are as in Spark and apply to Spark's plan.
        """
        if not self._is_plain:
            sys.stdout.write(stateful_plan(self._flow, self._native.sparkSession) + "\n")
        Sources(self._flow).stream.explain(extended, mode)

    @property
    def writeStream(self) -> StatefulStreamWriter:
        """As DataFrame.writeStream: the writer that sets sink and options, and starts the query."""
        return StatefulStreamWriter(self._native, self._flow)

    @overload
    def __getitem__(self, item: int | str) -> Column: ...

    @overload
    def __getitem__(self, item: Column | list[Any] | tuple[Any, ...]) -> StatefulDataFrame: ...

    def __getitem__(
        self, item: int | str | Column | list[Any] | tuple[Any, ...]
    ) -> Column | StatefulDataFrame:
        """As for a DataFrame: a column by name or position, or some rows or columns."""
        if isinstance(item, Column):
            return self.filter(item)
        if isinstance(item, (list, tuple)):
            return self.select(*item)
        return self._native[item]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(DataFrame, name):
            if not self._native.isStreaming:
                return getattr(self._native, name)
            raise method_of_a_frame(name)
        # copy and pickle look attributes up before the wrapper has its frame
        if "_native" in self.__dict__ and name in self._native.columns:
            return self._native[quote_column(name)]
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def __repr__(self) -> str:
        columns = (f"{field.name}: {field.dataType.simpleString()}" for field in self.schema)
        return f"StatefulDataFrame[{', '.join(columns)}]"
