"""Every call into PySpark's and Spark's private parts, so that a new Spark is checked in one place.

Nothing else in the package touches `_jdf`, `_jvm` or a Catalyst class.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.errors import AnalysisException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import DataType, StructType, _parse_datatype_json_string
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from holdfast.errors import InvalidArgument
from holdfast.streams.sliding import Sliding

_ROWS_PER_ARROW_BATCH = 1_000_000
# Older Sparks have another word for it.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in signature(to_arrow_schema).parameters
    else {"timestamp_utc": True}
)
_CATALYST = "org.apache.spark.sql.catalyst"
_REQUIRED = (
    "org.apache.spark.sql.classic.Dataset",
    "org.apache.spark.sql.classic.ExpressionUtils",
    f"{_CATALYST}.analysis.UnresolvedAttribute",
    f"{_CATALYST}.analysis.UnsupportedOperationChecker",
    f"{_CATALYST}.expressions.Alias",
    f"{_CATALYST}.expressions.TimeWindow",
    f"{_CATALYST}.plans.logical.Project",
    f"{_CATALYST}.streaming.InternalOutputModes",
)


def check_spark(frame: Any) -> None:
    """Refuse Spark Connect, and a Spark that lacks what Holdfast calls, naming its version."""
    if not isinstance(frame, DataFrame) or not hasattr(frame, "_jdf"):
        raise InvalidArgument(
            "Holdfast needs a classic Spark session: this DataFrame comes from Spark Connect or "
            "is no DataFrame. Start the session with a master such as local[*], without .remote()."
        )
    session = frame.sparkSession
    loader = _jvm(session).java.lang.Thread.currentThread().getContextClassLoader()
    for name in _REQUIRED:
        try:
            loader.loadClass(name)
        except Exception as error:
            raise InvalidArgument(
                f"Spark {session.version} has no {name}, which Holdfast needs. Use Spark 4.x."
            ) from error


def _jvm(session: SparkSession) -> Any:
    return session.sparkContext._jvm


def own_session(session: SparkSession, partitions: int) -> SparkSession:
    """A session of ours: its settings reach neither the user's plan nor the sink.

    What the user's session says about Arrow must not change what the bytes of `arrow_rdd` mean.
    """
    java_session = session._jsparkSession.cloneSession()
    settings = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(partitions),
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(_ROWS_PER_ARROW_BATCH),
        "spark.sql.execution.arrow.useLargeVarTypes": "false",
        "spark.sql.execution.pandas.structHandlingMode": "legacy",
    }
    for name, value in settings.items():
        java_session.conf().set(name, value)
    return SparkSession(session.sparkContext, java_session)


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """No rows, from an RDD of their own; unlike `createDataFrame`, it activates no session."""
    nothing = session.sparkContext._jsc.emptyRDD()
    java = session._jsparkSession.createDataFrame(nothing, _java_schema(session, schema))
    return DataFrame(java, session)


def is_deterministic(frame: DataFrame) -> bool:
    """Whether a frame's rows follow from its inputs alone, however these are partitioned."""
    return bool(frame._jdf.queryExecution().analyzed().deterministic())


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows in another session."""
    return _frame(session, frame._jdf.logicalPlan())


def _frame(session: SparkSession, plan: Any) -> DataFrame:
    dataset = _jvm(session).org.apache.spark.sql.classic.Dataset
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


@dataclass(frozen=True)
class Gap:
    """A node of a plan on the way to a stand-in, or the stand-in itself, which has no `parts`."""

    node: Any
    parts: tuple[Gap | Any, ...] = ()

    @property
    def is_stand_in(self) -> bool:
        """Whether rows go here."""
        return not self.parts


def find_gap(frame: DataFrame, stand_in: DataFrame) -> Gap | None:
    """Where a frame's plan reads the stand-in.

    None if the frame has to be made anew each time: when it is not deterministic, since random
    seeds are drawn by Spark's analysis, or when it has subqueries, which are not looked into.
    """
    leaf = stand_in._jdf.queryExecution().analyzed()
    plan = frame._jdf.queryExecution().analyzed()
    if not plan.deterministic() or any(node.subqueries().nonEmpty() for node in _walk(plan)):
        return None
    rdd = leaf.rdd().id()

    def gap(node: Any) -> Gap | None:
        if _class(node) == "LogicalRDD" and node.rdd().id() == rdd:
            return Gap(node)
        children = _items(node.children())
        parts = [gap(child) for child in children]
        if not any(parts):
            return None
        found = tuple(part or child for part, child in zip(parts, children, strict=True))
        return Gap(node, found)

    return gap(plan)


def fill_gap(session: SparkSession, gap: Gap, rows: DataFrame) -> DataFrame:
    """The plan with these rows in the place of the stand-in. Requires: columns of its types."""
    source = rows._jdf.queryExecution().analyzed()
    given = _items(source.output())

    def filled(part: Any) -> Any:
        if not isinstance(part, Gap):
            return part
        if part.is_stand_in:
            return _renamed(session, source, given, _items(part.node.output()))
        return part.node.withNewChildren(scala_seq(session, [filled(p) for p in part.parts]))

    return _frame(session, filled(gap))


def _renamed(session: SparkSession, plan: Any, given: list[Any], wanted: list[Any]) -> Any:
    """A plan's columns under the identity of others."""
    jvm, nothing = _jvm(session), scala_seq(session, [])
    alias = jvm.org.apache.spark.sql.catalyst.expressions.Alias
    none = getattr(jvm, "scala.None$").__getattr__("MODULE$")
    columns = [
        alias(column, asked.name(), asked.exprId(), nothing, none, nothing)
        for column, asked in zip(given, wanted, strict=True)
    ]
    project = jvm.org.apache.spark.sql.catalyst.plans.logical.Project
    return project(scala_seq(session, columns), plan)


