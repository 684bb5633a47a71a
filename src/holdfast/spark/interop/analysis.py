"""How Spark analyzed an aggregation: its windows, and its functions taken apart.

`check` looks for the classes of Catalyst's that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import (
    DataType,
    _parse_datatype_json_string,
)

from holdfast.errors import InvalidArgument
from holdfast.spark.interop.classes import java_class
from holdfast.spark.interop.columns import column_of
from holdfast.spark.interop.frames import frame_of
from holdfast.spark.interop.model import AggregateCall, AnalyzedAggregation, TimeWindow
from holdfast.spark.interop.scala import CATALYST, class_of, scala_list, scala_seq, walk
from holdfast.streams.aggregates.functions import BY_NODE
from holdfast.streams.tasks.sliding import SlidingWindows


def analyze_aggregation(frame: DataFrame, num_keys: int) -> AnalyzedAggregation:
    """Take apart a frame that is `something.groupBy(keys).agg(...)`."""
    session = frame.sparkSession
    plan, outputs = _made_of(session, frame._jdf.queryExecution().analyzed())
    groupings = scala_list(plan.groupingExpressions())
    found: list[Any] = []

    for output in outputs:
        for node in walk(output.expression):
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
            column_of(session, replaced(output.expression)).alias(output.name)
            for output in outputs[num_keys:]
        ]

    columns = [column.name().lower() for column in scala_list(plan.child().output())]
    calls = tuple(_call(session, node, columns) for node in found)
    return AnalyzedAggregation(calls, finish)


@dataclass(frozen=True)
class _Output:
    """A column that comes out of an aggregation, and what it is made of in terms of its input."""

    name: str
    id: int
    expression: Any


def _made_of(session: SparkSession, plan: Any) -> tuple[Any, list[_Output]]:
    """The aggregation of a plan, and the columns that come out of the plan.

    Spark puts projections on top where a column is made of others by the names given to them.
    """
    if plan.nodeName() == "Aggregate":
        return plan, [_output(node) for node in scala_list(plan.aggregateExpressions())]
    if plan.nodeName() != "Project":
        raise InvalidArgument(
            f"An aggregation of a stream makes one row of each group, and {plan.nodeName()} does "
            "more. Call agg with the aggregate alone, and the rest in a select after it."
        )
    aggregate, below = _made_of(session, plan.child())
    known = {output.id: output.expression for output in below}

    def replaced(node: Any) -> Any:
        if class_of(node) == "AttributeReference":
            return known.get(node.exprId().id(), node)
        return _rebuilt(session, node, replaced)

    outputs = map(_output, scala_list(plan.projectList()))
    return aggregate, [replace(each, expression=replaced(each.expression)) for each in outputs]


def _output(node: Any) -> _Output:
    return _Output(str(node.name()), int(node.exprId().id()), _unaliased(node))


def time_window(frame: DataFrame) -> TimeWindow | None:
    """The window that is part of what a frame, `something.groupBy(keys).agg(...)`, is grouped by.

    There is one at most: Spark refuses more.
    """
    plan = frame._jdf.queryExecution().logical()
    if plan.nodeName() != "Aggregate":
        return None
    nodes = (node for key in scala_list(plan.groupingExpressions()) for node in walk(key))
    found = next((node for node in nodes if _is_window_call(node)), None)
    if found is None:
        return None
    session = frame.sparkSession
    arguments = scala_list(found.children())
    if not all(class_of(argument) == "Literal" for argument in arguments[1:]):
        return None
    window = java_class(session, f"{CATALYST}.expressions.TimeWindow")(*arguments)
    shape = SlidingWindows(
        int(window.windowDuration()), int(window.slideDuration()), int(window.startTime())
    )
    return TimeWindow(column_of(session, arguments[0]), column_of(session, found), shape)


def is_key_alone(frame: DataFrame, place: int) -> bool:
    """Whether the window of a frame, which is `something.groupBy(keys).agg(...)`, is the key at a
    place and part of no other key and no aggregate.
    """
    plan = frame._jdf.queryExecution().logical()
    groupings = scala_list(plan.groupingExpressions())
    others = scala_list(plan.aggregateExpressions())[len(groupings) :]
    others += [other for number, other in enumerate(groupings) if number != place]
    if not _is_window_call(_unaliased(groupings[place])):
        return False
    if any(_is_window_call(node) for other in others for node in walk(other)):
        return False
    plan, outputs = _made_of(frame.sparkSession, frame._jdf.queryExecution().analyzed())
    window = scala_list(plan.groupingExpressions())[place]
    nodes = (node for output in outputs for node in walk(output.expression))
    calls = (node for node in nodes if class_of(node) == "AggregateExpression")
    return not any(node.semanticEquals(window) for call in calls for node in walk(call))


def _is_window_call(node: Any) -> bool:
    if class_of(node) != "UnresolvedFunction":
        return False
    return str(scala_list(node.nameParts())[-1]).lower() == "window"


def aggregated_rows(frame: DataFrame) -> DataFrame:
    """The rows an aggregation goes over, with the session window Spark's analysis gave each."""
    return frame_of(frame.sparkSession, frame._jdf.queryExecution().analyzed().child())


