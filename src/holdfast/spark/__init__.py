"""Stateful streaming on PySpark. The only package that imports pyspark."""

from holdfast.spark.frame import StatefulDataFrame, stateful
from holdfast.spark.listening import addListener, removeListener
from holdfast.spark.query import StatefulQuery

__all__ = ["StatefulDataFrame", "StatefulQuery", "addListener", "removeListener", "stateful"]
