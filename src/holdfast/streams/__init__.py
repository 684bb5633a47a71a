"""What stateful operators compute, on Arrow columns and without a JVM.

The package can also be called: `holdfast.streams(spark)` returns the manager of the streaming
queries of a classic SparkSession, Spark's own and Holdfast's. It raises InvalidArgument for
anything else.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """This package, for which the name `holdfast.streams` stands as soon as it is imported.

    Python puts a package into the one around it under its name; a function of that name would be
    there only until then.
    """

    def __call__(self, spark: Any) -> Any:
        # By name: this layer knows nothing of Spark.
        return importlib.import_module("holdfast.spark").query_manager(spark)

    def __reduce__(self) -> tuple[Any, ...]:
        """Tasks get a module by its name; pickle knows only those of Python's own class."""
        return importlib.import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Callable
