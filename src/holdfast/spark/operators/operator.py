"""What a stateful operator is to the query that runs it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from holdfast.engine.partition.chain import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.tasks.task import StoreSpec, Task
from holdfast.streams.watermark import Watermarks
from holdfast.types import RESERVED_PREFIXES, Schema

FrameStep = Callable[[DataFrame], DataFrame]
DELAY = "spark.watermarkDelayMs"
WINDOW = "spark.timeWindow"
SESSION = "spark.sessionWindow"
LATE = "holdfast_late"
"""The name under which the number of late rows is observed."""


@dataclass(frozen=True)
class TaskSettings:
    """What an operator's tasks of one version are told, the operator's own facts aside."""

    stores: Mapping[str, StoreSpec]
    base_version: int
    mode: str
    ansi: bool
    marks: Watermarks
    """The watermarks that the operator goes by: the smallest of those of its inputs."""
    outbox: Outbox | None
    query: QueryInfo
    zone: str
    """The session's time zone."""
    input_marks: tuple[Watermarks, ...] = ()
    """The watermarks of each input, where they are known."""

    @property
    def store(self) -> StoreSpec:
        """The store of an operator that has one."""
        return self.stores[DEFAULT_STORE_NAME]


@dataclass(frozen=True)
class InitialLoad:
    """What fills an operator's state before the first batch: a task, and the rows it gets."""

    task: Task
    rows: DataFrame


@dataclass(frozen=True)
class ViewSource:
    """What of an operator's state a view shows: a store, and of its values all or some columns.

    With `make` Spark makes the rows out of stored ones: the key columns, then the values.
    """

    store: str = DEFAULT_STORE_NAME
    values: tuple[str, ...] | None = None
    make: FrameStep | None = None


class Operator(ABC):
    """One stateful operator of a query."""

    title: str
    """What Spark calls it in a query's progress."""

    emits: bool = False
    """Whether its output is put out by the tasks; otherwise it is read from state."""

    key_index: int | None = None
    """The key column its state is evicted by."""

    reads_marks: bool = False
    """Whether `batch_frame` depends on the watermarks."""

    prefix: int = 0
    """How many leading key columns rows are dealt out by; 0 for all."""

    needs_engine: bool = False
    """Whether its state must be Holdfast's own: it asks for more than the row contract."""

    by_clock: bool = False
    """Whether a version without data can change something once the clock moves on."""

    @property
    def is_global(self) -> bool:
        """Whether all rows make one group."""
        return False

    @abstractmethod
    def definition(self) -> dict[str, str]:
        """What the state was made by, in words a person compares: it may not change."""

    @abstractmethod
    def columns(self, before: Sequence[DataFrame], after: DataFrame) -> dict[str, str]:
        """What else the state was made by: what its columns are made of before the operator.

        `before`, one for each input, and `after` are Spark's own form of the pipeline around the
        operator.
        """

    @abstractmethod
    def ticks(self, mode: str) -> bool:
        """Whether a version without data can change something once the watermark moves on."""

    common: Collection[str] = ()
    """Of an operator with several inputs: the columns that `input_rows` gives for each of them."""

    def input_rows(self, number: int, rows: DataFrame) -> DataFrame:
        """What of the rows of one input of several goes into the operator's batch.

        Apart from those in `common`, its columns have names that no other input's columns have.
        """
        return rows

    def output_watermark(self, input_ms: int) -> int:
        """Up to where the output is complete once the input is, in event time.

        An operator that emits rows older than its watermark, as a join does, says by how much.
        """
        return input_ms

    @abstractmethod
    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        """What the tasks get of a batch, each row in its key's partition, with `_hash`.

        The batch of several inputs is the tagged union of their `input_rows`: INPUT says which
        input a row is from, and `streams.tasks.inputs` takes a task's rows apart again.
        """

    @abstractmethod
    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        """The stores of the state by name, of which `frame` is a `batch_frame`."""

    dropped: Collection[str] = ()
    """Stores of earlier runs that are to go."""

    def takes_over(self, stored: Schema, wanted: Schema, *, may_add: bool) -> bool:
        """Whether values of the state can be read as those of the query.

        `may_add` is whether the user said that more columns than before start empty.
        """
        by_name = {field.name: field for field in wanted}
        return may_add and all(by_name.get(field.name) == field for field in stored)

    def empty_values(self, before: DataFrame) -> pa.Table | None:
        """What a key's value columns hold before any row of it, as a table of one row.

        None where that is null. `before` are rows that `batch_frame` gets.
        """
        return None

    def shown(self, variable: str | None) -> ViewSource:
        """What a view shows of the state. Of several state variables one is chosen by name."""
        if variable is not None:
            raise InvalidArgument(
                f"viewVariable is {variable!r}, and {self.title} has no state variables. Leave it "
                "out."
            )
        return ViewSource()

    @abstractmethod
    def rows_schema(self, frame: DataFrame) -> StructType:
        """The schema of what tasks put out, or of what is read from state."""

    @abstractmethod
    def task(self, settings: TaskSettings) -> Task:
        """The tasks' work of one version."""

    def initial(self, settings: TaskSettings, partitions: int) -> InitialLoad | None:
        """What fills the state before the first batch, if something does."""
        return None

    @abstractmethod
    def output(self, rows: DataFrame) -> DataFrame:
        """The operator's output, made of rows of `rows_schema`."""


