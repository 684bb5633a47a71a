"""Tables of files in Spark's own catalog, as a sink sees them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from holdfast.errors import InvalidArgument
from holdfast.spark import jvm
from holdfast.spark.operators import quoted

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
_SPARK_CATALOG = "spark_catalog"
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_NOT_OPTIONS = ("path", "serialization.format")


@dataclass(frozen=True)
class FileTable:
    """A table whose rows are files of a format below a location."""

    name: str
    location: str
    provider: str
    options: Mapping[str, str]
    columns: list[str]
    partition_by: list[str]
    tracks_partitions: bool
    """Whether the catalog has to be told of new partitions."""


def open_table(
    session: SparkSession,
    name: str,
    schema: StructType,
    file_format: str | None,
    partition_by: Sequence[str],
    location: str | None,
) -> FileTable:
    """The table of that name, made if there is none; refused where rows cannot go in as files."""
    found = _find(session, name)
    if found is None:
        _create(session, name, schema, file_format, partition_by, location)
        found = _find(session, name)
        assert found is not None
    table = _described(name, found)
    if table.provider not in FILE_FORMATS:
        raise InvalidArgument(
            f"The table {name} is of {table.provider}; toTable writes {', '.join(FILE_FORMATS)}. "
            "Write to it in foreachBatch."
        )
    if file_format is not None and file_format.lower() != table.provider:
        raise jvm.spark_error(
            session, "inputSourceDiffersFromDataSourceProviderError", file_format, name, found
        )
    if partition_by and list(partition_by) != table.partition_by:
        raise InvalidArgument(
            f"The table {name} is partitioned by {', '.join(table.partition_by) or 'nothing'}, "
            f"not by {', '.join(partition_by)}. Leave partitionBy away."
        )
    _check_columns(name, session.table(name).schema, schema)
    return table


def add_partitions(session: SparkSession, table: FileTable, folders: Sequence[str]) -> None:
    """Tell the catalog of partitions, given as folders such as `day=1/kind=a`."""
    if not folders:
        return
    specs = " ".join(f"PARTITION ({_spec(folder)})" for folder in folders)
    session.sql(f"ALTER TABLE {table.name} ADD IF NOT EXISTS {specs}")


def _spec(folder: str) -> str:
    cells = []
    for part in folder.split("/"):
        name, _, value = part.partition("=")
        text = "NULL" if value == _NO_VALUE else _literal(unquote(value))
        cells.append(f"{quoted(unquote(name))} = {text}")
    return ", ".join(cells)


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _find(session: SparkSession, name: str) -> Any | None:
    """The catalog's entry of a table."""
    state = session._jsparkSession.sessionState()
    identifier = state.sqlParser().parseTableIdentifier(name)
    catalog = identifier.catalog()
    used = catalog.get() if catalog.isDefined() else session.catalog.currentCatalog()
    if used != _SPARK_CATALOG:
        raise InvalidArgument(
            f"The table {name} is in the catalog {used}; toTable writes file tables of Spark's "
            "own catalog. Write to it in foreachBatch."
        )
    if state.catalog().isTempView(identifier):
        raise jvm.spark_error(session, "streamingIntoViewNotSupportedError", name)
    if not state.catalog().tableExists(identifier):
        return None
    found = state.catalog().getTableMetadata(identifier)
    if str(found.tableType().name()) == "VIEW":
        raise jvm.spark_error(session, "streamingIntoViewNotSupportedError", name)
    return found


def _described(name: str, found: Any) -> FileTable:
    provider = found.provider()
    properties = jvm.scala_map(found.storage().properties())
    return FileTable(
        name=name,
        location=str(found.location().toString()),
        provider=str(provider.get()).lower() if provider.isDefined() else "hive",
        options={key: text for key, text in properties.items() if key not in _NOT_OPTIONS},
        columns=[str(field.name()) for field in found.schema().fields()],
        partition_by=[str(column) for column in jvm.scala_list(found.partitionColumnNames())],
        tracks_partitions=bool(found.tracksPartitionsInCatalog()),
    )


def _create(
    session: SparkSession,
    name: str,
    schema: StructType,
    file_format: str | None,
    partition_by: Sequence[str],
    location: str | None,
) -> None:
    kind = (file_format or str(session.conf.get("spark.sql.sources.default"))).lower()
    if kind not in FILE_FORMATS:
        raise InvalidArgument(
            f"toTable makes tables of {', '.join(FILE_FORMATS)}, not of {kind}. Make the table "
            "yourself and write to it in foreachBatch."
        )
    statement = f"CREATE TABLE {name} ({jvm.nullable_ddl(session, schema)}) USING {kind}"
    if partition_by:
        statement += f" PARTITIONED BY ({', '.join(map(quoted, partition_by))})"
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
