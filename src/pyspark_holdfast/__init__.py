"""`spark.read.format("holdfast")`: the state of a stream as a DataFrame, its changes as a stream.

Spark finds the source by the name of this package, and imports it before the first read of any
kind. So this module loads nothing large.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from pyspark_holdfast.views import ReadKind


class DefaultSource(DataSource):
    """The data source `holdfast`: state, changes, or a list of stores or versions.

    Changes are read in a batch or as a stream.
    """

    @classmethod
    def name(cls) -> str:
        return "holdfast"

    def schema(self) -> StructType:
        return self._kind().schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return self._kind().reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return self._kind().stream_reader(schema)

    def _kind(self) -> ReadKind:
        from pyspark_holdfast.options import ReadOptions
        from pyspark_holdfast.views import kind_of

        return kind_of(ReadOptions.of(self.options))
