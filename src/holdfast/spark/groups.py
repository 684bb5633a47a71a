"""The groups of a stateful stream: aggregations and the user's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql.types import StructType

from holdfast.spark.interop import seam
from holdfast.spark.operators.aggregation import aggregation
from holdfast.spark.operators.group_state import GroupStates
from holdfast.spark.operators.keyed import KeyedPlan
from holdfast.spark.operators.operator import Operator
from holdfast.spark.operators.processor import (
    ArrowProcessing,
    PandasProcessing,
    Processing,
    arrow_state,
)
from holdfast.spark.refusals import method_of_groups
from holdfast.streams.clock import checked_time_mode
from holdfast.streams.processors.arrow import ArrowProcessor
from holdfast.streams.processors.group_state import checked_timeout
from holdfast.streams.processors.pandas import pandas_for

if TYPE_CHECKING:
    from holdfast.spark.frame import StatefulDataFrame

Through = Callable[[Operator, DataFrame], "StatefulDataFrame"]
"""Puts an operator behind a stream, with Spark's own plan of what comes out."""


class GroupedStatefulData:
    """The groups of a stream; as GroupedData.

    `before` is Spark's plan of the stream, `through` what makes the stream after one more operator.
    """

    def __init__(self, before: DataFrame, columns: tuple[Column, ...], through: Through) -> None:
        self._before = before
        self._columns = columns
        self._through = through

    def agg(self, *exprs: Column | dict[str, str]) -> StatefulDataFrame:
        """As GroupedData.agg, by columns or a dict of column and function name."""
        grouped = self._before.groupBy(*self._columns)
        return self._aggregated(grouped.agg(*exprs))  # type: ignore[arg-type]

    def count(self) -> StatefulDataFrame:
        """As GroupedData.count."""
        return self._aggregated(self._before.groupBy(*self._columns).count())

    def _shorthand(self, function: str, cols: tuple[str, ...]) -> StatefulDataFrame:
        grouped = self._before.groupBy(*self._columns)
        return self._aggregated(getattr(grouped, function)(*cols))

    def sum(self, *cols: str) -> StatefulDataFrame:
        """As GroupedData.sum."""
        return self._shorthand("sum", cols)

    def avg(self, *cols: str) -> StatefulDataFrame:
        """As GroupedData.avg."""
        return self._shorthand("avg", cols)

    mean = avg

    def min(self, *cols: str) -> StatefulDataFrame:
        """As GroupedData.min."""
        return self._shorthand("min", cols)

    def max(self, *cols: str) -> StatefulDataFrame:
        """As GroupedData.max."""
        return self._shorthand("max", cols)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(GroupedData, name):
            raise method_of_groups(name)
        raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")

    def _aggregated(self, after: DataFrame) -> StatefulDataFrame:
        return self._through(aggregation(self._columns, after), after)

    def transformWithState(
        self,
        statefulProcessor: Any,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> StatefulDataFrame:
        """As GroupedData.transformWithState: the processor takes and returns rows."""
        after = self._with_processor(outputStructType, outputMode, timeMode, eventTimeColumnName)
        return self._processed(
            Processing, after, outputMode, timeMode, statefulProcessor, initialState
        )

    def transformWithStateInPandas(
        self,
        statefulProcessor: Any,
        outputStructType: StructType | str,
        outputMode: str,
        timeMode: str,
        initialState: Any = None,
        eventTimeColumnName: str = "",
    ) -> StatefulDataFrame:
        """As GroupedData.transformWithStateInPandas: the processor takes and returns DataFrames."""
        pandas_for("transformWithStateInPandas")
        after = self._with_processor(outputStructType, outputMode, timeMode, eventTimeColumnName)
        return self._processed(
            PandasProcessing, after, outputMode, timeMode, statefulProcessor, initialState
        )

    def _processed(
        self,
        kind: type[Processing],
        after: DataFrame,
        output_mode: str,
        time_mode: str,
        processor: Any,
        initial_state: Any,
    ) -> StatefulDataFrame:
        initial = None if initial_state is None else seam.columns.groups_of(initial_state)
        plan = self._plan(after, output_mode, checked_time_mode(time_mode))
        operator = kind(plan, processor, initial)
        return self._through(operator, after)

    def transformWithStateInArrow(
        self,
        processor: ArrowProcessor,
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeMode: str = "None",
    ) -> StatefulDataFrame:
        """Process chunks of keys, with their rows and state, in a function of Arrow tables.

        `processor(keys, rows, state, times)` returns the new state of the keys and the rows to
        emit, or None. `rows` has the column `_group`, the index of a row's key in `keys`. `state`
        has a row for each key in the same order, and the column `_exists`. So has the state that
        is returned; false in `_exists` removes the key.
        """
        session, mode = self._before.sparkSession, checked_time_mode(timeMode)
        after = self._with_processor(outputStructType, outputMode, timeMode, "")
        state = arrow_state(seam.sessions.parsed_schema(session, stateStructType))
        operator = ArrowProcessing(self._plan(after, outputMode, mode), processor, state)
        return self._through(operator, after)

    def applyInPandasWithState(
        self,
        func: Callable[..., Any],
        outputStructType: StructType | str,
        stateStructType: StructType | str,
        outputMode: str,
        timeoutConf: str,
    ) -> StatefulDataFrame:
        """As GroupedData.applyInPandasWithState: a function of DataFrames and a GroupState."""
        pandas_for("applyInPandasWithState")
        session, mode = self._before.sparkSession, checked_timeout(timeoutConf)
        output = seam.sessions.parsed_schema(session, outputStructType)
        state = seam.sessions.parsed_schema(session, stateStructType)
        after = seam.plans.with_group_state(
            self._before, self._columns, output, state, outputMode, timeoutConf
        )
        operator = GroupStates(self._plan(after, outputMode, mode), func, state)
        return self._through(operator, after)

    def _plan(self, after: DataFrame, output_mode: str, time_mode: str) -> KeyedPlan:
        return KeyedPlan(self._before, self._columns, after, output_mode, time_mode)

    def _with_processor(
        self, output: StructType | str, output_mode: str, time_mode: str, event_time: str
    ) -> DataFrame:
        schema = seam.sessions.parsed_schema(self._before.sparkSession, output)
        return seam.plans.with_processor(
            self._before, self._columns, schema, output_mode, time_mode, event_time
        )