def arrow_rdd(frame: DataFrame) -> tuple[RDD[bytes], bytes]:
    """The partitions of a frame of our own session as Arrow record batches in bytes, and their
    schema in bytes.
    """
    java_rdd = frame._jdf.toArrowBatchRdd()
    context = frame.sparkSession.sparkContext
    rdd: RDD[bytes] = RDD(java_rdd.toJavaRDD(), context, NoOpSerializer())
    return rdd, arrow_schema(frame).serialize().to_pybytes()


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema `arrow_rdd` gives."""
    return to_arrow_schema(frame.schema, prefers_large_types=False, **_IN_UTC)


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
    flags: tuple[Any, ...] = ()


@dataclass(frozen=True)
class AnalyzedAggregation:
    """An aggregation taken apart: its calls, and how each output column is made of them.

    `finish` takes a column for each call and gives the output columns; keys are named `key_names`.
    """

    key_names: tuple[str, ...]
    calls: tuple[AggregateCall, ...]
    finish: Callable[[list[str]], list[Column]]


def analyze_aggregation(frame: DataFrame, num_keys: int) -> AnalyzedAggregation:
    """Take apart a frame that is `something.groupBy(keys).agg(...)`."""
    session = frame.sparkSession
    plan = frame._jdf.queryExecution().analyzed()
    if plan.nodeName() != "Aggregate":
        raise AnalysisException(f"not an aggregation: {plan.nodeName()}")
    outputs = _items(plan.aggregateExpressions())
    groupings = _items(plan.groupingExpressions())
    names = [output.name() for output in outputs]
    found: list[Any] = []

    for output in outputs:
        for node in _walk(output):
            if _class(node) != "AggregateExpression":
                continue
            if not any(node.semanticEquals(other) for other in found):
                found.append(node)

    def finish(call_names: list[str]) -> list[Column]:
        def replaced(node: Any) -> Any:
            if _class(node) == "AggregateExpression":
                at = next(i for i, other in enumerate(found) if node.semanticEquals(other))
                return _attribute(session, call_names[at])
            for key, grouping in zip(names[:num_keys], groupings, strict=False):
                if node.semanticEquals(grouping):
                    return _attribute(session, key)
            return _rebuilt(session, node, replaced)

        return [
            _column(session, replaced(_unaliased(output))).alias(name)
            for output, name in zip(outputs[num_keys:], names[num_keys:], strict=True)
        ]

    calls = tuple(_call(session, node) for node in found)
    return AnalyzedAggregation(tuple(names[:num_keys]), calls, finish)


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
    groupings = _items(plan.groupingExpressions())
    node = _unaliased(groupings[place])
    outputs = _items(plan.aggregateExpressions())[len(groupings) :]
    others = [other for number, other in enumerate(groupings) if number != place]
    if not _is_window_call(node) or any(
        _is_window_call(inner) for other in others + outputs for inner in _walk(other)
    ):
        return None
    session = frame.sparkSession
    arguments = _items(node.children())
    if not all(_class(argument) == "Literal" for argument in arguments[1:]):
        return None
    window = getattr(_jvm(session), f"{_CATALYST}.expressions.TimeWindow")(*arguments)
    shape = Sliding(
        int(window.windowDuration()), int(window.slideDuration()), int(window.startTime())
    )
    return TimeWindow(_column(session, arguments[0]), shape)


def _is_window_call(node: Any) -> bool:
    return _class(node) == "UnresolvedFunction" and _items(node.nameParts())[-1] in _WINDOW_CALLS


def sql_of(column: Column) -> str:
    """A column as text."""
    java_column: Any = column._jc
    return str(java_column.toString())


def aggregated_rows(frame: DataFrame) -> DataFrame:
    """The rows an aggregation goes over, with the session window Spark's analysis gave each."""
    return _frame(frame.sparkSession, frame._jdf.queryExecution().analyzed().child())