def _call(session: SparkSession, node: Any, columns: list[str]) -> AggregateCall:
    function = node.aggregateFunction()
    children = scala_list(function.children())
    known = BY_NODE.get(class_of(function))
    return AggregateCall(
        node=class_of(function),
        sql=node.sql(),
        input_types=tuple(_type(child) for child in children),
        column=_over_inputs(session, node, columns),
        distinct=bool(node.isDistinct()),
        mode=_mode(function) if known and known.may_overflow else "",
        flag=getattr(function, known.flag.getter)() if known and known.flag else None,
    )


def _over_inputs(session: SparkSession, node: Any, columns: list[str]) -> Callable[[str], Column]:
    """`AggregateCall.column` of an aggregate expression."""
    where = node.filter()
    kept = None if where.isEmpty() else _by_name(session, where.get(), columns)
    given = {"kept": _parsed(session, "true", {}) if kept is None else kept}
    for number, child in enumerate(scala_list(node.aggregateFunction().children()), 1):
        cell = _by_name(session, child, columns)
        if kept is not None:
            cell = _parsed(session, "CASE WHEN kept THEN x END", {"kept": kept, "x": cell})
        given[f"x{number}"] = cell
    return lambda text: column_of(session, _parsed(session, text, given))


def _parsed(session: SparkSession, text: str, given: Mapping[str, Any]) -> Any:
    """The expression of a text in SQL, with those given in the places of their names."""

    def replaced(node: Any) -> Any:
        if class_of(node) == "UnresolvedAttribute":
            return given.get(str(node.name()), node)
        return _rebuilt(session, node, replaced)

    parser = session._jsparkSession.sessionState().sqlParser()
    return replaced(parser.parseExpression(text))


def _mode(function: Any) -> str:
    """How a function takes an overflow."""
    try:  # newer Sparks tell that of a sum together with other things
        at = function.evalContext()
    except Py4JError:
        at = function
    return str(at.evalMode().toString())


def _by_name(session: SparkSession, node: Any, columns: list[str]) -> Any:
    """An expression that refers to its inputs by name, unless several have it."""

    def replaced(inner: Any) -> Any:
        if class_of(inner) == "AttributeReference":
            is_one_of_several = columns.count(inner.name().lower()) > 1
            return inner if is_one_of_several else _attribute(session, inner.name())
        return _rebuilt(session, inner, replaced)

    return replaced(node)


def _rebuilt(session: SparkSession, node: Any, replaced: Callable[[Any], Any]) -> Any:
    children = scala_list(node.children())
    if not children:
        return node
    changed = [replaced(child) for child in children]
    sequence = scala_seq(session, changed)
    return node.withNewChildren(sequence)


def _attribute(session: SparkSession, name: str) -> Any:
    parts = scala_seq(session, [name])
    return java_class(session, f"{CATALYST}.analysis.UnresolvedAttribute")(parts)


def _unaliased(output: Any) -> Any:
    return output.child() if class_of(output) == "Alias" else output


def _type(expression: Any) -> DataType:
    return _parse_datatype_json_string(expression.dataType().json())
