"""Spark's rules for sinks, checked by start() with Spark's own errors; the checkpoint's place."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import uuid4

from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession
from pyspark.sql.types import BinaryType, StringType, StructType

from holdfast.checkpoint import OFFSETS
from holdfast.errors import InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.sinks.tables import FILE_FORMATS

_FOR_A_WHILE = ("memory", "foreach", "foreachBatch", "console", "noop")
"""Sinks whose queries may use a temporary checkpoint."""
_UNPARTITIONED = ("memory", "foreach", "foreachBatch")


@dataclass(frozen=True)
class Checkpoint:
    """A query's checkpoint; a temporary one is removed when the query ends without an error."""

    location: str
    is_temporary: bool = False


def checkpoint_of(
    session: SparkSession, given: str | None, name: str | None, sink: str
) -> Checkpoint:
    """Where a query keeps its progress.

    As in Spark, that is the query's own option, or else a folder below the session's setting, or
    else a temporary folder for sinks that keep nothing.
    """
    if given is not None:
        return Checkpoint(given.rstrip("/"))
    common = session.conf.get("spark.sql.streaming.checkpointLocation", None)
    if common is not None:
        return Checkpoint(f"{common.rstrip('/')}/{name or uuid4()}")
    if sink in _FOR_A_WHILE:
        return Checkpoint(tempfile.mkdtemp(prefix="temporary-"), is_temporary=True)
    raise seam.rules.spark_error(session, "checkpointLocationNotSpecifiedError")


def check_sink(
    session: SparkSession,
    sink: str,
    mode: str,
    name: str | None,
    schema: StructType,
    partition_by: Sequence[str],
) -> None:
    """Reject what Spark rejects for a sink, with the same errors."""
    if sink == "memory" and name is None:
        raise seam.rules.spark_error(session, "queryNameNotSpecifiedForMemorySinkError")
    if sink in FILE_FORMATS and mode != "append":
        wanted = seam.rules.output_mode(session, mode)
        raise seam.rules.spark_error(session, "dataSourceOutputModeUnsupportedError", sink, wanted)
    if not partition_by:
        return
    if sink in _UNPARTITIONED:
        raise seam.rules.spark_error(session, "operationNotSupportPartitioningError", sink)
    for column in partition_by:
        if column not in schema.names:
            raise seam.rules.spark_error(
                session,
                "columnNotFoundInExistingColumnsError",
                "Partition",
                column,
                list(schema.names),
            )
    seam.rules.check_partition_columns(session, schema, list(partition_by))


def check_query_name(session: SparkSession, name: str | None) -> None:
    """Reject the name of a running query, as Spark does, but before anything is changed.

    Spark checks only when its own query starts. By then a memory sink would have replaced the
    running query's table.
    """
    if name is not None and name in [query.name for query in session.streams.active]:
        raise IllegalArgumentException(
            f"Cannot start query with name {name} as a query with that name is already active in "
            "this SparkSession"
        )


def check_recovery(session: SparkSession, checkpoint: Checkpoint, sink: str, mode: str) -> None:
    """Reject a restart with a memory sink, whose earlier rows are lost."""
    offsets = f"{checkpoint.location}/{OFFSETS}"
    if sink == "memory" and mode != "complete" and seam.files.exists(session, offsets):
        path = seam.files.path(session, offsets)
        raise seam.rules.spark_error(session, "recoverQueryFromCheckpointUnsupportedError", path)


def check_kafka(session: SparkSession, schema: StructType, options: dict[str, str]) -> None:
    """Reject what Kafka's writer would reject with the first batch."""
    seam.rules.check_data_source(session, "kafka")
    if "kafka.bootstrap.servers" not in options:
        raise InvalidArgument(
            "The kafka sink needs .option('kafka.bootstrap.servers', 'host:port,…')."
        )
    types = {field.name: field.dataType for field in schema}
    if not isinstance(types.get("value"), (StringType, BinaryType)):
        raise InvalidArgument("The kafka sink needs a column value of type string or binary.")
    if "key" in types and not isinstance(types["key"], (StringType, BinaryType)):
        raise InvalidArgument("The column key of the kafka sink must be of type string or binary.")
    if "topic" not in types and "topic" not in options:
        raise InvalidArgument(
            "The kafka sink needs a topic: .option('topic', name), or a column topic."
        )
