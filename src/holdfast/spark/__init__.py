"""Stateful streaming on PySpark. The only package that imports pyspark."""

from holdfast.spark.frame import StatefulDataFrame, stateful

__all__ = ["StatefulDataFrame", "stateful"]
