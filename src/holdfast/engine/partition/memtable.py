"""The uncommitted changes of one store."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Mask
from holdfast.engine.files.segment import MemorySegment
from holdfast.engine.partition.bounds import Bounds
from holdfast.engine.partition.rows import NEVER, Rows, merge_rows, sort_rows
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.partition.stack import SegmentStack
from holdfast.errors import InvalidArgument
from holdfast.types import MOST_COLUMN_BYTES

_MAX_RUNS = 8
_CELL_BYTES = 120
"""A rough size of a Python cell, for the memory metric."""

_Change = tuple[tuple[Any, ...], tuple[Any, ...] | None, int | None]


class Memtable:
    """Rows that are put and removed one by one in a dict, over batches as sorted runs."""

    def __init__(self, shape: StoreShape) -> None:
        self._shape = shape
        self._runs: list[Rows] = []
        self._sources: list[MemorySegment] | None = None
        self._known: Mask | None = None
        self.rows: dict[tuple[Any, ...], _Change] = {}
        """The newest changes by hashable key: (key, value or None for removed, expiry)."""

    def __len__(self) -> int:
        return len(self.rows) + sum(len(run) for run in self._runs)

    @property
    def nbytes(self) -> int:
        """Private memory the changes take, roughly."""
        columns = len(self._shape.key_schema) + len(self._shape.value_schema)
        return sum(run.nbytes for run in self._runs) + len(self.rows) * columns * _CELL_BYTES

    @property
    def known_existed(self) -> Mask | None:
        """For a memtable of exactly one run, which of its keys the base has, if that is known."""
        return self._known if len(self._runs) == 1 and not self.rows else None

    def add(self, run: Rows, existed: Mask | None = None) -> None:
        """Put a batch on top of everything before it."""
        self._flush()
        if len(run) == 0:
            return
        self._known = existed if not self._runs else None
        self._runs.append(run)
        self._sources = None
        self._merge_above(_MAX_RUNS)

    def sources(self) -> list[MemorySegment]:
        """Everything so far as immutable sources, newest first."""
        self._flush()
        return self.runs()

    def runs(self) -> list[MemorySegment]:
        """The batches so far, newest first, without the rows in the dict."""
        if self._sources is None:
            layout = self._shape.layout
            self._sources = [MemorySegment(run, layout) for run in reversed(self._runs)]
        return self._sources

    def seal(self) -> list[Rows]:
        """Return all changes in hash order, each key once.

        They are one run, or several consecutive ones where a single one would be too large.
        """
        self._flush()
        self._merge_above(1)
        if len(self._runs) <= 1:
            return list(self._runs)
        return list(SegmentStack(self.runs(), self._shape.layout, Bounds()).pieces(keep_dead=True))

    def clear(self) -> None:
        """Forget everything."""
        self.rows, self._runs, self._sources, self._known = {}, [], None, None

    def _merge_above(self, limit: int) -> None:
        if len(self._runs) > limit and sum(run.nbytes for run in self._runs) <= MOST_COLUMN_BYTES:
            self._runs = [merge_rows(self._runs[::-1])]
            self._sources = None

    def _flush(self) -> None:
        if not self.rows:
            return
        self._runs += list(self._runs_of(list(self.rows.values())))
        self.rows, self._sources, self._known = {}, None, None
        self._merge_above(_MAX_RUNS)

    def _runs_of(self, changes: list[_Change]) -> Iterator[Rows]:
        """Changes of different keys as runs, halved until their columns hold them."""
        try:
            run = self._run_of(changes)
        except pa.ArrowCapacityError:
            if len(changes) == 1:
                raise InvalidArgument(
                    "A row with a cell of more than 2 GiB cannot be stored. Split the value."
                ) from None
        else:
            if len(changes) == 1 or run.nbytes <= MOST_COLUMN_BYTES:
                yield run
                return
        middle = len(changes) // 2
        yield from self._runs_of(changes[:middle])
        yield from self._runs_of(changes[middle:])

    def _run_of(self, changes: list[_Change]) -> Rows:
        empty = (None,) * len(self._shape.value_schema)
        keys = self._shape.keys.to_arrow([change[0] for change in changes])
        values = self._shape.values.to_arrow(
            [empty if change[1] is None else change[1] for change in changes]
        )
        dead = np.array([change[1] is None for change in changes])
        expires = None
        if any(change[2] is not None for change in changes):
            expires = np.array([NEVER if c[2] is None else c[2] for c in changes], np.int64)
        run, _ = sort_rows(
            self._shape.hasher.hash_columns(keys),
            keys,
            values,
            dead if dead.any() else None,
            expires,
        )
        return run
