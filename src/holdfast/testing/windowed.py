"""A windowed query without Spark: what a stream computes from a batch, and what it emits.

    query = WindowedQuery("id", window=("ts", "5 minutes"), aggs={"profit": "sum(profit)"},
                     watermark="10 minutes")
    driver = StateTestDriver(query, schema="id string, ts timestamp, profit long")
    driver.push([{"id": "apple", "ts": noon, "profit": 10}])

Spark's part, summing up a batch, is done here; everything after it is the streams' own code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Mask
from holdfast.engine.hashing.spark_hash import key_hashes
from holdfast.engine.partition.columns import canonical_column
from holdfast.engine.partition.rows import index_numbers
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reserved import HASH, FreeNames
from holdfast.streams.aggregates.grouping import Numbers, Runs, codes_of
from holdfast.streams.aggregates.merging import Merge, merge_table
from holdfast.streams.processors.variables import Variable
from holdfast.streams.tasks.aggregation import ROWS, AggregationTask
from holdfast.streams.tasks.session import SessionTask
from holdfast.streams.tasks.sliding import SlidingTask, SlidingWindows
from holdfast.streams.tasks.task import Task
from holdfast.streams.watermark import Watermarks
from holdfast.testing._aggregates import parse_aggregate
from holdfast.testing._durations import micros
from holdfast.testing._work import BatchInput, WorkSettings, pyspark_row_maker
from holdfast.types import AtomicType, Field, Row, Schema, StructType, one_array

_GLOBAL = Field("all_rows", AtomicType("integer"))
_MODES = ("append", "update", "complete")
_TIMES = (AtomicType("timestamp"), AtomicType("timestamp_ntz"))


@dataclass(frozen=True)
class WindowedQuery:
    """A grouped aggregation, for `StateTestDriver`.

    `keys` are the grouping columns, which may be none. There can be one window:
    `window=("ts", "10 minutes")`, with a slide and a start offset after the length if wanted, or
    `session=("ts", "5 minutes")`. `aggs` are the output columns, each a function of columns:
    `{"profit": "sum(profit)", "trades": "count(*)"}`. `watermark` is the delay on the window's
    column; for another column, or without a window, it is a pair of column and delay.

    Output rows are `Row(<keys>, window=Row(start=…, end=…), <aggs>)`, with `session_window` for
    sessions. Times are in UTC.
    """

    keys: str | Sequence[str]
    _: KW_ONLY
    aggs: Mapping[str, str]
    window: tuple[str, ...] | None = None
    session: tuple[str, str] | None = None
    watermark: str | tuple[str, str] | None = None
    mode: str = "update"


@dataclass(frozen=True)
class _Frame:
    """The windows of a query: the column of times, and how they are cut."""

    time: Field
    name: str
    shape: SlidingWindows | None = None
    gap_us: int = 0

    def of(self, times: Numbers) -> tuple[Numbers, Numbers, Numbers]:
        """The windows that contain times: positions of the times, starts, ends."""
        if self.shape is None:
            return np.arange(len(times)), times, times + self.gap_us
        rows, starts = self.shape.windows(times)
        return rows, starts, starts + self.shape.length_us


@dataclass(frozen=True)
class _WindowPlacement:
    """The windows that contain rows, which of them is a row's last, and how many rows are late."""

    rows: Numbers
    starts: Numbers
    ends: Numbers
    is_last: Mask
    late: int


