"""What the rest of `spark` asks of Spark beyond its public names, by theme.

Each theme is a protocol that one module of this room fulfils, which mypy checks where `Seam` is
made of the modules. What is typed `Any` here belongs to an implementation: it is handed back to
the same theme or to a sibling, and looked into by nobody else.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
from pyspark import RDD
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructField, StructType

from holdfast.checkpoint import SparkCheckpoint
from holdfast.spark.interop.model import (
    AnalyzedAggregation,
    EventTimeStats,
    FileTable,
    Fill,
    TimeWindow,
)


class Sessions(Protocol):
    """Sessions of ours, and what the settings of a session mean."""

    def own_session(self, session: SparkSession, partitions: int) -> SparkSession:
        """A session whose settings reach neither the user's plan nor the sink.

        It shuffles into so many partitions, without adaptive execution, and what the user's
        session says about Arrow does not change what its bytes of Arrow mean.
        """

    def is_classic(self, session: SparkSession) -> bool:
        """Whether a session is a classic one, not of Spark Connect."""

    def session_key(self, session: SparkSession) -> str:
        """What is the same for all of Python's objects of one session, and of no other."""

    def application_setting(self, session: SparkSession, name: str) -> str | None:
        """A setting of the application, None where nobody made it."""

    def share_python(self, session: SparkSession) -> None:
        """Have workers run the driver's Python, unless a setting or PYSPARK_PYTHON names another.

        Requires: driver and workers share a host.
        """

    def is_case_sensitive(self, session: SparkSession) -> bool:
        """Whether names of columns that differ in case only are different names."""

    def parsed_schema(self, session: SparkSession, schema: StructType | str) -> StructType:
        """A schema as a StructType; DDL text is read as Spark reads it."""

    def bytes_of(self, session: SparkSession, text: str) -> int:
        """A size as Spark's settings have it, such as 16m, in bytes."""


class Frames(Protocol):
    """Frames that are made of plans, and what their plans and jobs say."""

    def empty_frame(self, session: SparkSession, schema: StructType) -> DataFrame:
        """No rows, from a source of their own; activates no session."""

    def is_deterministic(self, frame: DataFrame) -> bool:
        """Whether a frame's rows follow from its inputs alone, however these are partitioned."""

    def has_watermark(self, frame: DataFrame) -> bool:
        """Whether some withWatermark is in a frame's plan."""

    def counts_every_row(self, frame: DataFrame) -> bool:
        """Whether each row of a stream has passed a withWatermark, whichever way it came."""

    def moved(self, frame: DataFrame, session: SparkSession) -> DataFrame:
        """The same rows in another session."""

    def identified(self, frame: DataFrame, like: DataFrame) -> DataFrame:
        """The frame, its columns taken for those of another: what names a column of `like` names
        the one in the same place. Requires: columns alike.
        """

    def filler(
        self, session: SparkSession, frame: DataFrame, stand_ins: Sequence[DataFrame]
    ) -> Fill | None:
        """What puts rows in the places of a frame's stand-ins, in a session.

        None if the frame has to be made anew each time. Requires of rows: the stand-ins' types.
        """

    def observed_metrics(self, frame: DataFrame, prefix: str) -> list[list[int]]:
        """The numbers that the jobs over a frame observed under each name that begins so.

        Where the first of them is null they are left out.
        """

    def computed_rows(self, frame: DataFrame) -> int:
        """How many rows a frame has, every one of which is computed and forgotten."""


class Placement(Protocol):
    """Gives tasks the places they should run at."""

    def wrap(self, java_rdd: Any, locations: list[str | None]) -> Any:
        """An RDD of a `Tasks` whose partitions prefer these locations, one or none each."""

    def numbers(self, session: SparkSession, locations: list[str | None]) -> DataFrame:
        """The numbers of some partitions as a frame, each in its own, at these places."""

    def executors(self) -> list[str]:
        """The executors that are alive, as task locations."""