LATE = "holdfast_late"
"""The name under which the number of late rows is observed."""


def observed_late_rows(frame: DataFrame) -> int:
    """How many late rows the jobs over a frame saw, where it counts them."""
    metrics = frame._jdf.queryExecution().observedMetrics()
    return int(metrics.apply(LATE).getLong(0)) if metrics.contains(LATE) else 0


def _call(session: SparkSession, node: Any) -> AggregateCall:
    function = node.aggregateFunction()
    children = _items(function.children())
    condition = node.filter()
    return AggregateCall(
        function=_class(function),
        sql=node.sql(),
        inputs=tuple(_by_name(session, child) for child in children),
        input_types=tuple(_type(child) for child in children),
        where=None if condition.isEmpty() else _by_name(session, condition.get()),
        type=_type(node),
        distinct=bool(node.isDistinct()),
        flags=_flags(function),
    )


def _flags(function: Any) -> tuple[Any, ...]:
    """What a function was told beside its inputs."""
    kind = _class(function)
    if kind in ("First", "Last"):
        return (bool(function.ignoreNulls()),)
    return (float(function.relativeSD()),) if kind == "HyperLogLogPlusPlus" else ()


def _by_name(session: SparkSession, node: Any) -> Column:
    """An expression as a column that refers to its inputs by name."""

    def replaced(inner: Any) -> Any:
        if _class(inner) == "AttributeReference":
            return _attribute(session, inner.name())
        return _rebuilt(session, inner, replaced)

    return _column(session, replaced(node))


def _rebuilt(session: SparkSession, node: Any, replaced: Callable[[Any], Any]) -> Any:
    children = _items(node.children())
    if not children:
        return node
    changed = [replaced(child) for child in children]
    sequence = _jvm(session).PythonUtils.toSeq(changed)
    return node.withNewChildren(sequence)


def _attribute(session: SparkSession, name: str) -> Any:
    parts = _jvm(session).PythonUtils.toSeq([name])
    return getattr(_jvm(session), f"{_CATALYST}.analysis.UnresolvedAttribute")(parts)


