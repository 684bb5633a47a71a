"""What a test driver runs: one stateful operator whose input and output are plain rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from holdfast.engine.hashing.spark_hash import partition_of
from holdfast.engine.partition.shape import StoreShape
from holdfast.reserved import HASH
from holdfast.streams.clock import Clock
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.processors.variables import Variable
from holdfast.streams.tasks.task import StoreSpec, Task
from holdfast.streams.watermark import Watermarks
from holdfast.types import Row, Schema


@dataclass(frozen=True)
class WorkSettings:
    """What `Work.task` needs to know of a version; the operator adds what it knows itself."""

    stores: Mapping[str, StoreSpec]
    base_version: int
    marks: Watermarks
    outbox: Outbox
    query: QueryInfo


@dataclass(frozen=True)
class BatchInput:
    """The input of each partition's task, and how many late rows were left out of it."""

    schema: pa.Schema
    parts: list[list[pa.RecordBatch]]
    late_rows: int = 0

    @classmethod
    def dealt(cls, rows: pa.Table, partitions: int, late_rows: int = 0) -> BatchInput:
        """Split rows by partition, each in the order of `_hash`."""
        order = np.argsort(rows.column(HASH).to_numpy(), kind="stable")
        ordered = rows.take(pa.array(order))
        places = partition_of(ordered.column(HASH).to_numpy(), partitions)
        parts = [ordered.filter(pa.array(places == index)) for index in range(partitions)]
        batches = [part.combine_chunks().to_batches() for part in parts]
        return cls(rows.schema, batches, late_rows)


class Work(Protocol):
    """One stateful operator, without Spark."""

    @property
    def schema(self) -> Schema:
        """The columns of its input rows."""
        ...

    @property
    def partitions(self) -> int:
        """How many partitions its state has."""
        ...

    @property
    def watermark(self) -> tuple[str, int] | None:
        """The event-time column, and the watermark's delay in ms."""
        ...

    @property
    def shapes(self) -> Mapping[str, StoreShape]:
        """The shapes of its stores by name."""
        ...

    @property
    def variables(self) -> Mapping[str, Variable]:
        """The state variables by the names of their stores; none if it has no processor."""
        ...

    @property
    def follows_watermark(self) -> bool:
        """Whether a version without data can change something when the watermark has grown."""
        ...

    @property
    def by_clock(self) -> bool:
        """Whether a version without data can change something as time passes by the clock."""
        ...

    def given(self, rows: pa.Table, marks: Watermarks) -> BatchInput:
        """The tasks' input for a batch."""
        ...

    def task(self, setting: WorkSettings) -> Task:
        """The task of one version."""
        ...

    def initial(self, setting: WorkSettings, columns: Schema) -> Task:
        """The task that fills the state before the first rows."""
        ...

    def shown(self, tables: list[pa.Table]) -> Any:
        """What the tasks emitted, in the form of the processor or function."""
        ...

    def store_of(self, name: str) -> str:
        """The store that something is asked about by a name."""
        ...

    def held(self, name: str, table: pa.Table) -> dict[Row, Any]:
        """The rows of a store, by key; `name` is as it was asked for."""
        ...


def cells_of(table: pa.Table) -> list[Row]:
    """The rows of a table as tuples."""
    cells = (column.to_pylist(maps_as_pydicts="strict") for column in table.columns)
    return list(zip(*cells, strict=True))


def pyspark_row_maker(names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    """A maker of PySpark's own Row, which processors expect and tests compare with."""
    from pyspark.sql import Row as SparkRow

    named = SparkRow(*names)
    return lambda cells: named(*cells)


def group_state_maker(clock: Clock, state: Schema) -> Any:
    """A maker of PySpark's own GroupState, which functions expect."""
    from pyspark.sql.types import StructType

    from holdfast.streams.processors.group_state import NewState

    return NewState(clock, StructType.fromJson(state.json()))


def timeout_mode(timeout: str) -> str:
    """The time mode of a GroupStateTimeout. Raises InvalidArgument for any other text."""
    from holdfast.streams.processors.group_state import checked_timeout

    return checked_timeout(timeout)
