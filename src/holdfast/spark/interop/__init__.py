"""What Spark and PySpark do not promise: attributes that begin with an underscore, objects of the
JVM, classes of Catalyst. A test holds that no other module of the package touches them.

The rest of `spark` calls `seam`. `contract` says what it offers and `model` what that gives; the
modules of a theme do it through the JVM of a classic session. `check` refuses a session of another
kind, and a Spark that lacks what is called, by its version, before a stream is made.
"""

from __future__ import annotations

from holdfast.spark.interop import (
    analysis,
    catalog,
    columns,
    frames,
    hadoop,
    lineage,
    plans,
    queries,
    rules,
    sessions,
    tasks,
)
from holdfast.spark.interop.contract import Seam

seam = Seam(
    sessions=sessions,
    frames=frames,
    tasks=tasks,
    columns=columns,
    plans=plans,
    analysis=analysis,
    lineage=lineage,
    rules=rules,
    queries=queries,
    files=hadoop,
    tables=catalog,
)
"""The seam to the JVM. A test may put another implementation in the place of a theme."""
