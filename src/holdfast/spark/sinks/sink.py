"""The contract of a sink, and the simple sinks."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from holdfast.errors import InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.interop.contract import MemoryRows


@dataclass(frozen=True)
class OutputBatch:
    """Identifies a version to its sink; equal each time the version is delivered."""

    version: int
    """The version's number. A checkpoint restored from a copy can reuse it for other rows."""
    batch_id: int
    """What Spark's batch id would be: one more with each delivered version, never reused."""
    commit_id: str
    """Distinguishes the version from others with the same number."""
    epoch: int
    """`batch_id` counted from 0, also in an old checkpoint whose batch ids began with 1."""
    made_from: str | None = None
    """Equal for versions with the same rows: those made from the same version and batch."""
    has_commit_id: bool = True
    """Whether the version was committed by a release whose sinks record commit ids."""
    is_new: bool = False
    """Whether nobody can have delivered the rows before: this run committed the version, from a
    batch that no earlier run had planned."""
    parent_commit_id: str | None = None
    """The commit id of the version before."""
    is_newest: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Reads from the root whether the version is still the newest one."""


class Sink(ABC):
    """Receives the output of each version, at least once.

    A version is delivered after it is committed and before the next one is. If the query crashes
    in between, the restarted query delivers the same rows again, with an equal `OutputBatch`. A
    sink that needs each row exactly once has to recognise that.
    """

    description: str
    """The sink's name in a query's progress."""

    delivered_rows: int = -1
    """How many rows the last version delivered had; -1 for a sink that does not count them."""

    sees_partitions: bool = False
    """Whether a repeated delivery must have the rows in the same partitions as the first one."""

    def start(self, native: DataFrame) -> None:  # noqa: B027 - most have nothing to do
        """Prepare for the run; called once, before the first `deliver`.

        `native` is Spark's own plan of the query, with the schema and the session of the output.
        It must not be executed. Raises InvalidArgument or Spark's error if the sink cannot take
        such rows.
        """

    @abstractmethod
    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        """Write a version's rows.

        `frame` has the rows and is valid only during the call; `batch` says which version it is.
        Returning means that the sink has every row. What it raises stops the query, and the next
        start delivers the version again. Called for one version after the other, in their order.
        """


class NoopSink(Sink):
    """Computes every row and discards it."""

    description = "NoopSink"

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self.delivered_rows = seam.frames.computed_rows(frame)


class FunctionSink(Sink):
    """Calls a function with the rows and the batch id."""

    description = "ForeachBatchSink"

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self._function(frame, batch.batch_id)


class ConsoleSink(Sink):
    """Prints rows in the layout of Spark's console sink, with batches counted from 0.

    `options` are those of the console sink: numRows and truncate.
    """

    description = "ConsoleSink"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = _number(options.get("numrows", "20"), "numRows")
        truncate = options.get("truncate", "true").lower()
        self._truncate: bool | int = (
            truncate == "true" if truncate in ("true", "false") else _number(truncate, "truncate")
        )

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        line = "-" * 43
        sys.stdout.write(f"{line}\nBatch: {batch.epoch}\n{line}\n")
        frame.show(self._rows, self._truncate)
        self.delivered_rows = frame.count()


class MemorySink(Sink):
    """Keeps rows in the driver's memory, as a temporary view named after the query."""

    description = "MemorySink"

    def __init__(self, name: str, complete: bool) -> None:
        self._name = name
        self._complete = complete
        self._table: MemoryRows

    def start(self, native: DataFrame) -> None:
        self._table = seam.tables.memory_table(self._name, native)

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self.delivered_rows = self._table.add(batch.version, frame, instead=self._complete)


class KafkaSink(Sink):
    """Writes the columns value, key, topic, partition and headers as Spark does: at least once.

    After a crash the newest version's rows are written again, because Kafka cannot recognise them.
    A reader that has to count each row once must deduplicate by a column of the row.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self.description = f"KafkaSink[{options.get('topic', 'the column topic')}]"

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        frame.write.format("kafka").options(**self._options).save()


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"The option {name} must be a whole number, not {text!r}.") from None