class Tasks(Protocol):
    """Work in Python on the rows of a frame, a task for each partition.

    Tasks that are placed find the executor they are in under `EXECUTOR_PROPERTY`.
    """

    def empty_rdd(self, session: SparkSession, partitions: int) -> Any:
        """As many partitions without rows."""

    def arrow_rdd(self, frame: DataFrame) -> Any:
        """The partitions of a frame of our own session: Arrow record batches of `arrow_schema`."""

    def arrow_schema(self, frame: DataFrame) -> pa.Schema:
        """The Arrow schema that `arrow_rdd` gives."""

    def python_rdd(self, session: SparkSession, parts: Any) -> RDD[bytes]:
        """An RDD of this theme for work in Python, its rows as bytes."""

    def not_in_arrow(self, schema: StructType) -> StructField | None:
        """A column whose type does not go through Arrow and back, if there is one."""

    def located(self, session: SparkSession) -> Placement | None:
        """What gives tasks their places; None, and one warning, where Spark does not take it."""


class ColumnNames(Protocol):
    """Columns as text and by name."""

    def sql_of(self, column: Column) -> str:
        """A column as text."""

    def columns_called(self, frame: DataFrame, names: Iterable[str]) -> list[str]:
        """The columns that have these names, by Spark's rule for upper and lower case."""

    def groups_of(self, grouped: Any) -> tuple[DataFrame, tuple[Column, ...]]:
        """The rows of a GroupedData, and the columns they are grouped by.

        Raises InvalidArgument for anything else.
        """


class QueryPlans(Protocol):
    """What Spark's own streaming says of a plan."""

    def check_supported(self, frame: DataFrame, mode: str) -> None:
        """Spark's own check of operators against an output mode, with Spark's own errors."""

    def native_stateful_operators(self, frame: DataFrame) -> list[str]:
        """The stateful operators of Spark's own in a streaming frame's plan."""

    def with_processor(
        self,
        frame: DataFrame,
        groupings: tuple[Column, ...],
        output: StructType,
        output_mode: str,
        time_mode: str,
        event_time: str,
    ) -> DataFrame:
        """Spark's own transformWithState of a function that is never called: for its analysis."""

    def with_group_state(
        self,
        frame: DataFrame,
        groupings: tuple[Column, ...],
        output: StructType,
        state: StructType,
        output_mode: str,
        timeout: str,
    ) -> DataFrame:
        """Spark's own applyInPandasWithState of a function that is never called."""


class Analysis(Protocol):
    """How Spark analyzed an aggregation: frames are `something.groupBy(keys).agg(...)`."""

    def analyze_aggregation(self, frame: DataFrame, num_keys: int) -> AnalyzedAggregation:
        """Take it apart into calls of aggregate functions, and what is made of their values."""

    def time_window(self, frame: DataFrame) -> TimeWindow | None:
        """The window that is part of what a frame is grouped by; there is one at most."""

    def is_key_alone(self, frame: DataFrame, place: int) -> bool:
        """Whether that window is the key at a place, and part of no other key and no aggregate."""

    def aggregated_rows(self, frame: DataFrame) -> DataFrame:
        """The rows that are aggregated, dealt out to their windows."""


class Lineage(Protocol):
    """What columns are made of upstream, by name; columns of sources are not named."""

    WORDING: int
    """Texts of different wordings cannot be compared."""

    def columns_grouped_by(self, before: DataFrame, groupings: Sequence[Column]) -> dict[str, str]:
        """What the columns are made of that appear in some groupings of a frame."""

    def columns_aggregated(self, before: DataFrame, after: DataFrame) -> dict[str, str]:
        """What those are made of that appear in keys, inputs and filters of an aggregation."""

    def describe_columns(self, before: DataFrame, names: Collection[str]) -> dict[str, str]:
        """What columns of a frame are made of."""


class Rules(Protocol):
    """Spark's rules for sinks, and its own errors."""

    def spark_error(self, session: SparkSession, name: str, *arguments: Any) -> Exception:
        """One of Spark's own errors of analysis, with its condition, to be raised.

        Arguments are texts, lists of texts, and what `output_mode`, `Files.path` and
        `Tables.find` give.
        """

    def output_mode(self, session: SparkSession, mode: str) -> Any:
        """Spark's object of an output mode."""

    def check_partition_columns(
        self, session: SparkSession, schema: StructType, names: list[str]
    ) -> None:
        """Spark's check that files can be laid out by these columns."""

    def check_data_source(self, session: SparkSession, name: str) -> None:
        """Spark's own error when it has no data source of that name."""

    def nullable_ddl(self, session: SparkSession, schema: StructType) -> str:
        """A schema's columns as SQL, nothing in it NOT NULL."""


