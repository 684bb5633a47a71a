"""Frames, plans, columns and queries of Spark's, through its JVM."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.errors.exceptions.captured import convert_exception
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame, GroupedData, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructField, StructType, _parse_datatype_json_string
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType

from holdfast.errors import InvalidArgument
from holdfast.spark.interop.classes import java_class, java_object

_ROWS_PER_ARROW_BATCH = 1_000_000
# Older Sparks have another word for it.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in signature(to_arrow_schema).parameters
    else {"timestamp_utc": True}
)
CATALYST = "org.apache.spark.sql.catalyst"


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
    return frame_of(session, frame._jdf.logicalPlan())


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """The frame of a plan of Catalyst's."""
    dataset = java_class(session, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


@dataclass(frozen=True)
class Gap:
    """A node of a plan on the way to a stand-in, or the stand-in itself, which has no `parts`."""

    node: Any
    parts: tuple[Gap | Any, ...] = ()
    number: int | None = None
    """Which stand-in it is; rows go here."""


def find_gap(frame: DataFrame, stand_ins: Sequence[DataFrame]) -> Gap | None:
    """Where a frame's plan reads the stand-ins.

    None if the frame has to be made anew each time: when it is not deterministic, since random
    seeds are drawn by Spark's analysis, or when it has subqueries, which are not looked into.
    """
    plan = frame._jdf.queryExecution().analyzed()
    if not plan.deterministic() or any(node.subqueries().nonEmpty() for node in walk(plan)):
        return None
    leaves = [each._jdf.queryExecution().analyzed().rdd().id() for each in stand_ins]

    def gap(node: Any) -> Gap | None:
        if class_of(node) == "LogicalRDD" and (rdd := node.rdd().id()) in leaves:
            return Gap(node, number=leaves.index(rdd))
        children = scala_list(node.children())
        parts = [gap(child) for child in children]
        if not any(parts):
            return None
        found = tuple(part or child for part, child in zip(parts, children, strict=True))
        return Gap(node, found)

    return gap(plan)


def fill_gap(session: SparkSession, gap: Gap, rows: Sequence[DataFrame | None]) -> DataFrame:
    """The plan with these rows in the places of the stand-ins, where they are not None.

    Requires: columns of the stand-ins' types.
    """

    def filled(part: Any) -> Any:
        if not isinstance(part, Gap):
            return part
        if part.number is not None:
            given = rows[part.number]
            if given is None:
                return part.node
            source = given._jdf.queryExecution().analyzed()
            wanted = scala_list(part.node.output())
            return _renamed(session, source, scala_list(source.output()), wanted)
        return part.node.withNewChildren(scala_seq(session, [filled(p) for p in part.parts]))

    return frame_of(session, filled(gap))


def identified(frame: DataFrame, like: DataFrame) -> DataFrame:
    """The frame, its columns taken for those of another: what names a column of `like`, by a
    Column of it or by its alias, names the one in the same place. Requires: columns alike.
    """
    plan = frame._jdf.queryExecution().analyzed()
    given = scala_list(plan.output())
    wanted = scala_list(like._jdf.queryExecution().analyzed().output())
    return frame_of(frame.sparkSession, _renamed(frame.sparkSession, plan, given, wanted))


def _renamed(session: SparkSession, plan: Any, given: list[Any], wanted: list[Any]) -> Any:
    """A plan's columns under the identity of others."""
    nothing, none = scala_seq(session, []), java_object(session, "scala.None")
    alias = java_class(session, f"{CATALYST}.expressions.Alias")
    columns = [
        column.withQualifier(asked.qualifier())
        if column.exprId().equals(asked.exprId())
        else alias(column, asked.name(), asked.exprId(), asked.qualifier(), none, nothing)
        for column, asked in zip(given, wanted, strict=True)
    ]
    project = java_class(session, f"{CATALYST}.plans.logical.Project")
    return project(scala_seq(session, columns), plan)


def empty_rdd(session: SparkSession, partitions: int) -> Any:
    """As many partitions without rows as an RDD of the JVM."""
    return session.sparkContext.parallelize([], partitions)._jrdd.rdd()


def python_rdd(session: SparkSession, parts: Any) -> RDD[bytes]:
    """An RDD of the JVM whose rows are bytes, for work in Python."""
    return RDD(parts.toJavaRDD(), session.sparkContext, NoOpSerializer())


def arrow_rdd(frame: DataFrame) -> Any:
    """The partitions of a frame of our own session as an RDD of the JVM: Arrow record batches in
    bytes, of `arrow_schema`.
    """
    return frame._jdf.toArrowBatchRdd()


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The Arrow schema `arrow_rdd` gives."""
    return to_arrow_schema(frame.schema, prefers_large_types=False, **_IN_UTC)


def not_in_arrow(schema: StructType) -> StructField | None:
    """A column whose type does not go through Arrow and back, if there is one."""
    for column in schema:
        try:
            to_arrow_schema(
                StructType([column]), error_on_duplicated_field_names_in_struct=True, **_IN_UTC
            )
        except PySparkException:
            return column
    return None


def sql_of(column: Column) -> str:
    """A column as text."""
    java_column: Any = column._jc
    return str(java_column.toString())


LATE = "holdfast_late"
"""The name under which the number of late rows is observed."""


def observed_metrics(frame: DataFrame, prefix: str) -> list[int]:
    """The numbers that the jobs over a frame observed under names that begin so, without nulls."""
    found = [
        (str(pair._1()), pair._2())
        for pair in scala_list(frame._jdf.queryExecution().observedMetrics().toSeq())
    ]
    return [
        int(row.getLong(0))
        for name, row in found
        if name.startswith(prefix) and not row.isNullAt(0)
    ]


def has_watermark(frame: DataFrame) -> bool:
    """Whether some withWatermark is in a frame's plan."""
    plan = frame._jdf.queryExecution().analyzed()
    return any(class_of(node) == "EventTimeWatermark" for node in walk(plan))


def column_of(session: SparkSession, expression: Any) -> Column:
    """The column of an expression of Catalyst's."""
    utils = java_class(session, "org.apache.spark.sql.classic.ExpressionUtils")
    return Column(utils.column(expression))


def class_of(node: Any) -> str:
    """The name of a node's class."""
    return str(node.getClass().getSimpleName())


def walk(node: Any) -> Iterator[Any]:
    """A node of a tree and all below it."""
    yield node
    for child in scala_list(node.children()):
        yield from walk(child)


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


def parsed_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """A schema as a StructType; DDL text is read by Spark."""
    if isinstance(schema, StructType):
        return schema
    java = java_class(session, "org.apache.spark.sql.types.StructType")
    parsed = _parse_datatype_json_string(java.fromDDL(schema).json())
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
    columns = [column_of(session, each) for each in scala_list(grouped._jgd.groupingExprs())]
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


def spark_error(session: SparkSession, name: str, *arguments: Any) -> Exception:
    """One of Spark's own errors of analysis, with its condition, to be raised here."""
    errors = java_class(session, "org.apache.spark.sql.errors.QueryCompilationErrors")
    return convert_exception(getattr(errors, name)(*arguments))


def output_mode(session: SparkSession, mode: str) -> Any:
    """Spark's object of an output mode."""
    return java_class(session, f"{CATALYST}.streaming.InternalOutputModes").apply(mode)


def columns_called(frame: DataFrame, names: Iterable[str]) -> list[str]:
    """The columns that have these names, literally, by Spark's rule for upper and lower case."""
    if is_case_sensitive(frame.sparkSession):
        found = [column for name in names for column in frame.columns if column == name]
    else:
        found = [c for name in names for c in frame.columns if c.lower() == name.lower()]
    return list(dict.fromkeys(found))


def application_setting(session: SparkSession, name: str) -> str | None:
    """A setting of the application, None where nobody made it.

    `SparkContext.getConf` would copy all settings for it, in several calls of the JVM for each.
    """
    return session.sparkContext._conf.get(name)


def is_case_sensitive(session: SparkSession) -> bool:
    """Whether names of columns that differ in case only are different names."""
    return str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"


def check_partition_columns(session: SparkSession, schema: StructType, names: list[str]) -> None:
    """Spark's check that files can be laid out by these columns."""
    java_schema = _java_schema(session, schema)
    sensitive = is_case_sensitive(session)
    utils = java_class(session, "org.apache.spark.sql.execution.datasources.PartitioningUtils")
    utils.validatePartitionColumn(java_schema, scala_seq(session, names), sensitive)


def check_data_source(session: SparkSession, name: str) -> None:
    """Spark's own error when it has no data source of that name."""
    source = java_class(session, "org.apache.spark.sql.execution.datasources.DataSource")
    source.lookupDataSource(name, session._jsparkSession.sessionState().conf())


def nullable_ddl(session: SparkSession, schema: StructType) -> str:
    """A schema's columns as SQL, nothing in it NOT NULL."""
    return str(_java_schema(session, schema).asNullable().toDDL())


def _java_schema(session: SparkSession, schema: StructType) -> Any:
    return session._jsparkSession.parseDataType(schema.json())


def scala_list(sequence: Any) -> list[Any]:
    """A Scala Seq as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def scala_map(mapping: Any) -> dict[str, str]:
    """A Scala Map of texts as a dict."""
    pairs = mapping.toSeq()
    return {str(pair._1()): str(pair._2()) for pair in scala_list(pairs)}


def scala_seq(session: SparkSession, items: list[Any]) -> Any:
    """A list as a Scala Seq."""
    return java_class(session, "org.apache.spark.api.python.PythonUtils").toSeq(items)


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
