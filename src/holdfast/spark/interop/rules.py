"""Spark's rules for sinks, and its own errors."""

from __future__ import annotations

from typing import Any

from pyspark.errors.exceptions.captured import convert_exception
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.interop.classes import java_class
from holdfast.spark.interop.scala import CATALYST, scala_seq
from holdfast.spark.interop.sessions import is_case_sensitive, java_schema


def spark_error(session: SparkSession, name: str, *arguments: Any) -> Exception:
    """One of Spark's own errors of analysis, with its condition, to be raised here."""
    errors = java_class(session, "org.apache.spark.sql.errors.QueryCompilationErrors")
    given = [scala_seq(session, each) if isinstance(each, list) else each for each in arguments]
    return convert_exception(getattr(errors, name)(*given))


def output_mode(session: SparkSession, mode: str) -> Any:
    """Spark's object of an output mode."""
    return java_class(session, f"{CATALYST}.streaming.InternalOutputModes").apply(mode)


def check_partition_columns(session: SparkSession, schema: StructType, names: list[str]) -> None:
    """Spark's check that files can be laid out by these columns."""
    columns = java_schema(session, schema)
    sensitive = is_case_sensitive(session)
    utils = java_class(session, "org.apache.spark.sql.execution.datasources.PartitioningUtils")
    utils.validatePartitionColumn(columns, scala_seq(session, names), sensitive)


def check_data_source(session: SparkSession, name: str) -> None:
    """Spark's own error when it has no data source of that name."""
    source = java_class(session, "org.apache.spark.sql.execution.datasources.DataSource")
    source.lookupDataSource(name, session._jsparkSession.sessionState().conf())


def nullable_ddl(session: SparkSession, schema: StructType) -> str:
    """A schema's columns as SQL, nothing in it NOT NULL."""
    return str(java_schema(session, schema).asNullable().toDDL())