@dataclass(frozen=True)
class KeyColumn:
    """A key column as the state keeps it: a window is kept as its start and its end."""

    field: StructField
    parts: tuple[str, ...]

    @property
    def is_window(self) -> bool:
        """Whether the column is a window."""
        return len(self.parts) == 2

    def columns(self, name: str | None = None) -> list[Column]:
        """The stored columns out of the original one, which may have another name."""
        source = F.col(quote_column(self.field.name if name is None else name))
        if not self.is_window:
            return [source.alias(self.parts[0])]
        start, end = self.parts
        return [source.getField("start").alias(start), source.getField("end").alias(end)]

    def restored(self) -> Column:
        """The original column out of the stored ones, its metadata with it."""
        if not self.is_window:
            return with_metadata(F.col(quote_column(self.parts[0])), self.field)
        start, end = (F.col(quote_column(part)) for part in self.parts)
        return with_metadata(F.struct(start.alias("start"), end.alias("end")), self.field)


def keys_of(fields: list[StructField], names: FreeNames) -> list[KeyColumn]:
    """The stored form of key columns; `names` are for the parts of windows."""
    keys = []
    for field in fields:
        if is_window(field):
            start, end = (names.give(f"{field.name}_{end}") for end in ("start", "end"))
            keys.append(KeyColumn(field, (start, end)))
        else:
            keys.append(KeyColumn(field, (field.name,)))
    return keys


def event_time_ordinal(keys: list[KeyColumn]) -> int | None:
    """Which stored column the watermark evicts by: the event time, or its window's end."""
    ordinal = 0
    for key in keys:
        if DELAY in (key.field.metadata or {}):
            return ordinal + len(key.parts) - 1
        ordinal += len(key.parts)
    return None


def is_window(field: StructField) -> bool:
    """Whether a column is a window made by Spark's functions."""
    kind = field.dataType
    times = (TimestampType, TimestampNTZType)
    marks = field.metadata or {}
    return (
        (WINDOW in marks or SESSION in marks)
        and isinstance(kind, StructType)
        and kind.names == ["start", "end"]
        and all(isinstance(part.dataType, times) for part in kind.fields)
    )


def with_metadata(column: Column, field: StructField) -> Column:
    """A column under a field's name, with its metadata: that is how Spark knows event times."""
    if field.metadata:
        return column.alias(field.name, metadata=field.metadata)
    return column.alias(field.name)


def made_of(columns: Mapping[str, str]) -> dict[str, str]:
    """What columns are made of, as `Operator.columns` says it."""
    return {f"column {name}": text for name, text in columns.items()}


def nullable(fields: list[StructField], *, keep_metadata: bool = False) -> StructType:
    """A schema of these columns, each nullable, without metadata unless asked for."""
    return StructType(
        [
            StructField(f.name, f.dataType, True, f.metadata if keep_metadata else None)
            for f in fields
        ]
    )


class FreeNames:
    """Gives out column names a store can have, each once as Spark compares names.

    A name that nobody has yet is given as it is.
    """

    def __init__(self, taken: Iterable[str], *, case_sensitive: bool) -> None:
        self._fold = str if case_sensitive else str.lower
        self._taken = set(map(self._fold, taken))

    def give(self, name: str) -> str:
        """The name, or one like it that is free."""
        if name.startswith(RESERVED_PREFIXES):
            name = f"column{name}"
        while self._fold(name) in self._taken:
            name += "_"
        self._taken.add(self._fold(name))
        return name


def quote_column(name: str) -> str:
    """A column name as Spark's parser takes it literally."""
    return "`" + name.replace("`", "``") + "`"
