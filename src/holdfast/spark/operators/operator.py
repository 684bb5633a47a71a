"""The contract of a stateful operator: what a query asks of it on the driver.

The other half of an operator is its task (`streams.tasks.task.Task`), which runs where the state
is. The query calls an operator in this order: `batch_frame` and `rows_schema` when it is planned,
`stores` to create or check the state, `initial` once for an empty state, then for each version
`batch_frame`, `task` and `output`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.processors.pandas import FrameLimits
from holdfast.streams.tasks.rewrite import FormerColumns
from holdfast.streams.tasks.task import StoreSpec, Task
from holdfast.streams.watermark import Watermarks
from holdfast.types import Schema

FrameStep = Callable[[DataFrame], DataFrame]
LATE = "holdfast_late"
"""The name under which the number of late rows is observed."""


@dataclass(frozen=True)
class TaskSettings:
    """What `Operator.task` needs to know of a version; the operator adds what it knows itself."""

    stores: Mapping[str, StoreSpec]
    """The operator's stores by name: those of `Operator.stores`."""
    base_version: int
    """The version whose state the tasks read; they prepare the one after it."""
    mode: str
    """append, update or complete."""
    ansi: bool
    """Whether the session has ANSI mode on, in which arithmetic overflow is an error."""
    marks: Watermarks
    """The watermarks and the clock of the version; of several inputs' watermarks the smallest."""
    outbox: Outbox | None
    """Where tasks emit rows; None if the output is read from state instead."""
    query: QueryInfo
    """The query, run and batch that a processor can ask for."""
    zone: str
    """The session's time zone."""
    frame_limits: FrameLimits
    """How large the DataFrames of a processor may be."""
    input_marks: tuple[Watermarks, ...] = ()
    """The watermarks of each input, if they are known."""

    @property
    def store(self) -> StoreSpec:
        """The store of an operator with a single one. Requires: it has the default name."""
        return self.stores[DEFAULT_STORE_NAME]


@dataclass(frozen=True)
class InitialLoad:
    """What fills an operator's state before the first batch: a task, and the rows it reads.

    `rows` are laid out as `Operator.batch_frame` does it: by partition and with `_hash`.
    """

    task: Task
    rows: DataFrame


@dataclass(frozen=True)
class ViewSource:
    """The part of an operator's state that a view shows.

    `store` is the name of a store and `values` picks some of its value columns (None: all). If the
    stored columns are not what users know, `make` has Spark turn rows of `Operator.rows_schema`
    into the view's rows: the key columns, then the values.
    """

    store: str = DEFAULT_STORE_NAME
    values: tuple[str, ...] | None = None
    make: FrameStep | None = None