def _column(session: SparkSession, expression: Any) -> Column:
    return Column(_jvm(session).org.apache.spark.sql.classic.ExpressionUtils.column(expression))


def _unaliased(output: Any) -> Any:
    return output.child() if _class(output) == "Alias" else output


def _type(expression: Any) -> DataType:
    return _parse_datatype_json_string(expression.dataType().json())


def _class(node: Any) -> str:
    return str(node.getClass().getSimpleName())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def _walk(node: Any) -> Iterator[Any]:
    yield node
    for child in _items(node.children()):
        yield from _walk(child)


def check_supported(frame: DataFrame, output_mode: str) -> None:
    """Spark's own check of operators against an output mode, with Spark's own errors."""
    session = frame.sparkSession
    catalyst = _jvm(session).org.apache.spark.sql.catalyst
    modes = catalyst.streaming.InternalOutputModes
    plan = frame._jdf.queryExecution().analyzed()
    catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(plan, modes.apply(output_mode))


_STATEFUL = frozenset({
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "Distinct", "FlatMapGroupsWithState",
    "FlatMapGroupsInPandasWithState", "TransformWithState", "TransformWithStateInPySpark",
    "TransformWithStateInPandas", "GlobalLimit", "LocalLimit",
})  # fmt: skip


def native_stateful_operators(frame: DataFrame) -> list[str]:
    """The stateful operators of Spark's own in a streaming frame's plan."""
    found = []
    for node in _walk(frame._jdf.queryExecution().analyzed()):
        if not node.isStreaming():
            continue
        name = _class(node)
        sides = _items(node.children())
        if name in _STATEFUL or (name == "Join" and all(side.isStreaming() for side in sides)):
            found.append(name)
    return found


def parsed_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """A schema as a StructType; DDL text is read by Spark."""
    if isinstance(schema, StructType):
        return schema
    java = _jvm(session).org.apache.spark.sql.types.StructType.fromDDL(schema)
    parsed = _parse_datatype_json_string(java.json())
    assert isinstance(parsed, StructType)
    return parsed


def groups_of(grouped: Any) -> tuple[DataFrame, tuple[Column, ...]]:
    """The rows of a GroupedData, and the columns they are grouped by."""
    if not isinstance(grouped, GroupedData):
        raise InvalidArgument(
            f"The initial state is {type(grouped).__name__}: give the result of groupBy(…) of a "
            "DataFrame that is no stream."
        )
    frame = grouped._df
    session = frame.sparkSession
    columns = [_column(session, each) for each in scala_list(grouped._jgd.groupingExprs())]
    return frame, tuple(columns)


def with_processor(
    frame: DataFrame, groupings: tuple[Column, ...], output: StructType, output_mode: str,
    time_mode: str, event_time: str,
) -> DataFrame:  # fmt: skip
    """Spark's own transformWithState of a function that is never called: for its analysis."""
    grouped = frame.groupBy(*groupings)
    kind = PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF
    column, schema = _stand_in(frame, output, kind)
    java = grouped._jgd.transformWithStateInPandas(
        column, schema, output_mode, time_mode, None, event_time
    )
    return DataFrame(java, frame.sparkSession)


def with_group_state(
    frame: DataFrame, groupings: tuple[Column, ...], output: StructType, state: StructType,
    output_mode: str, timeout: str,
) -> DataFrame:  # fmt: skip
    """Spark's own applyInPandasWithState of a function that is never called: for its analysis."""
    grouped = frame.groupBy(*groupings)
    kind = PythonEvalType.SQL_GROUPED_MAP_PANDAS_UDF_WITH_STATE
    column, schema = _stand_in(frame, output, kind)
    held = _java_schema(frame.sparkSession, state)
    java = grouped._jgd.applyInPandasWithState(column, schema, held, output_mode, timeout)
    return DataFrame(java, frame.sparkSession)


