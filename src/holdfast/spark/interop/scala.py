"""Scala's collections and the trees of Catalyst, as Python takes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

from holdfast.spark.interop.classes import java_class

CATALYST = "org.apache.spark.sql.catalyst"


def class_of(node: Any) -> str:
    """The name of a node's class."""
    return str(node.getClass().getSimpleName())


def walk(node: Any) -> Iterator[Any]:
    """A node of a tree and all below it."""
    yield node
    for child in scala_list(node.children()):
        yield from walk(child)


def scala_list(sequence: Any) -> list[Any]:
    """A Scala Seq as a list."""
    return [sequence.apply(i) for i in range(sequence.size())]


def scala_map(mapping: Any) -> dict[str, str]:
    """A Scala Map of texts as a dict."""
    pairs = mapping.toSeq()
    return {str(pair._1()): str(pair._2()) for pair in scala_list(pairs)}


def scala_seq(session: SparkSession, items: list[Any]) -> Any:
    """A list as a Scala Seq."""
    return java_class(session, "org.apache.spark.api.python.PythonUtils").toSeq(items)
