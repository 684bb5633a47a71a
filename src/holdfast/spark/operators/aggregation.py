"""An aggregation of a stream: what Spark computes over a batch, and what comes out of state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from holdfast.engine.hashing.spark_hash import spark_sql_hash
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reserved import HASH, FreeNames
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import AggregateCall, AnalyzedAggregation, TimeWindow
from holdfast.spark.operators.columns import (
    DELAY,
    SESSION,
    KeyColumn,
    event_time_ordinal,
    is_window,
    keys_of,
    made_of,
    nullable,
    quote_column,
    with_metadata,
)
from holdfast.spark.operators.functions import Partials, take_apart
from holdfast.spark.operators.operator import LATE, Operator, TaskSettings, ViewSource
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.aggregates.stored import AGGREGATE
from holdfast.streams.tasks.aggregation import ROWS, AggregationTask
from holdfast.streams.tasks.session import SessionTask
from holdfast.streams.tasks.sliding import SlidingTask
from holdfast.streams.tasks.task import Task
from holdfast.streams.watermark import Watermarks
from holdfast.types import Schema, parse_schema

_GLOBAL = "all_rows"


def aggregation(groupings: tuple[Column, ...], after: DataFrame) -> Aggregation:
    """`before.groupBy(*groupings).agg(*aggregates)`, of which `after` is Spark's own analysis."""
    fields = after.schema.fields[: len(groupings)]
    for place, field in enumerate(fields):
        if SESSION in (field.metadata or {}):
            return SessionAggregation(groupings, after, place)
        window = _window_to_deal_out(fields, after, place)
        if window is not None:
            sliding = SlidingAggregation(groupings, after, place, window)
            if all(partials.by_pane for partials in sliding.partials):
                return sliding
    return Aggregation(groupings, after)


def _window_to_deal_out(
    fields: list[StructField], after: DataFrame, place: int
) -> TimeWindow | None:
    """The window at a place of the key if rows can be dealt out to it by panes.

    That needs other columns to deal out by, none of which is a time that groups are evicted by.
    """
    others = [field for number, field in enumerate(fields) if number != place]
    timed = any(is_window(field) or DELAY in (field.metadata or {}) for field in others)
    if not others or timed or not is_window(fields[place]):
        return None
    window = seam.analysis.time_window(after)
    if window is None or not window.shape.is_by_pane:
        return None
    return window if seam.analysis.is_key_alone(after, place) else None


