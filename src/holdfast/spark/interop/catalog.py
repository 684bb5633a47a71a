"""Tables as Spark's own catalog has them."""

from __future__ import annotations

from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidArgument
from holdfast.spark.interop import hadoop, rules, scala
from holdfast.spark.interop.memory import MemoryTable
from holdfast.spark.interop.model import FileTable

_SPARK_CATALOG = "spark_catalog"
_NOT_OPTIONS = ("path", "serialization.format")


def find(session: SparkSession, name: str) -> Any | None:
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
        raise rules.spark_error(session, "streamingIntoViewNotSupportedError", name)
    if not state.catalog().tableExists(identifier):
        return None
    found = state.catalog().getTableMetadata(identifier)
    if str(found.tableType().name()) == "VIEW":
        raise rules.spark_error(session, "streamingIntoViewNotSupportedError", name)
    return found


def file_table(session: SparkSession, name: str, found: Any) -> FileTable:
    """What `find` found."""
    provider = found.provider()
    properties = scala.scala_map(found.storage().properties())
    return FileTable(
        name=name,
        location=hadoop.location_of(session, found.location()),
        provider=str(provider.get()).lower() if provider.isDefined() else "hive",
        options={key: text for key, text in properties.items() if key not in _NOT_OPTIONS},
        columns=[str(field.name()) for field in found.schema().fields()],
        partition_by=[str(column) for column in scala.scala_list(found.partitionColumnNames())],
        tracks_partitions=bool(found.tracksPartitionsInCatalog()),
    )


def memory_table(name: str, native: DataFrame) -> MemoryTable:
    """A new, empty table of a frame's columns in the memory of the driver's JVM."""
    return MemoryTable(name, native)
