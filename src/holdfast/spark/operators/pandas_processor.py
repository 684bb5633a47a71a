"""transformWithStateInPandas: the user's own processor, given and giving DataFrames."""

from __future__ import annotations

from holdfast.spark.operators.keyed import KeyedRows
from holdfast.spark.operators.processor import Processing
from holdfast.streams.processors.pandas import Pandaswise
from holdfast.streams.tasks.processor import RowStyle


class PandasProcessing(Processing):
    """Gives the rows of each key to a StatefulProcessor, as DataFrames."""

    title = "transformWithStateInPandasExec"

    def _style(self, rows: KeyedRows, zone: str) -> RowStyle:
        return Pandaswise(rows.columns, self._output_schema, zone)
