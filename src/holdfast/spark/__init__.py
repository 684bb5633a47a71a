"""Stateful streaming on PySpark. The only package that imports pyspark."""

from holdfast.spark.frame import StatefulDataFrame, stateful
from holdfast.spark.monitoring.listeners import addListener, removeListener
from holdfast.spark.running.manager import QueryManager, query_manager
from holdfast.spark.running.query import StatefulQuery

__all__ = [
    "QueryManager",
    "StatefulDataFrame",
    "StatefulQuery",
    "addListener",
    "query_manager",
    "removeListener",
    "stateful",
]
