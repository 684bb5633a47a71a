"""Stateful streaming on PySpark. The only package that imports pyspark."""

from holdfast.spark.frame import StatefulDataFrame, stateful
from holdfast.spark.listening import addListener, removeListener

__all__ = ["StatefulDataFrame", "addListener", "removeListener", "stateful"]
