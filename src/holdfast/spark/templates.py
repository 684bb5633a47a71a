"""Frames that are analysed once and filled with the rows of each version."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark import jvm
from holdfast.spark.operators import nullable


class Template:
    """What a function makes of rows of a schema, without asking it anew for every version.

    Spark's analysis of a small batch takes longer than the batch. So the function is called once
    with a stand-in for the rows; `fill` puts rows in the stand-in's place. What Spark settles
    later, such as the current time, it settles anew every time; for what it settles then, such
    as the seed of random numbers, the function is asked each time after all.
    """

    def __init__(
        self, session: SparkSession, schema: StructType, make: Callable[[DataFrame], DataFrame]
    ) -> None:
        self._session = session
        stand_in = jvm.empty_frame(session, nullable(schema.fields, keep_metadata=True))
        self.made = make(stand_in)
        self._make = make
        self._gap = jvm.find_gap(self.made, stand_in)

    def fill(self, rows: DataFrame) -> DataFrame:
        """The function's frame over these rows, in the template's session."""
        if self._gap is None:
            return self._make(jvm.moved(rows, self._session))
        return jvm.fill_gap(self._session, self._gap, rows)
