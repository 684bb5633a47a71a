"""The task of a session aggregation.

A session's key is its group, its start and its end. The group's columns are the store's prefix, so
all sessions of a group are stored side by side and one prefix read finds those that a batch may
touch. Sessions of the batch and of state that overlap or touch are joined: the old keys are
removed, because a session's bounds are part of its key, and the joined session is put with its
partials merged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from holdfast.engine.partition.rows import index_numbers
from holdfast.reserved import HASH
from holdfast.streams.aggregates.grouping import Numbers, Runs, codes_of, merged_runs
from holdfast.streams.stores.contract import TaskStore
from holdfast.streams.tasks.aggregation import ROWS, AggregationTask, BatchEffect, row_count


@dataclass(frozen=True)
class SessionTask(AggregationTask):
    """Joins a batch's sessions, one row each, with those in state. Spark has dropped late rows."""

    def _work_in(self, store: TaskStore, table: pa.Table) -> BatchEffect:
        if not table.num_rows:
            return BatchEffect(table, 0)
        changed, gone = self._join(store, table)
        return BatchEffect(changed, row_count(table), gone=gone)

    def _join(self, store: TaskStore, table: pa.Table) -> tuple[pa.Table, int]:
        """Put the joined sessions; return them, and how many sessions of state they replaced."""
        names = self.store.key_schema.names
        group, start, end = names[:-2], names[-2], names[-1]
        known = store.prefix_table(table.select([HASH]))
        rows = table.drop_columns([ROWS, HASH]).cast(known.schema)
        both = pa.concat_tables([known, rows]).combine_chunks()
        joined = _joined(
            [both.column(name).combine_chunks() for name in group],
            _numbers(both, start),
            _numbers(both, end),
            known.num_rows,
        )
        merged = self._merged(both, joined)
        stale = joined.stale(_numbers(both, start), _numbers(both, end))
        if len(stale):
            store.remove_many(both.select(names).take(pa.array(stale)))
        store.put_many(merged)
        return merged, len(stale)

    def _merged(self, both: pa.Table, joined: _SessionGroups) -> pa.Table:
        """One row for each session that changed."""
        values = self.store.value_schema.names
        first = both.take(pa.array(joined.rows[joined.firsts]))
        runs = Runs(joined.rows, joined.firsts, joined.sizes)
        merged = merged_runs(self.merges, both.select(values), runs, ansi=self.ansi)
        names = self.store.key_schema.names
        columns = {name: first.column(name) for name in names[:-1]}
        end_type = both.schema.field(names[-1]).type
        columns[names[-1]] = pa.array(joined.ends).view(end_type)
        return pa.table({**columns, **{name: merged.column(name) for name in values}})


@dataclass(frozen=True)
class _SessionGroups:
    """Rows in the order of group and start, cut into sessions that have a row of the batch.

    Session i is made of `rows[firsts[i] : firsts[i] + sizes[i]]` and ends at `ends[i]`.
    """

    rows: Numbers
    firsts: Numbers
    sizes: Numbers
    ends: Numbers
    known: int

    def stale(self, starts: Numbers, ends: Numbers) -> Numbers:
        """The rows of state whose session now has another start or end."""
        session = np.repeat(np.arange(len(self.sizes)), self.sizes)
        within = np.arange(len(session)) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        members = self.rows[self.firsts[session] + within]
        new_start = starts[self.rows[self.firsts]][session]
        moved = (starts[members] != new_start) | (ends[members] != self.ends[session])
        stale: Numbers = members[moved & (members < self.known)]
        return stale


def _joined(group: list[pa.Array], starts: Numbers, ends: Numbers, known: int) -> _SessionGroups:
    """Cut rows into sessions; the first `known` rows are those of state.

    Within a group, in the order of starts, a row opens a session if it starts after everything
    before it has ended. The running maximum of the ends finds that without a loop over rows.
    """
    codes = codes_of(group)
    order = np.lexsort((starts, codes))
    code, start, end = codes[order], starts[order], ends[order]
    reach = _running_max(code, end)
    opens = np.ones(len(order), bool)
    opens[1:] = (code[1:] != code[:-1]) | (start[1:] > reach[:-1])
    firsts = np.flatnonzero(opens)
    sizes = np.diff(np.append(firsts, len(order)))
    has_new = np.add.reduceat((order >= known).astype(np.int64), firsts) > 0
    firsts, sizes = firsts[has_new], sizes[has_new]
    return _SessionGroups(order, firsts, sizes, reach[firsts + sizes - 1], known)


def _running_max(code: Numbers, values: Numbers) -> Numbers:
    """The largest value so far within each run of equal codes; codes ascend.

    Adding `code * n` to the rank of each value lifts every run above the one before it, so one
    maximum over all rows never carries a value from one group into the next.
    """
    distinct, rank = np.unique(values, return_inverse=True)
    lifted = np.maximum.accumulate(code * len(distinct) + rank)
    return distinct[lifted - code * len(distinct)]


def _numbers(table: pa.Table, name: str) -> Numbers:
    numbers = index_numbers(table.column(name).combine_chunks())
    assert numbers is not None
    return numbers
