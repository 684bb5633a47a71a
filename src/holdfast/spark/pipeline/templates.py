"""Frames that are analysed once and filled with the rows of each version.

Building a DataFrame costs one call to the JVM and one analysis of the whole plan for every step
(`select`, `groupBy`, …). For a small batch that takes longer than running it. But the steps are
the same in every version; only the rows differ. So a step is planned once over empty stand-ins,
and `fill` copies the analysed plan with the stand-ins' leaves replaced by the plan of the rows.

That is right only if analysis yields the same plan each time. Analysis draws the seeds of random
functions, and subqueries are not searched for stand-ins; in both cases `seam.frames.filler`
returns None and the step is planned again for each version. What Spark settles after analysis, such
as the current time, is settled for each filled plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.spark.interop import seam
from holdfast.spark.operators.columns import nullable


class Template:
    """A function from frames to a frame, planned once and used for many versions.

    `make` gets a frame for each of `schemas` and must use nothing else that changes. The module
    says when it is called only once.
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
        """Return the planned frame over rows of each schema; None stands for no rows."""
        if self._fill is None:
            return self._make(self.moved(rows))
        return self._fill(rows)

    def moved(self, rows: Sequence[DataFrame | None]) -> list[DataFrame]:
        """Rows of each schema as frames of the template's session; None stands for no rows."""
        return [
            stand_in if given is None else seam.frames.moved(given, self._session)
            for given, stand_in in zip(rows, self.stand_ins, strict=True)
        ]
