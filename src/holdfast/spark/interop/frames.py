"""Frames made of plans, which Spark analyses once and need not again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.interop.classes import java_class, java_object
from holdfast.spark.interop.model import Fill
from holdfast.spark.interop.scala import CATALYST, class_of, scala_list, scala_seq, walk
from holdfast.spark.interop.sessions import java_schema


def empty_frame(session: SparkSession, schema: StructType) -> DataFrame:
    """No rows, from an RDD of their own; unlike `createDataFrame`, it activates no session."""
    nothing = session.sparkContext._jsc.emptyRDD()
    java = session._jsparkSession.createDataFrame(nothing, java_schema(session, schema))
    return DataFrame(java, session)


def is_deterministic(frame: DataFrame) -> bool:
    """Whether a frame's rows follow from its inputs alone, however these are partitioned."""
    return bool(frame._jdf.queryExecution().analyzed().deterministic())


def has_watermark(frame: DataFrame) -> bool:
    """Whether some withWatermark is in a frame's plan."""
    plan = frame._jdf.queryExecution().analyzed()
    return any(class_of(node) == "EventTimeWatermark" for node in walk(plan))


def moved(frame: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows in another session."""
    return frame_of(session, frame._jdf.logicalPlan())


def frame_of(session: SparkSession, plan: Any) -> DataFrame:
    """The frame of a plan of Catalyst's."""
    dataset = java_class(session, "org.apache.spark.sql.classic.Dataset")
    return DataFrame(dataset.ofRows(session._jsparkSession, plan), session)


@dataclass(frozen=True)
class _Gap:
    """A node of a plan on the way to a stand-in, or the stand-in itself, which has no `parts`."""

    node: Any
    parts: tuple[_Gap | Any, ...] = ()
    number: int | None = None
    """Which stand-in it is; rows go here."""


def filler(session: SparkSession, frame: DataFrame, stand_ins: Sequence[DataFrame]) -> Fill | None:
    """What puts rows in the places of a frame's stand-ins, without asking Spark to analyse the
    frame again.

    None if the frame has to be made anew each time: when it is not deterministic, since random
    seeds are drawn by Spark's analysis, or when it has subqueries, which are not looked into.
    """
    gap = _find_gap(frame, stand_ins)
    return None if gap is None else partial(_fill_gap, session, gap)


def _find_gap(frame: DataFrame, stand_ins: Sequence[DataFrame]) -> _Gap | None:
    """Where a frame's plan reads the stand-ins."""
    plan = frame._jdf.queryExecution().analyzed()
    if not plan.deterministic() or any(node.subqueries().nonEmpty() for node in walk(plan)):
        return None
    leaves = [each._jdf.queryExecution().analyzed().rdd().id() for each in stand_ins]

    def gap(node: Any) -> _Gap | None:
        if class_of(node) == "LogicalRDD" and (rdd := node.rdd().id()) in leaves:
            return _Gap(node, number=leaves.index(rdd))
        children = scala_list(node.children())
        parts = [gap(child) for child in children]
        if not any(parts):
            return None
        found = tuple(part or child for part, child in zip(parts, children, strict=True))
        return _Gap(node, found)

    return gap(plan)


def _fill_gap(session: SparkSession, gap: _Gap, rows: Sequence[DataFrame | None]) -> DataFrame:
    """The plan with these rows in the places of the stand-ins, where they are not None.

    Requires: columns of the stand-ins' types.
    """

    def filled(part: Any) -> Any:
        if not isinstance(part, _Gap):
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


def observed_metrics(frame: DataFrame, prefix: str) -> list[list[int]]:
    """The numbers that the jobs over a frame observed under each name that begins so.

    Where the first of them is null they are left out.
    """
    found = [
        (str(pair._1()), pair._2())
        for pair in scala_list(frame._jdf.queryExecution().observedMetrics().toSeq())
    ]
    return [
        [int(row.getLong(place)) for place in range(int(row.length()))]
        for name, row in found
        if name.startswith(prefix) and not row.isNullAt(0)
    ]


def computed_rows(frame: DataFrame) -> int:
    """How many rows a frame has, every one of which is computed and forgotten."""
    return int(frame._jdf.queryExecution().toRdd().count())


def counts_every_row(frame: DataFrame) -> bool:
    """Whether each row of a stream has passed a withWatermark, whichever way it came."""

    def is_counted(node: Any) -> bool:
        if class_of(node) == "EventTimeWatermark":
            return True
        streams = [child for child in scala_list(node.children()) if child.isStreaming()]
        return bool(streams) and all(map(is_counted, streams))

    return is_counted(frame._jdf.queryExecution().analyzed())
