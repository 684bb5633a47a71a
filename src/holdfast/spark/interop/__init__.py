"""What Spark and PySpark do not promise: attributes that begin with an underscore, objects of the
JVM, classes of Catalyst. A test holds that no other module of the package touches them.

`check` refuses a Spark that lacks what is called, by its version, before a stream is made.
"""

from holdfast.spark.interop import (
    columns,
    frames,
    hadoop,
    lineage,
    plans,
    queries,
    rules,
    scala,
    sessions,
    tasks,
)

__all__ = [
    "columns", "frames", "hadoop", "lineage", "plans", "queries", "rules", "scala", "sessions",
    "tasks",
]  # fmt: skip
