"""The rows of a task whose operator has several inputs: one table for each of them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pyarrow as pa

INPUT = "_input"
"""The column that says which input a row is from."""


def split_inputs(table: pa.Table, columns: list[Collection[str]]) -> list[pa.Table]:
    """The rows of each input, in the order in which they came, with the columns it has.

    `columns` are those of each input. The driver has put the inputs into one table, in which a row
    is null in the columns of the other inputs.
    """
    numbers = table.column(INPUT).to_numpy()
    return [
        table.select(list(own)).take(pa.array(np.flatnonzero(numbers == number)))
        for number, own in enumerate(columns)
    ]