class WindowedWork:
    """Runs a `WindowedQuery`, and rejects what Spark rejects."""

    def __init__(self, query: WindowedQuery, schema: Schema, partitions: int) -> None:
        self.schema = schema
        columns = {field.name: field for field in schema}
        keys = [query.keys] if isinstance(query.keys, str) else list(query.keys)
        self._keys = [_known(columns, name) for name in keys]
        self._frame = _frame(query, columns)
        self.watermark = _watermark(query, columns, self._frame)
        self._aggregates = {
            name: parse_aggregate(name, text, columns) for name, text in query.aggs.items()
        }
        self._merges = tuple(aggregate.merge for aggregate in self._aggregates.values())
        self._mode = query.mode.lower()
        self._key_index = self._event_time_ordinal()
        self._check()
        self.partitions = 1 if self._is_global else partitions
        self._shape = self._store_shape()
        self.shapes = {DEFAULT_STORE_NAME: self._shape}

    def _check(self) -> None:
        if not self._aggregates:
            raise InvalidArgument("A WindowedQuery needs an aggregate: aggs={'n': 'count(*)'}.")
        if self._mode not in _MODES:
            raise InvalidArgument(
                f"The mode must be append, update or complete, not {self._mode!r}."
            )
        if self._mode == "append" and self._key_index is None:
            raise InvalidArgument(
                "Append mode needs a watermark on the window's column, as it does in Spark: "
                "without one no group is ever final."
            )
        if self._is_session and not self._keys:
            raise InvalidArgument("A session window needs keys beside it, as it does in Spark.")

    @property
    def _is_global(self) -> bool:
        return not self._keys and self._frame is None

    @property
    def _is_session(self) -> bool:
        return self._frame is not None and self._frame.shape is None

    @property
    def _panes(self) -> SlidingWindows | None:
        """The windows, if tasks merge panes into them, as in a stream."""
        by_time = self._key_index is not None and self._key_index < len(self._keys)
        if self._frame is None or self._frame.shape is None or not self._keys or by_time:
            return None
        may_be = all(aggregate.by_pane for aggregate in self._aggregates.values())
        return self._frame.shape if may_be and self._frame.shape.is_by_pane else None

    def _event_time_ordinal(self) -> int | None:
        """The stored column that the watermark evicts by: the event time, or its window's end."""
        if self.watermark is None:
            return None
        column = self.watermark[0]
        for number, key in enumerate(self._keys):
            if key.name == column:
                return number
        if self._frame is not None and self._frame.time.name == column:
            return len(self._keys) + 1
        return None

    def _store_shape(self) -> StoreShape:
        keys = list(self._keys)
        if self._frame is not None:
            taken = [*(key.name for key in keys), *self._aggregates, self._frame.name]
            names = FreeNames(taken, case_sensitive=True)
            for end in ("start", "end"):
                name = names.give(f"{self._frame.name}_{end}")
                keys.append(Field(name, self._frame.time.type))
        fields = [field for one in self._aggregates.values() for field in one.fields]
        prefix = len(self._keys) if self._is_session or self._panes else 0
        return StoreShape.of(
            Schema(StructType(tuple(_nullable(key) for key in keys or [_GLOBAL]))),
            Schema(StructType(tuple(fields))),
            self._key_index,
            prefix,
        )

    # -- what a driver calls -------------------------------------------------------------------

    @property
    def variables(self) -> Mapping[str, Variable]:
        return {}

    @property
    def follows_watermark(self) -> bool:
        # an aggregate over all rows has its one group even without rows, and Spark emits it
        return self._evicts or (self._is_global and self._mode == "update")

    @property
    def by_clock(self) -> bool:
        return False

    @property
    def _evicts(self) -> bool:
        return self._key_index is not None and self._mode != "complete"

    def given(self, rows: pa.Table, marks: Watermarks) -> BatchInput:
        keys, values, late = self._keyed(rows, marks)
        if not self._is_session:  # the task also joins the sessions of one batch
            runs = Runs.of(codes_of(keys))
            firsts = pa.array(runs.rows[runs.firsts])
            keys = [column.take(firsts) for column in keys]
            values = _merged((*self._merges, Merge("count", (ROWS,))), values, runs)
        names = self._shape.key_schema.names
        table = pa.table({**dict(zip(names, keys, strict=True)), **_by_name(values)})
        hashes = key_hashes(keys, self._shape.prefix or len(keys))
        return BatchInput.dealt(table.append_column(HASH, pa.array(hashes)), self.partitions, late)

    def _keyed(self, rows: pa.Table, marks: Watermarks) -> tuple[list[pa.Array], pa.Table, int]:
        """Key columns and partial aggregates of single rows, and how many were dropped as late."""
        keys = [canonical_column(one_array(rows.column(key.name))) for key in self._keys]
        values = self._partials(rows)
        if self._is_global:  # its group also exists without rows
            values = pa.concat_tables([values, self._nothing()])
            return [pa.array([0] * values.num_rows, pa.int32())], values, 0
        if self._frame is None:
            return keys, values, 0
        placed = self._placed(rows, marks)
        taken = pa.array(placed.rows)
        kind = self._frame.time.type.arrow
        window = [pa.array(placed.starts).view(kind), pa.array(placed.ends).view(kind)]
        dealt = values.drop_columns([ROWS]).take(taken)
        dealt = dealt.append_column(ROWS, pa.array(placed.is_last.astype(np.int64)))
        return [*(column.take(taken) for column in keys), *window], dealt, placed.late

    def _placed(self, rows: pa.Table, marks: Watermarks) -> _WindowPlacement:
        """The windows, or panes, that contain rows; a row without a time is in none."""
        assert self._frame is not None
        times = one_array(rows.column(self._frame.time.name))
        timed = np.flatnonzero(times.is_valid().to_numpy(zero_copy_only=False))
        numbers = index_numbers(times.drop_null())
        assert numbers is not None
        frame = self._frame
        if self._panes is not None:
            pane = self._panes.pane_us
            frame = replace(frame, shape=SlidingWindows(pane, pane, self._panes.start_us % pane))
        places, starts, ends = frame.of(numbers)
        kept = np.ones(len(ends), bool)
        if self._is_session and self._key_index is not None:
            kept = ends > marks.late_us
        is_last = np.ones(len(ends), bool)
        if frame.shape is not None:
            is_last = starts == frame.shape.newest(numbers)[places]
        late = int(len(kept) - kept.sum())
        return _WindowPlacement(timed[places][kept], starts[kept], ends[kept], is_last[kept], late)

    def _partials(self, rows: pa.Table) -> pa.Table:
        ones = pa.array(np.ones(rows.num_rows, np.int64))
        columns: dict[str, pa.Array] = {}
        for aggregate in self._aggregates.values():
            inputs = [one_array(rows.column(name)) for name in aggregate.inputs] or [ones]
            for field, column in zip(aggregate.fields, aggregate.of_rows(inputs), strict=True):
                columns[field.name] = column
        return pa.table({**columns, ROWS: ones})

    def _nothing(self) -> pa.Table:
        columns = {
            field.name: pa.array([cell], field.type.arrow)
            for aggregate in self._aggregates.values()
            for field, cell in zip(aggregate.fields, aggregate.nothing, strict=True)
        }
        return pa.table({**columns, ROWS: pa.array([0], pa.int64())})

    def task(self, setting: WorkSettings) -> Task:
        facts: dict[str, Any] = {
            "store": setting.stores[DEFAULT_STORE_NAME],
            "base_version": setting.base_version,
            "merges": self._merges,
            "ansi": True,
            "mode": self._mode,
            "late": setting.marks.late_us if self._evicts else None,
            "evict": setting.marks.evict_us if self._evicts else None,
            "outbox": setting.outbox,
        }
        if self._is_session:
            return SessionTask(**facts)
        if self._panes is not None:
            return SlidingTask(**facts, sliding=self._panes)
        return AggregationTask(**facts)

    def initial(self, setting: WorkSettings, columns: Schema) -> Task:
        raise InvalidArgument("A WindowedQuery takes no initial state. Push rows instead.")

    def shown(self, tables: list[pa.Table]) -> Any:
        return [row for table in tables for row in self._rows(table)]

    def _rows(self, table: pa.Table) -> list[Any]:
        columns = [table.column(key.name).to_pylist() for key in self._keys]
        names = [key.name for key in self._keys]
        if self._frame is not None:
            bounds = self._shape.key_schema.names[-2:]
            pairs = zip(*(table.column(name).to_pylist() for name in bounds), strict=True)
            columns.append(list(map(pyspark_row_maker(["start", "end"]), pairs)))
            names.append(self._frame.name)
        for name, aggregate in self._aggregates.items():
            partials = [one_array(table.column(field.name)) for field in aggregate.fields]
            columns.append(aggregate.finish(partials).to_pylist())
            names.append(name)
        return list(map(pyspark_row_maker(names), zip(*columns, strict=True)))

    def store_of(self, name: str) -> str:
        return name

    def held(self, name: str, table: pa.Table) -> dict[Row, Any]:
        codec, width = self._shape.keys, len(self._shape.key_schema)
        keys = map(codec.hashable, codec.from_arrow(table.columns[:width]))
        values = self._shape.values.from_arrow(table.columns[width:])
        return dict(zip(keys, values, strict=True))


