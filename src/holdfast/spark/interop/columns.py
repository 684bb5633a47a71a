"""Columns as text and by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, GroupedData, SparkSession

from holdfast.errors import InvalidArgument
from holdfast.spark.interop.classes import java_class
from holdfast.spark.interop.scala import scala_list
from holdfast.spark.interop.sessions import is_case_sensitive


def sql_of(column: Column) -> str:
    """A column as text."""
    java_column: Any = column._jc
    return str(java_column.toString())


def column_of(session: SparkSession, expression: Any) -> Column:
    """The column of an expression of Catalyst's."""
    utils = java_class(session, "org.apache.spark.sql.classic.ExpressionUtils")
    return Column(utils.column(expression))


def columns_called(frame: DataFrame, names: Iterable[str]) -> list[str]:
    """The columns that have these names, literally, by Spark's rule for upper and lower case."""
    if is_case_sensitive(frame.sparkSession):
        found = [column for name in names for column in frame.columns if column == name]
    else:
        found = [c for name in names for c in frame.columns if c.lower() == name.lower()]
    return list(dict.fromkeys(found))


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
