"""Forks Spark's Python workers with their imports done, in place of pyspark.daemon.

Spark forgets workers that were idle for a minute and forks others, which import all they need by
themselves; PySpark's part comes out of a zip file of sources, to be compiled each time. That took
a second of a core for each of the hundred workers of a test run. Tests whose Spark has a process
of its own, such as the examples, have workers as users have them.
"""

from __future__ import annotations

import gc

import pandas  # noqa: F401
import pyspark.sql.pandas.serializers
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import holdfast.streams.tasks.task  # noqa: F401

if __name__ == "__main__":
    gc.freeze()  # what all have in common stays in the memory they share
    manager()
