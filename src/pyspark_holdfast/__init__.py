"""`spark.read.format("holdfast")`: the state of a stream as a DataFrame.

Spark finds the source by the name of this package and imports it before the first read of any
kind, so nothing heavy is loaded here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark_holdfast.views import View


class DefaultSource(DataSource):
    """State at a version, the changes of some versions, or a list of stores or versions."""

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        return self._view().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._view().reader(schema)

    def _view(self) -> View:
        from pyspark_holdfast.options import Options
        from pyspark_holdfast.views import view_of

        return view_of(Options.of(self.options))