class Queries(Protocol):
    """Spark's query: its start, and what it tells of itself."""

    def start(
        self, session: SparkSession, checkpoint: SparkCheckpoint, writer: DataStreamWriter
    ) -> StreamingQuery:
        """Start it, its batches planned as Spark plans those of queries that keep state.

        Raises IllegalState, and leaves no query behind, where this Spark plans it in another way.
        """

    def source_names(self, frame: DataFrame) -> list[str]:
        """What Spark calls the sources of a streaming frame, in the order of its offsets."""

    def event_time_stats(self, query: StreamingQuery) -> list[EventTimeStats]:
        """The event times of the batch under way, one entry for each withWatermark of the query.

        Requires: the batch has been computed. Raises IllegalState when Spark's plan of the batch
        lacks a withWatermark of the query.
        """

    def idle_interval_ms(self, query: StreamingQuery) -> int:
        """How often Spark tells that a query is idle."""

    def batch_progress(self, query: StreamingQuery, batch_id: int) -> dict[str, Any] | None:
        """Spark's own progress of a batch; None before Spark has told."""

    def idle_progress(self, query: StreamingQuery, *, newest: bool = False) -> list[dict[str, Any]]:
        """What Spark has told of triggers that found no data, oldest first; where only the newest
        is wanted, nothing if that was a batch.
        """


class Files(Protocol):
    """Files of sinks and checkpoints; a location means what it means to Spark."""

    def qualified(self, session: SparkSession, location: str) -> str:
        """A location with the scheme and host that Spark takes it to have."""

    def local_path(self, location: str) -> str | None:
        """The path of a qualified location on the local disk, None for one elsewhere."""

    def path(self, session: SparkSession, location: str) -> Any:
        """A location as a path of Spark's own."""

    def setting(self, session: SparkSession, name: str) -> str | None:
        """A setting of the file systems as Spark has it, None where it is not set or empty."""

    def read_text(self, session: SparkSession, location: str) -> str | None:
        """A small text file, or None when there is none."""

    def exists(self, session: SparkSession, location: str) -> bool:
        """Whether there is a file or folder."""

    def make_folder(self, session: SparkSession, location: str) -> None:
        """Make a folder and those above it; one that is there is no error."""

    def list_names(self, session: SparkSession, location: str) -> list[str]:
        """The names of the files and folders right below a folder, in order."""

    def files(self, session: SparkSession, location: str) -> list[str]:
        """Every file below a folder, relative to it, in name order."""

    def delete(self, session: SparkSession, location: str) -> None:
        """Remove a file or folder with all in it; a missing one is no error."""

    def make_durable(self, session: SparkSession, location: str, names: Sequence[str]) -> None:
        """Have files below a folder survive a power failure, if they are on the local disk.

        Other file systems see to that when a file is closed. Raises Unavailable if the disk fails.
        """

    def create_if_absent(self, session: SparkSession, location: str, text: str) -> bool:
        """Make a small text file, whole or not at all, unless there is one; whether it did."""

    def rename_if_absent(self, session: SparkSession, source: str, target: str) -> bool:
        """Give a file its final name; whether it did.

        False when the name is taken, or when someone else has renamed the source. Raises
        Unavailable when the file has still to get its name.
        """


class MemoryRows(Protocol):
    """Rows of one schema as a temporary view, which shows what was added so far."""

    def add(self, number: int, frame: DataFrame, *, instead: bool) -> int:
        """Add rows, in place of all others if `instead`. Not those of a number that it has had.

        Returns how many rows the frame has. Requires: numbers rise.
        """


class Tables(Protocol):
    """Tables of Spark's own catalog, and those of its sink in memory."""

    def find(self, session: SparkSession, name: str) -> Any | None:
        """The catalog's entry of a table, None where there is none. Raises what Spark raises for
        a view, and InvalidArgument for a table of another catalog.
        """

    def file_table(self, session: SparkSession, name: str, found: Any) -> FileTable:
        """What `find` found."""

    def memory_table(self, name: str, native: DataFrame) -> MemoryRows:
        """A new, empty table of a frame's columns in memory."""


@dataclass
class Seam:
    """All that Holdfast asks of Spark beyond its public names."""

    sessions: Sessions
    frames: Frames
    tasks: Tasks
    columns: ColumnNames
    plans: QueryPlans
    analysis: Analysis
    lineage: Lineage
    rules: Rules
    queries: Queries
    files: Files
    tables: Tables
