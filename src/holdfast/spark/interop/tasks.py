"""The rows of a frame as RDDs of bytes, for work in Python."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pyarrow as pa
from pyspark import RDD
from pyspark.errors import PySparkException
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from holdfast.spark.interop import located_java
from holdfast.spark.interop.located_java import LocatedJava

# Older Sparks have another word for it.
_IN_UTC: dict[str, Any] = (
    {"timezone": "UTC"}
    if "timezone" in signature(to_arrow_schema).parameters
    else {"timestamp_utc": True}
)


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


def located(session: SparkSession) -> LocatedJava | None:
    """What gives tasks their places; None, and one warning, where this Spark does not take it."""
    return located_java.prepared(session)
