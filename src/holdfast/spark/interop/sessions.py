"""Sessions of ours, and what the settings of a session mean."""

from __future__ import annotations

import os
import sys
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType, _parse_datatype_json_string

from holdfast.spark.interop.classes import java_class

_ROWS_PER_ARROW_BATCH = 1_000_000
_SPARKS_OWN_CHOICE = "python3"
"""The Python of the workers where nobody chose one."""


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


def is_classic(session: SparkSession) -> bool:
    """Whether a session is a classic one, not of Spark Connect."""
    return hasattr(session, "_jsparkSession")


def session_key(session: SparkSession) -> str:
    """What is the same for all of Python's objects of one session, and of no other."""
    return str(session._jsparkSession.sessionUUID())


def application_setting(session: SparkSession, name: str) -> str | None:
    """A setting of the application, None where nobody made it.

    `SparkContext.getConf` would copy all settings for it, in several calls of the JVM for each.
    """
    return session.sparkContext._conf.get(name)


def share_python(session: SparkSession) -> None:
    """Have the workers of this host run the driver's Python, unless somebody chose another.

    Spark would take the python3 of the PATH, which need not be the one that has the packages.
    """
    context = session.sparkContext
    is_chosen = (
        context.pythonExec != _SPARKS_OWN_CHOICE
        or "PYSPARK_PYTHON" in os.environ
        or application_setting(session, "spark.pyspark.python") is not None
    )
    if sys.executable and not is_chosen:
        context.pythonExec = sys.executable


def is_case_sensitive(session: SparkSession) -> bool:
    """Whether names of columns that differ in case only are different names."""
    return str(session.conf.get("spark.sql.caseSensitive")).lower() == "true"


def parsed_schema(session: SparkSession, schema: StructType | str) -> StructType:
    """A schema as a StructType; DDL text is read by Spark."""
    if isinstance(schema, StructType):
        return schema
    java = java_class(session, "org.apache.spark.sql.types.StructType")
    parsed = _parse_datatype_json_string(java.fromDDL(schema).json())
    assert isinstance(parsed, StructType)
    return parsed


def java_schema(session: SparkSession, schema: StructType) -> Any:
    return session._jsparkSession.parseDataType(schema.json())


def bytes_of(session: SparkSession, text: str) -> int:
    """A size as Spark's settings have it, such as 16m, in bytes."""
    utils = java_class(session, "org.apache.spark.network.util.JavaUtils")
    return int(utils.byteStringAsBytes(text))
