"""The check that a Spark has what Holdfast calls of it, made once for an application."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidArgument
from holdfast.spark.interop.classes import java_class
from holdfast.spark.interop.scala import CATALYST

_SQL = "org.apache.spark.sql"
_OF_SESSIONS = ("_jsparkSession",)
_OF_CONTEXTS = ("_jvm", "_jsc", "_gateway", "_conf", "_temp_dir")
_REQUIRED: dict[str, tuple[str, ...]] = {
    f"{_SQL}.classic.Dataset": ("toArrowBatchRdd", "ofRows", "queryExecution", "logicalPlan"),
    f"{_SQL}.classic.SparkSession": (
        "cloneSession",
        "sessionState",
        "sessionUUID",
        "parseDataType",
    ),
    f"{_SQL}.classic.ExpressionUtils": ("column",),
    f"{_SQL}.classic.RelationalGroupedDataset": ("applyInPandasWithState",),
    f"{_SQL}.errors.QueryCompilationErrors": (),
    f"{_SQL}.execution.QueryExecution": ("analyzed", "logical", "observedMetrics", "toRdd"),
    f"{_SQL}.execution.datasources.DataSource": ("lookupDataSource",),
    f"{_SQL}.execution.datasources.PartitioningUtils": ("validatePartitionColumn",),
    f"{CATALYST}.analysis.UnresolvedAttribute": (),
    f"{CATALYST}.analysis.UnsupportedOperationChecker": ("checkForStreaming",),
    f"{CATALYST}.expressions.Alias": (),
    f"{CATALYST}.expressions.Literal": ("default",),
    f"{CATALYST}.expressions.TimeWindow": (),
    f"{CATALYST}.plans.logical.Project": (),
    f"{CATALYST}.streaming.InternalOutputModes": ("apply",),
    "org.apache.spark.api.python.PythonUtils": ("toSeq",),
    "org.apache.hadoop.fs.FileContext": ("getFileContext",),
    "org.apache.hadoop.fs.Options$Rename": (),
    "org.apache.commons.io.IOUtils": (),
}
"""Classes of the JVM, and the methods of them without which no query runs.

Janino is not among them: without it tasks run wherever Spark likes, and `located_java` says so.
"""
_checked: set[str] = set()
"""The applications whose Spark has everything."""


def check_spark(frame: Any) -> None:
    """Refuse Spark Connect, and a Spark that lacks what Holdfast calls, naming its version."""
    if not isinstance(frame, DataFrame) or not hasattr(frame, "_jdf"):
        raise InvalidArgument(
            "Holdfast needs a classic Spark session: this DataFrame comes from Spark Connect or "
            "is no DataFrame. Start the session with a master such as local[*], without .remote()."
        )
    session = frame.sparkSession
    application = str(session.sparkContext.applicationId)
    if application in _checked:
        return
    for missing in _missing(session):
        raise InvalidArgument(
            f"Spark {session.version} has no {missing}, which Holdfast needs. Use Spark 4.x."
        )
    _checked.add(application)


def _missing(session: SparkSession) -> Iterator[str]:
    """What a Spark lacks."""
    for owner, names in ((session, _OF_SESSIONS), (session.sparkContext, _OF_CONTEXTS)):
        yield from (f"{type(owner).__name__}.{n}" for n in names if not hasattr(owner, n))
    thread = java_class(session, "java.lang.Thread").currentThread()
    loader = thread.getContextClassLoader()
    in_words = java_class(session, "scala.runtime.ScalaRunTime").stringOf
    for name, methods in _REQUIRED.items():
        try:
            found = loader.loadClass(name)
        except Exception:
            yield name
            continue
        # In one call for the whole array.
        listed = str(in_words(found.getMethods())) if methods else ""
        yield from (f"{name}.{method}" for method in methods if f".{method}(" not in listed)
