"""Rows that belong together, and merging their partial aggregates into one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from holdfast.engine.partition.columns import canonical_column
from holdfast.streams.aggregates.merging import Merge, merge_table, settled_table

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Runs:
    """Rows in an order that puts those of one group side by side.

    Group i is made of `rows[firsts[i] : firsts[i] + sizes[i]]`.
    """

    rows: Numbers
    firsts: Numbers
    sizes: Numbers

    @classmethod
    def of(cls, codes: Numbers) -> Runs:
        """Those of rows with equal codes."""
        rows = np.argsort(codes, kind="stable")
        ordered = codes[rows]
        opens = np.ones(len(rows), bool)
        opens[1:] = ordered[1:] != ordered[:-1]
        firsts = np.flatnonzero(opens)
        return cls(rows, firsts, np.diff(np.append(firsts, len(rows))))


def merged_runs(merges: Sequence[Merge], table: pa.Table, runs: Runs, *, ansi: bool) -> pa.Table:
    """A row for each group: the columns of `table`, all of them in `merges`, merged in order."""
    merged = table.take(pa.array(runs.rows[runs.firsts]))
    if not merges:
        return merged
    merged = settled_table(merges, merged, ansi=ansi)
    for step in range(1, int(runs.sizes.max(initial=0))):
        longer = np.flatnonzero(runs.sizes > step)
        following = table.take(pa.array(runs.rows[runs.firsts[longer] + step]))
        so_far = merged.take(pa.array(longer))
        added = merge_table(merges, following, so_far, ansi=ansi).select(table.column_names)
        merged = _replaced(merged, longer, added)
    return merged


def codes_of(columns: Sequence[pa.Array]) -> Numbers:
    """A number for each row, the same for rows that are equal in every column."""
    codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        cells = canonical_column(column)
        if pa.types.is_nested(cells.type):
            cells = pa.array([repr(cell) for cell in cells.to_pylist()])
        encoded = cells.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)
        both = codes * (int(encoded.max(initial=0)) + 1) + encoded
        codes = np.unique(both, return_inverse=True)[1].astype(np.int64)
    return codes


def _replaced(table: pa.Table, at: Numbers, rows: pa.Table) -> pa.Table:
    """`table` with the rows `at` replaced."""
    places = np.arange(table.num_rows)
    places[at] = np.arange(len(at)) + table.num_rows
    return pa.concat_tables([table, rows.cast(table.schema)]).take(pa.array(places))
