"""What Spark's own streaming says of a plan: its stateful operators, its checks, its schemas."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql.types import StructType
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from holdfast.spark.interop.classes import java_class
from holdfast.spark.interop.rules import output_mode
from holdfast.spark.interop.scala import CATALYST, class_of, scala_list, walk
from holdfast.spark.interop.sessions import java_schema


def check_supported(frame: DataFrame, mode: str) -> None:
    """Spark's own check of operators against an output mode, with Spark's own errors."""
    session = frame.sparkSession
    checker = java_class(session, f"{CATALYST}.analysis.UnsupportedOperationChecker")
    plan = frame._jdf.queryExecution().analyzed()
    checker.checkForStreaming(plan, output_mode(session, mode))


_STATEFUL = frozenset({
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPySpark",
    "TransformWithStateInPandas", "GlobalLimit", "LocalLimit",
})  # fmt: skip


def native_stateful_operators(frame: DataFrame) -> list[str]:
    """The stateful operators of Spark's own in a streaming frame's plan."""
    found = []
    for node in walk(frame._jdf.queryExecution().analyzed()):
        if not node.isStreaming():
            continue
        name = class_of(node)
        sides = scala_list(node.children())
        if name in _STATEFUL or (name == "Join" and all(side.isStreaming() for side in sides)):
            found.append(name)
    return found


def with_processor(
    frame: DataFrame,
    groupings: tuple[Column, ...],
    output: StructType,
    output_mode: str,
    time_mode: str,
    event_time: str,
) -> DataFrame:
    """Spark's own transformWithState of a function that is never called: for its analysis."""
    grouped = frame.groupBy(*groupings)
    kind = PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF
    column, schema = _stand_in(frame, output, kind)
    java = grouped._jgd.transformWithStateInPandas(
        column, schema, output_mode, time_mode, None, event_time
    )
    return DataFrame(java, frame.sparkSession)


def with_group_state(
    frame: DataFrame,
    groupings: tuple[Column, ...],
    output: StructType,
    state: StructType,
    output_mode: str,
    timeout: str,
) -> DataFrame:
    """Spark's own applyInPandasWithState of a function that is never called: for its analysis."""
    grouped = frame.groupBy(*groupings)
    kind = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE
    column, schema = _stand_in(frame, output, kind)
    held = java_schema(frame.sparkSession, state)
    java = grouped._jgd.applyInPandasWithState(column, schema, held, output_mode, timeout)
    return DataFrame(java, frame.sparkSession)


def _stand_in(frame: DataFrame, output: StructType, kind: Any) -> tuple[Any, Any]:
    """A call of a function that is never called with all columns, and its output's schema."""
    function = UserDefinedFunction(_never_called, returnType=output, evalType=kind)
    column = function(*[frame["`" + name.replace("`", "``") + "`"] for name in frame.columns])
    return column._jc, java_schema(frame.sparkSession, output)


def _never_called(*arguments: Any) -> Any:
    raise NotImplementedError
