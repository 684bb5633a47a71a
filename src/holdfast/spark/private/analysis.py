"""How Spark analyzed an aggregation: its windows, and its functions taken apart.

`check` looks for the classes of Catalyst's that it names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import DataType, _parse_datatype_json_string

from holdfast.spark.private.jvm import (
    CATALYST,
    class_of,
    column_of,
    frame_of,
    gateway,
    scala_list,
    scala_seq,
    walk,
)
from holdfast.streams.sliding import Sliding


@dataclass(frozen=True)
class AggregateCall:
    """One aggregate function of a query: what it is called and the columns it is called with."""

    function: str
    sql: str
    inputs: tuple[Column, ...]
    input_types: tuple[DataType, ...]
    where: Column | None
    type: DataType
    distinct: bool
    mode: str = ""
    """How it takes an overflow, ANSI, LEGACY or TRY; nothing for most functions."""
    flags: tuple[Any, ...] = ()


@dataclass(frozen=True)
class AnalyzedAggregation:
    """An aggregation taken apart: its calls, and how each output column is made of them.

    `finish` takes the names of columns that hold the keys and the calls' values, and gives the
    output columns after the keys.
    """

    calls: tuple[AggregateCall, ...]
    finish: Callable[[list[str], list[str]], list[Column]]


def analyze_aggregation(frame: DataFrame, num_keys: int) -> AnalyzedAggregation:
    """Take apart a frame that is `something.groupBy(keys).agg(...)`."""
    session = frame.sparkSession
    plan = frame._jdf.queryExecution().analyzed()
    if plan.nodeName() != "Aggregate":
        raise AnalysisException(f"not an aggregation: {plan.nodeName()}")
    outputs = scala_list(plan.aggregateExpressions())
    groupings = scala_list(plan.groupingExpressions())
    names = [output.name() for output in outputs]
    found: list[Any] = []

    for output in outputs:
        for node in walk(output):
            if class_of(node) != "AggregateExpression":
                continue
            if not any(node.semanticEquals(other) for other in found):
                found.append(node)

    def finish(key_names: list[str], call_names: list[str]) -> list[Column]:
        def replaced(node: Any) -> Any:
            if class_of(node) == "AggregateExpression":
                at = next(i for i, other in enumerate(found) if node.semanticEquals(other))
                return _attribute(session, call_names[at])
            for key, grouping in zip(key_names, groupings, strict=False):
                if node.semanticEquals(grouping):
                    return _attribute(session, key)
            return _rebuilt(session, node, replaced)

        return [
            column_of(session, replaced(_unaliased(output))).alias(name)
            for output, name in zip(outputs[num_keys:], names[num_keys:], strict=True)
        ]

    columns = [column.name().lower() for column in scala_list(plan.child().output())]
    calls = tuple(_call(session, node, columns) for node in found)
    return AnalyzedAggregation(calls, finish)


@dataclass(frozen=True)
class TimeWindow:
    """A window of a fixed length that a frame is grouped by, and the times it is over."""

    time: Column
    shape: Sliding


_WINDOW_CALLS = ("window", "session_window")


def time_window(frame: DataFrame, place: int) -> TimeWindow | None:
    """The window that a frame, which is `something.groupBy(keys).agg(...)`, has at a place, if
    it has no other.
    """
    plan = frame._jdf.queryExecution().logical()
    if plan.nodeName() != "Aggregate":
        return None
    groupings = scala_list(plan.groupingExpressions())
    node = _unaliased(groupings[place])
    outputs = scala_list(plan.aggregateExpressions())[len(groupings) :]
    others = [other for number, other in enumerate(groupings) if number != place]
    if not _is_window_call(node) or any(
        _is_window_call(inner) for other in others + outputs for inner in walk(other)
    ):
        return None
    session = frame.sparkSession
    arguments = scala_list(node.children())
    if not all(class_of(argument) == "Literal" for argument in arguments[1:]):
        return None
    window = getattr(gateway(session), f"{CATALYST}.expressions.TimeWindow")(*arguments)
    shape = Sliding(
        int(window.windowDuration()), int(window.slideDuration()), int(window.startTime())
    )
    return TimeWindow(column_of(session, arguments[0]), shape)


def _is_window_call(node: Any) -> bool:
    return (
        class_of(node) == "UnresolvedFunction" and scala_list(node.nameParts())[-1] in _WINDOW_CALLS
    )


def aggregated_rows(frame: DataFrame) -> DataFrame:
    """The rows an aggregation goes over, with the session window Spark's analysis gave each."""
    return frame_of(frame.sparkSession, frame._jdf.queryExecution().analyzed().child())


def _call(session: SparkSession, node: Any, columns: list[str]) -> AggregateCall:
    function = node.aggregateFunction()
    children = scala_list(function.children())
    condition = node.filter()
    return AggregateCall(
        function=class_of(function),
        sql=node.sql(),
        inputs=tuple(_by_name(session, child, columns) for child in children),
        input_types=tuple(_type(child) for child in children),
        where=None if condition.isEmpty() else _by_name(session, condition.get(), columns),
        type=_type(node),
        distinct=bool(node.isDistinct()),
        mode=_mode(function),
        flags=_flags(function),
    )


def _mode(function: Any) -> str:
    """How a sum or an average takes an overflow."""
    kind = class_of(function)
    if kind not in ("Sum", "Average"):
        return ""
    # Newer Sparks tell that of a sum together with other things.
    told = {method.getName() for method in function.getClass().getMethods()}
    at = function.evalContext() if "evalContext" in told else function
    return str(at.evalMode().toString())


def _flags(function: Any) -> tuple[Any, ...]:
    """What a function was told beside its inputs."""
    kind = class_of(function)
    if kind in ("First", "Last"):
        return (bool(function.ignoreNulls()),)
    return (float(function.relativeSD()),) if kind == "HyperLogLogPlusPlus" else ()


def _by_name(session: SparkSession, node: Any, columns: list[str]) -> Column:
    """An expression as a column that refers to its inputs by name, unless several have it."""

    def replaced(inner: Any) -> Any:
        if class_of(inner) == "AttributeReference":
            is_one_of_several = columns.count(inner.name().lower()) > 1
            return inner if is_one_of_several else _attribute(session, inner.name())
        return _rebuilt(session, inner, replaced)

    return column_of(session, replaced(node))


def _rebuilt(session: SparkSession, node: Any, replaced: Callable[[Any], Any]) -> Any:
    children = scala_list(node.children())
    if not children:
        return node
    changed = [replaced(child) for child in children]
    sequence = scala_seq(session, changed)
    return node.withNewChildren(sequence)


def _attribute(session: SparkSession, name: str) -> Any:
    parts = scala_seq(session, [name])
    return getattr(gateway(session), f"{CATALYST}.analysis.UnresolvedAttribute")(parts)


def _unaliased(output: Any) -> Any:
    return output.child() if class_of(output) == "Alias" else output


def _type(expression: Any) -> DataType:
    return _parse_datatype_json_string(expression.dataType().json())
