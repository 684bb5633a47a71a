"""An aggregation of a stream: what Spark computes over a batch, and what comes out of state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from holdfast.engine.hashing import spark_sql_hash
from holdfast.engine.segment import HASH
from holdfast.errors import InvalidArgument
from holdfast.spark import jvm
from holdfast.spark.partials import Partials, take_apart
from holdfast.streams.aggregating import ROWS
from holdfast.streams.merging import Merge
from holdfast.streams.reading import Output, read_output
from holdfast.types import Schema, parse_schema

_DELAY = "spark.watermarkDelayMs"
_WINDOW = "spark.timeWindow"
_SESSION = "spark.sessionWindow"
_GLOBAL = "all_rows"


@dataclass(frozen=True)
class _Key:
    """A grouping column as the state keeps it: a window is kept as its start and its end."""

    name: str
    parts: tuple[str, ...]
    is_window: bool

    def columns(self) -> list[Column]:
        """The stored columns out of the grouped one."""
        source = F.col(_quoted(self.name))
        if not self.is_window:
            return [source.alias(self.parts[0])]
        start, end = self.parts
        return [source.getField("start").alias(start), source.getField("end").alias(end)]

    def restored(self) -> Column:
        """The grouped column out of the stored ones."""
        if not self.is_window:
            return F.col(_quoted(self.parts[0])).alias(self.name)
        start, end = (F.col(_quoted(part)) for part in self.parts)
        return F.struct(start.alias("start"), end.alias("end")).alias(self.name)


class Aggregation:
    """`before.groupBy(*groupings).agg(*aggregates)`, of which `after` is Spark's own analysis."""

    def __init__(self, groupings: tuple[Column, ...], after: DataFrame) -> None:
        self._groupings = groupings
        analyzed = jvm.analyze_aggregation(after, len(groupings))
        fields = after.schema.fields[: len(groupings)]
        _check_keys(fields)
        self._keys = _keys_of(fields, set(after.columns))
        self.after = after
        names = _call_names(analyzed, after)
        self._partials: list[Partials] = [
            take_apart(call, name) for call, name in zip(analyzed.calls, names, strict=True)
        ]
        results = [f"result_{i}" for i in range(len(self._partials))]
        self._results = results
        self._finish = analyzed.finish(results)
        self.merges: tuple[Merge, ...] = tuple(partial.merge for partial in self._partials)
        self.key_index = self._event_time_ordinal(fields)

    @property
    def is_global(self) -> bool:
        """Whether all rows make one group."""
        return not self._groupings

    @property
    def has_event_time(self) -> bool:
        """Whether state is evicted by the watermark."""
        return self.key_index is not None

    def _event_time_ordinal(self, fields: list[StructField]) -> int | None:
        ordinal = 0
        for key, field in zip(self._keys, fields, strict=True):
            if _DELAY in (field.metadata or {}):
                return ordinal + (1 if key.is_window else 0)
            ordinal += len(key.parts)
        return None

    def _part_names(self) -> list[str]:
        return [part for key in self._keys for part in key.parts] or [_GLOBAL]

    def batch_frame(self, batch: DataFrame, partitions: int) -> DataFrame:
        """A batch's partial aggregates, one row a key, each in its key's partition."""
        columns = [column.alias(name) for p in self._partials for name, column in p.columns]
        grouped = batch.groupBy(*self._groupings).agg(*columns, F.count(F.lit(1)).alias(ROWS))
        if self.is_global:
            keys = [F.lit(0).alias(_GLOBAL)]
        else:
            grouped = grouped.repartition(partitions, *[_quoted(key.name) for key in self._keys])
            keys = [column for key in self._keys for column in key.columns()]
        names = [name for partial in self._partials for name, _ in partial.columns]
        kept = grouped.select(*keys, *[F.col(_quoted(name)) for name in names], ROWS)
        hashed = spark_sql_hash(self._part_names(), len(self._part_names()))
        return kept.withColumn(HASH, F.expr(hashed))

    def schemas(self, frame: DataFrame) -> tuple[Schema, Schema]:
        """The key and value schemas of the state, of which `frame` is a `batch_frame`."""
        count = len(self._part_names())
        fields = [
            StructField(field.name, field.dataType, True)
            for field in frame.schema.fields
            if field.name not in (ROWS, HASH)
        ]
        key, value = StructType(fields[:count]), StructType(fields[count:])
        return parse_schema(key), parse_schema(value)

    def output_frame(self, frame: DataFrame, output: Output) -> DataFrame:
        """A version's output, read by tasks where the state is; `frame` gives the session."""
        session = frame.sparkSession
        partitions = output.store.partitions
        stored = StructType(
            [
                StructField(field.name, field.dataType, True)
                for field in frame.schema.fields
                if field.name not in (ROWS, HASH)
            ]
        )

        def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for partition in batch.column(0).to_pylist():
                    for table in read_output(output, partition):
                        yield from table.to_batches()

        numbers = session.range(0, partitions, 1, partitions)
        rows = numbers.mapInArrow(read, stored)
        for name, partial in zip(self._results, self._partials, strict=True):
            rows = rows.withColumn(name, partial.result)
        return rows.select(*[key.restored() for key in self._keys], *self._finish)


def _check_keys(fields: list[StructField]) -> None:
    for field in fields:
        if _SESSION in (field.metadata or {}):
            raise InvalidArgument(
                "session_window is not supported yet: group by window, or by a session key of "
                "your own."
            )
    parse_schema(StructType(fields)).check_key()


def _keys_of(fields: list[StructField], taken: set[str]) -> list[_Key]:
    keys = []
    for field in fields:
        if _WINDOW in (field.metadata or {}) and _is_window(field):
            parts = tuple(_free(f"{field.name}_{end}", taken) for end in ("start", "end"))
            keys.append(_Key(field.name, parts, True))
        else:
            keys.append(_Key(field.name, (field.name,), False))
    return keys


def _is_window(field: StructField) -> bool:
    kind = field.dataType
    times = (TimestampType, TimestampNTZType)
    return (
        isinstance(kind, StructType)
        and kind.names == ["start", "end"]
        and all(isinstance(part.dataType, times) for part in kind.fields)
    )


def _call_names(analyzed: jvm.AnalyzedAggregation, after: DataFrame) -> list[str]:
    """A name for each aggregate call: that of its column where it makes one by itself."""
    placeholders = [f"call_{i}" for i in range(len(analyzed.calls))]
    columns = after.columns[len(analyzed.key_names) :]
    taken = set(after.columns)
    names = []
    for i, placeholder in enumerate(placeholders):
        own = [
            column
            for column, finished in zip(columns, analyzed.finish(placeholders), strict=True)
            if str(finished) == f"Column<'{placeholder} AS {column}'>"
        ]
        names.append(own[0] if own else _free(f"aggregate_{i}", taken))
    return names


def _free(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    taken.add(name)
    return name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
