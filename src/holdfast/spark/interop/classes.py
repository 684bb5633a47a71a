"""Classes of the JVM by their full names."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession

_found: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()


def java_class(session: SparkSession, name: str) -> Any:
    """A class of the JVM a session runs in, looked up once for each JVM.

    Spelled as attributes, `jvm.org.apache.spark.Thing`, each part of a name is a call of its own,
    and for each package the JVM searches all its jars for a class of that name.
    """
    jvm: Any = session.sparkContext._jvm
    known = _found.setdefault(jvm, {})
    if (found := known.get(name)) is None:
        found = getattr(jvm, name)
        if isinstance(found, JavaClass):  # Py4J takes a name it does not find for a package
            known[name] = found
    return found


def java_object(session: SparkSession, name: str) -> Any:
    """An object of Scala's, which is the only instance of its class; `name` is without its `$`."""
    return java_class(session, f"{name}$").__getattr__("MODULE$")