class Operator(ABC):
    """One stateful operator of a query, on the driver.

    An operator is fixed once it is made: it holds what the user asked for and keeps no state of a
    run. It raises Spark's own errors, or InvalidArgument, in its constructor if the query cannot
    run; its methods raise only what they document. `Operator.task` makes what runs on executors.
    """

    title: str
    """The operator's name in a query's progress; Spark's own if Spark has the operator."""

    emits: bool = False
    """Whether tasks emit the output to an outbox; otherwise it is read from the new state."""

    key_index: int | None = None
    """The key column that the watermark evicts state by, counted from 0; None: never evicted."""

    reads_marks: bool = False
    """Whether `batch_frame` depends on the watermarks, so that each version needs a new frame."""

    prefix: int = 0
    """How many leading key columns are hashed to find a row's partition; 0: all of them."""

    needs_engine: bool = False
    """Whether the state must be Holdfast's own, because it needs more than the row contract."""

    by_clock: bool = False
    """Whether a version without data can change something as time passes by the clock."""

    @property
    def is_global(self) -> bool:
        """Whether all rows form one group; the state then has one partition."""
        return False

    @abstractmethod
    def definition(self) -> dict[str, str]:
        """Describe what must stay the same for the state to stay valid.

        Returns facts by name, in words that an error can show to a person. They are stored with
        the state when it is created. A restarted query whose facts differ is rejected.
        """

    @abstractmethod
    def columns(self, before: Sequence[DataFrame], after: DataFrame) -> dict[str, str]:
        """Describe the expressions behind the columns of `definition`.

        `before` (one frame for each input) and `after` are Spark's own plans of the pipeline on
        either side of the operator. Returns text by column, as `made_of` formats it. A column with
        the same name but another expression would mix two meanings in one state, so a difference
        is rejected unless the user accepts it with the option changedColumns.
        """

    @abstractmethod
    def ticks(self, mode: str) -> bool:
        """Return whether a version without data can change something in this output mode.

        That is so if the watermark's progress can evict state or finish groups. The query then
        runs such a version whenever Spark would run a batch without data.
        """

    common: Collection[str] = ()
    """The columns that all inputs share, as `input_rows` returns them; of several inputs only."""

    def input_rows(self, number: int, rows: DataFrame) -> DataFrame:
        """Plan what one of several inputs adds to the operator's batch.

        `number` is the input, counted from 0, and `rows` are its rows. Apart from those in
        `common`, the columns returned must have names that no other input's columns have.
        """
        return rows

    def output_watermark(self, input_ms: int) -> int:
        """Return the watermark of the output, given that of the input; both in ms.

        It is lower for an operator that emits rows older than its watermark, as a join does.
        """
        return input_ms

    @abstractmethod
    def batch_frame(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        """Plan what the tasks read of a batch.

        `batch` are the rows that reach the operator, and `marks` the version's watermarks, used
        only with `reads_marks`. With several inputs, `batch` is the tagged union of their
        `input_rows`: the column INPUT has the number of a row's input, and `streams.tasks.inputs`
        splits a task's rows again. Returns a frame with `partitions` partitions, each row in the
        partition its key belongs to, with the key's hash in the column `_hash`. Nothing is
        executed here.
        """

    @abstractmethod
    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        """Return the shapes of the operator's stores by name, at least one.

        `frame` is what `batch_frame` returned; its schema has the key columns. Raises
        InvalidArgument if the state cannot hold a column.
        """

    former: Sequence[FormerColumns] = ()
    """Columns that state of earlier versions of Holdfast has, and what takes their place."""

    dropped: Collection[str] = ()
    """Names of stores that earlier runs had and the next version removes."""

    def takes_over(self, stored: Schema, wanted: Schema, *, may_add: bool) -> bool:
        """Return whether stored values can be rewritten into the columns the query wants.

        `stored` and `wanted` are value schemas. `may_add` is True if the user allowed new
        aggregates to start empty (the option newAggregates). If the result is False, columns that
        differ are rejected.
        """
        by_name = {field.name: field for field in wanted}
        return may_add and all(by_name.get(field.name) == field for field in stored)

    def empty_values(self, before: DataFrame) -> pa.Table | None:
        """Return what the value columns of a key hold before its first row.

        Columns that `takes_over` added start with it. `before` is a frame without rows, with the
        columns that `batch_frame` gets. Returns a table of one row, or None if they start as null.
        """
        return None

    def shown(self, variable: str | None) -> ViewSource:
        """Return the part of the state that a view shows.

        `variable` is the option viewVariable, which picks one of several state variables. Raises
        InvalidArgument if the operator has no such variable, or cannot be shown.
        """
        if variable is not None:
            raise InvalidArgument(
                f"viewVariable is {variable!r}, but {self.title} has no state variables. Leave it "
                "out."
            )
        return ViewSource()

    @abstractmethod
    def rows_schema(self, frame: DataFrame) -> StructType:
        """Return the schema of the rows that tasks emit, or that are read from state.

        `frame` is what `batch_frame` returned.
        """

    @abstractmethod
    def task(self, settings: TaskSettings) -> Task:
        """Return the task that computes one version; it runs once for each partition.

        The task is pickled to the executors, so it must hold neither frames nor the session.
        """

    def initial(self, settings: TaskSettings, partitions: int) -> InitialLoad | None:
        """Return what fills the state before the first batch; None if it starts empty.

        Called once, for a new state; `partitions` is the number of partitions it has.
        """
        return None

    @abstractmethod
    def output(self, rows: DataFrame) -> DataFrame:
        """Plan the operator's output, with its public columns, from rows of `rows_schema`."""
