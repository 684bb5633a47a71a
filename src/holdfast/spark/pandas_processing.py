"""transformWithStateInPandas: the user's own processor, given and giving DataFrames."""

from __future__ import annotations

from holdfast.spark.keyed import KeyedRows
from holdfast.spark.processing import Processing
from holdfast.streams.pandaswise import Pandaswise
from holdfast.streams.processing import RowStyle


class PandasProcessing(Processing):
    """Gives the rows of each key to a StatefulProcessor, as DataFrames."""

    title = "transformWithStateInPandasExec"

    def _style(self, rows: KeyedRows, zone: str) -> RowStyle:
        return Pandaswise(rows.columns, self._output_schema, zone)
