"""Tables of files in Spark's catalog, as a sink uses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.errors import InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import FileTable
from holdfast.spark.operators.columns import quote_column

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"


def open_table(
    session: SparkSession,
    name: str,
    schema: StructType,
    file_format: str | None,
    partition_by: Sequence[str],
    location: str | None,
    cluster_by: Sequence[str] = (),
) -> FileTable:
    """The table of that name, created if there is none; rejected if files cannot be added to it.

    As in Spark, `cluster_by` is for a table that is created.
    """
    found = seam.tables.find(session, name)
    if found is None:
        _create(session, name, schema, file_format, partition_by, location, cluster_by)
        found = seam.tables.find(session, name)
        assert found is not None
    table = seam.tables.file_table(session, name, found)
    if table.provider not in FILE_FORMATS:
        raise InvalidArgument(
            f"The table {name} is of {table.provider}; toTable writes {', '.join(FILE_FORMATS)}. "
            "Write to it in foreachBatch."
        )
    if file_format is not None and file_format.lower() != table.provider:
        raise seam.rules.spark_error(
            session, "inputSourceDiffersFromDataSourceProviderError", file_format, name, found
        )
    if partition_by and list(partition_by) != table.partition_by:
        raise InvalidArgument(
            f"The table {name} is partitioned by {', '.join(table.partition_by) or 'nothing'}, "
            f"not by {', '.join(partition_by)}. Leave out partitionBy."
        )
    _check_columns(name, session.table(name).schema, schema)
    return table


def add_partitions(session: SparkSession, table: FileTable, folders: Sequence[str]) -> None:
    """Add partitions to the catalog, given as folders such as `day=1/kind=a`."""
    if not folders:
        return
    specs = " ".join(f"PARTITION ({_spec(folder)})" for folder in folders)
    session.sql(f"ALTER TABLE {table.name} ADD IF NOT EXISTS {specs}")


def _spec(folder: str) -> str:
    cells = []
    for part in folder.split("/"):
        name, _, value = part.partition("=")
        text = "NULL" if value == _NO_VALUE else _literal(unquote(value))
        cells.append(f"{quote_column(unquote(name))} = {text}")
    return ", ".join(cells)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _create(
    session: SparkSession,
    name: str,
    schema: StructType,
    file_format: str | None,
    partition_by: Sequence[str],
    location: str | None,
    cluster_by: Sequence[str],
) -> None:
    kind = (file_format or str(session.conf.get("spark.sql.sources.default"))).lower()
    if kind not in FILE_FORMATS:
        raise InvalidArgument(
            f"toTable makes tables of {', '.join(FILE_FORMATS)}, not of {kind}. Make the table "
            "yourself and write to it in foreachBatch."
        )
    statement = f"CREATE TABLE {name} ({seam.rules.nullable_ddl(session, schema)}) USING {kind}"
    if partition_by:
        statement += f" PARTITIONED BY ({', '.join(map(quote_column, partition_by))})"
    if cluster_by:
        statement += f" CLUSTER BY ({', '.join(map(quote_column, cluster_by))})"
    if location is not None:
        statement += f" LOCATION {_literal(location)}"
    session.sql(statement)


def _check_columns(name: str, table: StructType, rows: StructType) -> None:
    stored = {field.name: field.dataType.simpleString() for field in table}
    given = {field.name: field.dataType.simpleString() for field in rows}
    if stored != given:
        raise InvalidArgument(
            f"The table {name} has the columns {_columns(stored)}, the stream gives "
            f"{_columns(given)}. Select the table's columns before writeStream.",
            condition="STATE_STORE_INVALID_SCHEMA",
        )


def _columns(types: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in types.items())