class Aggregation(Operator):
    """Groups by columns and windows."""

    title = "stateStoreSave"
    _task: type[AggregationTask] = AggregationTask

    def __init__(self, groupings: tuple[Column, ...], after: DataFrame) -> None:
        self._groupings = groupings
        analyzed = seam.analysis.analyze_aggregation(after, len(groupings))
        fields = after.schema.fields[: len(groupings)]
        case_sensitive = seam.sessions.is_case_sensitive(after.sparkSession)
        names = FreeNames([ROWS], case_sensitive=case_sensitive)
        # The keys as a batch has them, each with a name of its own.
        own = [StructField(names.give(f.name), f.dataType, f.nullable, f.metadata) for f in fields]
        parse_schema(StructType(own)).check_key()
        taken = [*after.columns, *(field.name for field in own)]
        self._keys = keys_of(own, FreeNames(taken, case_sensitive=case_sensitive))
        self._key_names = [part for key in self._stored_keys() for part in key.parts] or [_GLOBAL]
        taken = [ROWS, *self._key_names, *(field.name for field in own)]
        calls = _Calls(FreeNames(taken, case_sensitive=case_sensitive))
        for call, name in zip(analyzed.calls, _call_names(analyzed, after, len(own)), strict=True):
            calls.take(call, name)
        self.partials, self._calls = calls.partials, calls.definition
        self._flags = calls.flags
        self._fields = fields
        self._made_keys = [f"key_{i}" for i in range(len(fields))]
        self._made_results = [f"result_{i}" for i in range(len(self.partials))]
        self._finish = analyzed.finish(self._made_keys, self._made_results)
        self.merges: tuple[Merge, ...] = tuple(partial.merge for partial in self.partials)
        self.former = tuple(p.former for p in self.partials if p.former is not None)
        self.key_index = event_time_ordinal(self._stored_keys())
        self._window = seam.analysis.time_window(after)

    def _stored_keys(self) -> list[KeyColumn]:
        """The keys in the order the state has them in."""
        return self._keys

    @property
    def is_global(self) -> bool:
        return not self._groupings

    def definition(self) -> dict[str, str]:
        return {
            "operator": self.title,
            "keys": ", ".join(seam.columns.sql_of(grouping) for grouping in self._groupings)
            or "none",
            **self._calls,
        }

    def columns(self, before: Sequence[DataFrame], after: DataFrame) -> dict[str, str]:
        return {**made_of(seam.lineage.columns_aggregated(before[0], after)), **self._flags}

    def ticks(self, mode: str) -> bool:
        # Without rows an aggregate over all rows still has its one group, which Spark puts out.
        return self._evicts(mode) or (self.is_global and mode == "update")

    def _evicts(self, mode: str) -> bool:
        return self.key_index is not None and mode != "complete"

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        rows = F.count(F.lit(1))
        if self._window is not None and self._window.shape.slides:
            rows = F.count_if(self._window.is_last_of(batch))
        return self._routed(self._grouped(batch, self._named(), rows), partitions)

    def _named(self) -> tuple[Column, ...]:
        """What is grouped by, under the names the keys have in a batch."""
        triples = zip(self._groupings, self._fields, self._keys, strict=True)
        return tuple(
            grouping if key.field.name == field.name else grouping.alias(key.field.name)
            for grouping, field, key in triples
        )

    def _grouped(self, batch: DataFrame, groupings: tuple[Column, ...], rows: Column) -> DataFrame:
        """The partial aggregates of a batch, one row a key, and its `rows`, each counted once."""
        columns = [column.alias(name) for p in self.partials for name, column in p.columns]
        return batch.groupBy(*groupings).agg(*columns, rows.alias(ROWS))

    def _routed(self, grouped: DataFrame, partitions: int) -> DataFrame:
        if self.is_global:
            keys = [F.lit(0).alias(_GLOBAL)]
        else:
            grouped = grouped.repartition(partitions, *self._routing())
            keys = [column for key in self._stored_keys() for column in key.columns()]
        names = [name for partial in self.partials for name, _ in partial.columns]
        kept = grouped.select(*keys, *[F.col(quote_column(name)) for name in names], ROWS)
        hashed = spark_sql_hash(self._key_names, self.prefix or len(self._key_names))
        return kept.withColumn(HASH, F.expr(hashed))

    def _routing(self) -> list[str]:
        return [quote_column(key.field.name) for key in self._keys]

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        fields, count = self.rows_schema(frame).fields, len(self._key_names)
        keys, values = StructType(fields[:count]), StructType(fields[count:])
        shape = StoreShape.of(parse_schema(keys), parse_schema(values), self.key_index, self.prefix)
        return {DEFAULT_STORE_NAME: shape}

    def empty_values(self, before: DataFrame) -> pa.Table:
        columns = [column.alias(name) for p in self.partials for name, column in p.columns]
        return before.limit(0).agg(*columns).toArrow()

    def takes_over(self, stored: Schema, wanted: Schema, *, may_add: bool) -> bool:
        later = {name for partial in self.partials for name in partial.later}
        former = [columns for columns in self.former if columns.are_in(stored.names)]
        made = {name for columns in former for name in columns.columns}
        gone = {name for columns in former for name in columns.names} | made
        lacking = set(wanted.names) - set(stored.names) - made
        is_earlier = bool(lacking or made) and lacking <= later
        kept = Schema(
            type(stored.struct)(tuple(field for field in stored if field.name not in gone))
        )
        return super().takes_over(kept, wanted, may_add=may_add or is_earlier)

    def rows_schema(self, frame: DataFrame) -> StructType:
        return nullable([field for field in frame.schema.fields if field.name not in (ROWS, HASH)])

    def task(self, settings: TaskSettings) -> Task:
        bounded = self._evicts(settings.mode)
        return self._task(
            store=settings.store,
            base_version=settings.base_version,
            merges=self.merges,
            ansi=settings.ansi,
            mode=settings.mode,
            late=settings.marks.late_us if bounded else None,
            evict=settings.marks.evict_us if bounded else None,
            outbox=settings.outbox,
        )

    def output(self, rows: DataFrame) -> DataFrame:
        pairs = zip(self._made_keys, self._fields, strict=True)
        keys = [with_metadata(F.col(name), field) for name, field in pairs]
        return self._made(rows).select(*keys, *self._finish)

    def _made(self, rows: DataFrame) -> DataFrame:
        """Keys and aggregates out of stored rows, and nothing else that could have their names."""
        keys = zip(self._keys, self._made_keys, strict=True)
        results = zip(self.partials, self._made_results, strict=True)
        return rows.select(
            *[key.restored().alias(name) for key, name in keys],
            *[partial.result.alias(name) for partial, name in results],
        )

    def shown(self, variable: str | None) -> ViewSource:
        return replace(super().shown(variable), make=self._shown_rows)

    def _shown_rows(self, rows: DataFrame) -> DataFrame:
        """Keys as they are stored, and finished aggregates."""
        names = dict(zip((key.field.name for key in self._keys), self._made_keys, strict=True))
        keys = [
            column for key in self._stored_keys() for column in key.columns(names[key.field.name])
        ]
        if self.is_global:
            keys = [F.lit(0).alias(_GLOBAL)]
        shown = self._made(rows).select(*keys, *self._finish)
        if len(set(shown.columns)) < len(shown.columns):
            raise InvalidArgument(
                "Two columns of the aggregation have the same name, and a view needs them to "
                "differ: give one another name with alias()."
            )
        return shown