def _frame(query: WindowedQuery, columns: Mapping[str, Field]) -> _Frame | None:
    if query.window is not None and query.session is not None:
        raise InvalidArgument("A WindowedQuery has a window or a session, not both.")
    given = query.window or query.session
    if given is None:
        return None
    time, lengths = _known(columns, given[0]), [micros(length) for length in given[1:]]
    if time.type not in _TIMES:
        raise InvalidArgument(f"A window needs a timestamp, but {time.name!r} is {time.type}.")
    if query.session is not None:
        return _Frame(time, "session_window", gap_us=lengths[0])
    length, slide, start = [*lengths, *(lengths[0], 0)[len(lengths) - 1 :]]
    if not 0 < slide <= length or abs(start) >= slide:
        raise InvalidArgument(
            "A window's slide is at most its length, and its start offset less than its slide."
        )
    return _Frame(time, "window", SlidingWindows(length, slide, start))


def _watermark(
    query: WindowedQuery, columns: Mapping[str, Field], frame: _Frame | None
) -> tuple[str, int] | None:
    given = query.watermark
    if given is None:
        return None
    if isinstance(given, str):
        if frame is None:
            raise InvalidArgument(
                f"Without a window the watermark needs its column: watermark=('ts', {given!r})."
            )
        given = frame.time.name, given
    return _known(columns, given[0]).name, micros(given[1]) // 1000


