"""Where a version's output goes."""

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
    """A version as a sink gets it; the same each time it comes.

    `batch_id` is what Spark's batch id would be: it grows by one with each version that delivers,
    and never comes again with other rows. `commit_id` tells the version from another one of the
    same number, which a state that was put back has had.
    """

    version: int
    batch_id: int
    commit_id: str
    epoch: int
    """The same counted from 0, also in a checkpoint whose numbers began with 1."""
    made_from: str | None = None
    """Equal for versions that have the same rows: made from the same version and batch."""
    has_commit_id: bool = True
    """Whether it was committed by a release that leaves commit ids with sinks."""
    is_new: bool = False
    """Whether nobody can have delivered its rows before: this run has committed it, of a batch
    that was not planned before this run."""
    parent_commit_id: str | None = None
    """That of the version before."""
    is_newest: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    """Asks the state whether it is still the newest version."""


class Sink(ABC):
    """Takes the output of each version, the newest one again after a crash."""

    description: str
    """What a query's progress calls it."""

    sees_partitions: bool = False
    """Whether a version has to come again in the same partitions."""

    def start(self, native: DataFrame) -> None:  # noqa: B027 - most have nothing to do
        """Get ready; `native` has the schema and the session of the output."""

    @abstractmethod
    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        """Take a version's rows. Called in the order of versions; must not keep `frame`."""


class NoopSink(Sink):
    """Computes every row and keeps none."""

    description = "NoopSink"

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        frame.write.format("noop").mode("overwrite").save()


class FunctionSink(Sink):
    """Calls a function with the rows and the batch id."""

    description = "ForeachBatchSink"

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self._function(frame, batch.batch_id)


class ConsoleSink(Sink):
    """Prints rows in the layout of Spark's console sink, whose batches count from 0."""

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


class MemorySink(Sink):
    """Keeps rows in the session as a temporary view of the query's name."""

    description = "MemorySink"

    def __init__(self, name: str, complete: bool) -> None:
        self._name = name
        self._complete = complete
        self._table: MemoryRows

    def start(self, native: DataFrame) -> None:
        self._table = seam.tables.memory_table(self._name, native)

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self._table.add(batch.version, frame, instead=self._complete)


class KafkaSink(Sink):
    """Writes the columns value, key, topic, partition and headers as Spark does: at least once.

    After a crash the newest version's rows are written again; Kafka has no way to tell. A reader
    that has to count each row once keys its own state by a column of the row.
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
        raise InvalidArgument(f"The option {name} is a whole number, not {text!r}.") from None
