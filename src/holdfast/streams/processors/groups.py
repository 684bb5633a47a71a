"""Cuts sorted rows into groups of equal keys, a batch of whole groups at a time.

Spark sorts a partition's rows by hash and key, so the rows of a group are neighbours and a task
needs no hash table: it uses the memory of a batch, however many keys and rows a partition has. A
group that the end of a batch cuts off is carried over to the next one. A group larger than a batch
is streamed: its remaining batches are read only as the processor asks for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from holdfast.engine.partition.columns import canonical_column, equal
from holdfast.engine.partition.rows import index_numbers
from holdfast.reserved import HASH
from holdfast.streams.aggregates.grouping import Numbers
from holdfast.streams.clock import LateFilter
from holdfast.streams.tasks.task import check_routing

_ROWS_AT_A_TIME = 50_000


@dataclass
class Groups:
    """A record batch of whole groups, in hash order; group i is rows starts[i] to starts[i + 1].

    A group larger than a batch is alone in its batch, and `rest` yields the batches that continue
    it. Requires: `rest` is read to its end before the next groups are asked for.
    """

    batch: pa.RecordBatch
    starts: Numbers
    rest: Iterator[pa.RecordBatch]

    @property
    def count(self) -> int:
        """The number of groups."""
        return len(self.starts) - 1

    def keys(self, names: Sequence[str]) -> pa.Table:
        """The keys of the groups, with `_hash`."""
        first = pa.array(self.starts[:-1])
        columns = [self.batch.column(name).take(first) for name in (*names, HASH)]
        return pa.table(columns, names=[*names, HASH])


class GroupReader:
    """Cuts sorted record batches into groups."""

    def __init__(
        self,
        schema: bytes,
        raw: Iterable[bytes],
        keys: Sequence[str],
        partition: int,
        partitions: int,
        late: LateFilter | None = None,
        rows_at_a_time: int = _ROWS_AT_A_TIME,
    ) -> None:
        self._schema = ipc.read_schema(pa.py_buffer(schema))
        self._slices = self._sliced(raw)
        self._keys = list(keys)
        self._partition = partition
        self._partitions = partitions
        self._carry: pa.RecordBatch | None = None
        self._late = late
        self._rows_at_a_time = rows_at_a_time
        self.rows = 0
        self.late_rows = 0

    def __iter__(self) -> Iterator[Groups]:
        while True:
            batch = self._next()
            if batch is None:
                if self._carry is None:
                    return
                last, self._carry = self._carry, None
                yield Groups(last, _starts(last, self._keys), iter(()))
                return
            if self._carry is not None:
                batch = _joined([self._carry, batch])
                self._carry = None
            starts = _starts(batch, self._keys)
            if len(starts) == 2:
                yield Groups(batch, starts, self._continuing(batch))
                continue
            cut = int(starts[-2])
            self._carry = batch.slice(cut)
            yield Groups(batch.slice(0, cut), starts[:-1], iter(()))

    def _continuing(self, first: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """The batches after `first` that continue its only group."""
        while True:
            batch = self._next()
            if batch is None:
                return
            starts = _starts(_joined([first.slice(0, 1), batch]), self._keys)
            same = int(starts[1]) - 1
            if same:
                yield batch.slice(0, same)
            if same < batch.num_rows:
                self._carry = batch.slice(same)
                return

    def _next(self) -> pa.RecordBatch | None:
        return next(self._slices, None)

    def _sliced(self, raw: Iterable[bytes]) -> Iterator[pa.RecordBatch]:
        """The batches without late rows, cut to size; none is empty."""
        for number, body in enumerate(raw):
            batch = ipc.read_record_batch(pa.py_buffer(body), self._schema)
            if number == 0:
                batch.validate(full=True)
            check_routing(batch.column(HASH), self._partition, self._partitions)
            batch = self._without_late(batch)
            self.rows += batch.num_rows
            for start in range(0, batch.num_rows, self._rows_at_a_time):
                yield batch.slice(start, self._rows_at_a_time)

    def _without_late(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._late is None:
            return batch
        numbers = index_numbers(batch.column(self._late.column))
        assert numbers is not None
        is_late = numbers <= self._late.upto_us
        if not is_late.any():
            return batch
        self.late_rows += int(is_late.sum())
        return batch.filter(pa.array(~is_late))


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    (joined,) = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined


def _starts(batch: pa.RecordBatch, keys: Sequence[str]) -> Numbers:
    """The rows at which groups start, and the number of rows. Requires: rows are sorted by key."""
    hashes = batch.column(HASH).to_numpy()
    opens = np.ones(len(hashes), bool)
    opens[1:] = hashes[1:] != hashes[:-1]
    # Comparing hashes finds nearly every start in one pass over numbers. Only neighbours with equal
    # hashes can hide another one: keys that collide. Those alone are compared as keys.
    alike = np.flatnonzero(~opens)
    if len(alike):
        left, right = pa.array(alike - 1), pa.array(alike)
        same = np.ones(len(alike), bool)
        for name in keys:
            column = batch.column(name)
            same &= equal(canonical_column(column.take(left)), canonical_column(column.take(right)))
        opens[alike] = ~same
    return np.append(np.flatnonzero(opens), len(hashes))