def _stand_in(frame: DataFrame, output: StructType, kind: Any) -> tuple[Any, Any]:
    """A call of a function that is never called with all columns, and its output's schema."""
    function = UserDefinedFunction(_never_called, returnType=output, evalType=kind)
    column = function(*[frame["`" + name.replace("`", "``") + "`"] for name in frame.columns])
    return column._jc, _java_schema(frame.sparkSession, output)


def _never_called(*arguments: Any) -> Any:
    raise NotImplementedError


@dataclass(frozen=True)
class EventTimeStats:
    """What one withWatermark of the running query saw: the delay and the largest time so far."""

    delay_ms: int
    rows: int
    max_ms: int


Observe = Callable[[], list[EventTimeStats]]


def event_time_stats(java_query: Any) -> list[EventTimeStats]:
    """The event times of the batch under way, one entry for each withWatermark of the query."""
    execution = java_query.streamingQuery().lastExecution()
    found = []
    for node in _walk(execution.executedPlan()):
        if _class(node) == "EventTimeWatermarkExec":
            stats = node.eventTimeStats().value()
            found.append(EventTimeStats(int(node.delayMs()), int(stats.count()), int(stats.max())))
    return found


def spark_error(session: SparkSession, name: str, *arguments: Any) -> Exception:
    """One of Spark's own errors of analysis, with its condition, to be raised here."""
    errors = _jvm(session).org.apache.spark.sql.errors.QueryCompilationErrors
    return convert_exception(getattr(errors, name)(*arguments))


def output_mode(session: SparkSession, mode: str) -> Any:
    """Spark's object of an output mode."""
    return _jvm(session).org.apache.spark.sql.catalyst.streaming.InternalOutputModes.apply(mode)


def check_partition_columns(session: SparkSession, schema: StructType, names: list[str]) -> None:
    """Spark's check that files can be laid out by these columns."""
    java = _jvm(session)
    java_schema = _java_schema(session, schema)
    sensitive = str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"
    utils = java.org.apache.spark.sql.execution.datasources.PartitioningUtils
    utils.validatePartitionColumn(java_schema, java.PythonUtils.toSeq(names), sensitive)


def check_data_source(session: SparkSession, name: str) -> None:
    """Spark's own error when it has no data source of that name."""
    source = _jvm(session).org.apache.spark.sql.execution.datasources.DataSource
    source.lookupDataSource(name, session._jsparkSession.sessionState().conf())


def nullable_ddl(session: SparkSession, schema: StructType) -> str:
    """A schema's columns as SQL, nothing in it NOT NULL."""
    return str(_java_schema(session, schema).asNullable().toDDL())


def _java_schema(session: SparkSession, schema: StructType) -> Any:
    return session._jsparkSession.parseDataType(schema.json())


def scala_list(sequence: Any) -> list[Any]:
    """A Scala Seq as a list."""
    return _items(sequence)


def scala_map(mapping: Any) -> dict[str, str]:
    """A Scala Map of texts as a dict."""
    pairs = mapping.toSeq()
    return {str(pair._1()): str(pair._2()) for pair in _items(pairs)}


def scala_seq(session: SparkSession, items: list[Any]) -> Any:
    """A list as a Scala Seq."""
    return _jvm(session).PythonUtils.toSeq(items)


def idle_interval_ms(query: StreamingQuery) -> int:
    """How often Spark tells that a query is idle."""
    session = query._jsq.sparkSession()
    return int(session.sessionState().conf().streamingNoDataProgressEventInterval())


def source_progress(query: StreamingQuery, batch_id: int) -> list[dict[str, Any]] | None:
    """What Spark's own progress says of a batch's sources; None before Spark has told."""
    for told in reversed(list(query._jsq.recentProgress())):
        if told.batchId() == batch_id:
            return list(json.loads(told.json())["sources"])
    return None
