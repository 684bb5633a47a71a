"""Frames that are analysed once and filled with the rows of each version."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.interop import seam
from holdfast.spark.operators.operator import nullable


class Template:
    """What a function makes of rows of some schemas, without asking it anew for every version.

    Spark's analysis of a small batch takes longer than the batch. So the function is called once
    with stand-ins for the rows; `fill` puts rows in their places. What Spark settles later, such
    as the current time, it settles anew every time; for what it settles then, such as the seed of
    random numbers, the function is asked each time after all.
    """

    def __init__(
        self,
        session: SparkSession,
        schemas: Sequence[StructType],
        make: Callable[[Sequence[DataFrame]], DataFrame],
    ) -> None:
        self._session = session
        self.stand_ins = [
            seam.frames.empty_frame(session, nullable(schema.fields, keep_metadata=True))
            for schema in schemas
        ]
        self.made = make(self.stand_ins)
        self._make = make
        self._fill = seam.frames.filler(session, self.made, self.stand_ins)

    def fill(self, *rows: DataFrame | None) -> DataFrame:
        """The function's frame over rows of each schema, None for no rows, in its session."""
        if self._fill is None:
            return self._make(self.moved(rows))
        return self._fill(rows)

    def moved(self, rows: Sequence[DataFrame | None]) -> list[DataFrame]:
        """Rows of each schema, None for no rows, in the template's session."""
        return [
            stand_in if given is None else seam.frames.moved(given, self._session)
            for given, stand_in in zip(rows, self.stand_ins, strict=True)
        ]
