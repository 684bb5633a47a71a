"""The task of an aggregation over sliding windows.

A row belongs to many overlapping windows, and Spark would copy it into each of them before it
aggregates. Here Spark sums the batch up by *panes* instead: the longest pieces of time that all
windows consist of, so that a row belongs to exactly one. The task then merges each pane into the
windows that contain it. There are far fewer panes than rows, so copying is cheap there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from holdfast.engine.hashing.spark_hash import key_hashes
from holdfast.engine.partition.rows import index_numbers
from holdfast.reserved import HASH
from holdfast.streams.aggregates.grouping import Numbers, Runs, codes_of, merged_runs
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.stores.contract import TaskStore
from holdfast.streams.tasks.aggregation import ROWS, AggregationTask, BatchEffect, row_count

_MOST_PAIRS = 2**62
_MOST_PANES = 64
"""Windows of more panes are left to Spark: a task would hold too many rows at once."""


@dataclass(frozen=True)
class SlidingWindows:
    """Windows of a length, one every `slide_us`; one of them starts at `start_us`."""

    length_us: int
    slide_us: int
    start_us: int

    @property
    def slides(self) -> bool:
        """Whether windows overlap."""
        return self.slide_us < self.length_us

    @property
    def pane_us(self) -> int:
        """The length of a pane: windows start and end only at its multiples, from `start_us`."""
        return math.gcd(self.length_us, self.slide_us)

    @property
    def is_by_pane(self) -> bool:
        """Whether rows may be summed up by panes: windows overlap and consist of few panes."""
        return self.slides and self.length_us // self.pane_us <= _MOST_PANES

    def newest(self, panes: Numbers) -> Numbers:
        """The starts of the last windows that contain panes, given by their starts."""
        return panes - (panes - self.start_us) % self.slide_us

    def windows(self, panes: Numbers) -> tuple[Numbers, Numbers]:
        """The windows that contain panes: pairs of a pane's position and a window's start."""
        newest = self.newest(panes)
        many = -(-self.length_us // self.slide_us)
        starts = newest[:, None] - np.arange(many) * self.slide_us
        pane, nth = np.nonzero(starts + self.length_us > panes[:, None])
        return pane, starts[pane, nth]


@dataclass(frozen=True)
class SlidingTask(AggregationTask):
    """Merges panes into windows, and then windows into state as every aggregation does.

    The last two key columns are the start and end of a window, but of a pane in the input.
    """

    sliding: SlidingWindows | None = None

    @property
    def _windows(self) -> SlidingWindows:
        assert self.sliding is not None
        return self.sliding

    def _work_in(self, store: TaskStore, table: pa.Table) -> BatchEffect:
        worked = super()._work_in(store, self._by_window(table) if table.num_rows else table)
        late = self._late_rows(table)
        return replace(worked, rows=row_count(table) - late, late_rows=late)

    def _late_rows(self, table: pa.Table) -> int:
        """How many rows are late for every window that contains them."""
        if self.late is None or not table.num_rows:
            return 0
        panes = index_numbers(table.column(self.store.key_schema.names[-2]).combine_chunks())
        assert panes is not None
        is_late = self._windows.newest(panes) + self._windows.length_us <= self.late
        return int(table.column(ROWS).to_numpy()[is_late].sum())

    def _by_window(self, table: pa.Table) -> pa.Table:
        names = self.store.key_schema.names
        group, start, end = names[:-2], names[-2], names[-1]
        columns = [table.column(name).combine_chunks() for name in group]
        panes = index_numbers(table.column(start).combine_chunks())
        assert panes is not None
        pane, starts = self._windows.windows(panes)
        runs = Runs.of(_paired(codes_of(columns)[pane], starts // self._windows.slide_us))
        firsts = runs.rows[runs.firsts]
        kind, own = table.schema.field(start).type, starts[firsts]
        keys = [column.take(pa.array(pane[firsts])) for column in columns]
        keys += [pa.array(own).view(kind), pa.array(own + self._windows.length_us).view(kind)]
        values = self.store.value_schema.names
        merged = merged_runs(
            (*self.merges, Merge("count", (ROWS,))),
            table.select([*values, ROWS]),
            Runs(pane[runs.rows], runs.firsts, runs.sizes),
            ansi=self.ansi,
        )
        hashes = key_hashes(keys, self.store.prefix)
        by_name = dict(zip([*group, start, end], keys, strict=True))
        by_name |= {name: merged.column(name) for name in merged.column_names}
        by_name[HASH] = pa.array(hashes)
        return pa.table({name: by_name[name] for name in table.column_names})


def _paired(left: Numbers, right: Numbers) -> Numbers:
    """A number for each pair, equal for equal pairs."""
    lowest, spread = int(right.min()), int(right.max()) - int(right.min()) + 1
    if (int(left.max()) + 1) * spread > _MOST_PAIRS:
        distinct, right = np.unique(right, return_inverse=True)
        lowest, spread = 0, len(distinct)
    return left * spread + (right - lowest)