def _merged(merges: Sequence[Merge], values: pa.Table, runs: Runs) -> pa.Table:
    """One row for each group of rows.

    Neighbours are merged in pairs until one is left, since a group may have many rows: that takes
    as many steps as the logarithm of the largest group.
    """
    held, sizes = values.take(pa.array(runs.rows)), runs.sizes
    while sizes.max(initial=0) > 1:
        within = np.arange(held.num_rows) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        left = np.flatnonzero(within % 2 == 0)
        right = np.flatnonzero(within % 2 == 1)
        joined = merge_table(
            merges, held.take(pa.array(right)), held.take(pa.array(right - 1)), ansi=True
        )
        alone = np.setdiff1d(left, right - 1, assume_unique=True)
        both = pa.concat_tables([joined.select(held.column_names), held.take(pa.array(alone))])
        held = both.take(pa.array(np.argsort(np.concatenate([right - 1, alone]))))
        sizes = (sizes + 1) // 2
    return held


def _known(columns: Mapping[str, Field], name: str) -> Field:
    if name not in columns:
        raise InvalidArgument(f"{name!r} is not one of the columns {', '.join(columns)}.")
    return columns[name]


def _nullable(field: Field) -> Field:
    return replace(field, nullable=True)


def _by_name(table: pa.Table) -> dict[str, pa.ChunkedArray]:
    return {name: table.column(name) for name in table.column_names}