class _ByWindowLast(Aggregation):
    """Keeps one window last in the key; rows are dealt out by the columns before it."""

    def __init__(self, groupings: tuple[Column, ...], after: DataFrame, place: int) -> None:
        self._place = place
        super().__init__(groupings, after)
        self.prefix = len(self._key_names) - 2

    def _stored_keys(self) -> list[KeyColumn]:
        keys = list(self._keys)
        window = keys.pop(self._place)
        return [*keys, window]

    def _routing(self) -> list[str]:
        return [quote_column(key.field.name) for key in self._stored_keys()[:-1]]

    def _grouped_with(self, rows: DataFrame, window: Column) -> DataFrame:
        """`_grouped` with another column in the place of the window."""
        groupings = list(self._named())
        groupings[self._place] = window.alias(self._keys[self._place].field.name)
        return self._grouped(rows, tuple(groupings), F.count(F.lit(1)))


class SlidingAggregation(_ByWindowLast):
    """Groups by windows that overlap and other columns; Spark sums up a batch by panes."""

    _task = SlidingTask

    def __init__(
        self,
        groupings: tuple[Column, ...],
        after: DataFrame,
        place: int,
        window: TimeWindow,
    ) -> None:
        super().__init__(groupings, after, place)
        self._time, self._sliding = window.time, window.shape

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        # Spark wants a start that is less than the slide.
        pane = f"{self._sliding.pane_us} microseconds"
        start = f"{self._sliding.start_us % self._sliding.pane_us} microseconds"
        panes = F.window(self._time, pane, pane, start)
        return self._routed(self._grouped_with(batch, panes), partitions)

    def task(self, settings: TaskSettings) -> Task:
        task = super().task(settings)
        assert isinstance(task, SlidingTask)
        return replace(task, sliding=self._sliding)


class SessionAggregation(_ByWindowLast):
    """Groups by a session window and other columns; Spark merges the sessions of a batch."""

    title = "sessionWindowStateStoreSaveExec"
    reads_marks = True
    _task = SessionTask

    def __init__(self, groupings: tuple[Column, ...], after: DataFrame, place: int) -> None:
        if len(groupings) == 1:
            raise InvalidArgument(
                "session_window needs another grouping column beside it, as it does in Spark. "
                "Also group by a column of the stream, or by a constant."
            )
        super().__init__(groupings, after, place)

    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        asked = batch.groupBy(*self._groupings).agg(F.count(F.lit(1)))
        rows = seam.analysis.aggregated_rows(asked)
        marked = next(f.name for f in rows.schema.fields if SESSION in (f.metadata or {}))
        session = F.col(quote_column(marked))
        if self.key_index is not None:
            late = F.timestamp_micros(F.lit(marks.late_us))
            is_late = session.getField("end") <= late.cast(_end_type(self._fields[self._place]))
            rows = rows.observe(LATE, F.count_if(is_late).alias("rows")).filter(~is_late)
        return self._routed(self._grouped_with(rows, session), partitions)


def _end_type(session: StructField) -> str:
    assert isinstance(session.dataType, StructType)
    return str(session.dataType["end"].dataType.simpleString())


class _Calls:
    """Aggregate calls taken apart, and what the definition of the query says about each."""

    def __init__(self, names: FreeNames) -> None:
        self._names = names
        self.partials: list[Partials] = []
        self.definition: dict[str, str] = {}
        self.flags: dict[str, str] = {}
        """What the text of a call in SQL leaves out."""

    def take(self, call: AggregateCall, name: str) -> None:
        """Take a call apart, whose partial columns are named after `name` where that is free."""
        wanted: dict[str, str] = {}

        def give(suffix: str) -> str:
            given = self._names.give(f"{name}{suffix}")
            wanted[given] = f"{name}{suffix}"
            return given

        partials = take_apart(call, give)
        self.partials.append(partials)
        if words := call.flag_in_words:
            self.flags[f"{AGGREGATE}{name}"] = words
        if all(wanted[given] == given for given in partials.told_names):
            self.definition[f"{AGGREGATE}{name}"] = call.sql
        else:
            # The next start may not find these columns to be another aggregate's.
            labels = FreeNames(self.definition, case_sensitive=True)
            label = labels.give(f"{AGGREGATE}{name}")
            self.definition[label] = f"{call.sql} kept in {', '.join(partials.told_names)}"


def _call_names(analyzed: AnalyzedAggregation, after: DataFrame, num_keys: int) -> list[str]:
    """A name for each aggregate call: that of its column where it makes one by itself."""
    keys = [f"key_{i}" for i in range(num_keys)]
    placeholders = [f"call_{i}" for i in range(len(analyzed.calls))]
    columns = after.columns[num_keys:]
    free = FreeNames(after.columns, case_sensitive=True)
    names = []
    for i, placeholder in enumerate(placeholders):
        own = [
            column
            for column, finished in zip(columns, analyzed.finish(keys, placeholders), strict=True)
            if str(finished) == f"Column<'{placeholder} AS {column}'>"
        ]
        names.append(own[0] if own else free.give(f"aggregate_{i}"))
    return names
