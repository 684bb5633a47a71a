"""Where a version's output goes."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidArgument


class Sink(ABC):
    """Takes the output of each version, the newest one again after a crash."""

    description: str
    """What a query's progress calls it."""

    sees_partitions: bool = False
    """Whether a version has to come again in the same partitions."""

    def start(self, native: DataFrame) -> None:  # noqa: B027 - most have nothing to do
        """Get ready; `native` has the schema and the session of the output."""

    @abstractmethod
    def deliver(self, frame: DataFrame, version: int) -> None:
        """Take a version's rows. Called in the order of versions; must not keep `frame`."""


class NoopSink(Sink):
    """Computes every row and keeps none."""

    description = "NoopSink"

    def deliver(self, frame: DataFrame, version: int) -> None:
        frame.write.format("noop").mode("overwrite").save()


class FunctionSink(Sink):
    """Calls a function with the rows and the version."""

    description = "ForeachBatchSink"

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def deliver(self, frame: DataFrame, version: int) -> None:
        self._function(frame, version)


class ConsoleSink(Sink):
    """Prints rows in the layout of Spark's console sink, whose batches count from 0."""

    description = "ConsoleSink"

    def __init__(self, options: Mapping[str, str]) -> None:
        self._rows = _number(options.get("numrows", "20"), "numRows")
        truncate = options.get("truncate", "true").lower()
        self._truncate: bool | int = (
            truncate == "true" if truncate in ("true", "false") else _number(truncate, "truncate")
        )

    def deliver(self, frame: DataFrame, version: int) -> None:
        line = "-" * 43
        sys.stdout.write(f"{line}\nBatch: {version - 1}\n{line}\n")
        frame.show(self._rows, self._truncate)


class MemorySink(Sink):
    """Keeps rows in the session as a temporary view of the query's name."""

    description = "MemorySink"

    def __init__(self, name: str, complete: bool) -> None:
        self._name = name
        self._complete = complete
        self._versions: dict[int, list[Any]] = {}
        self._session: SparkSession

    def start(self, native: DataFrame) -> None:
        self._session = native.sparkSession
        self._show([], native)

    def deliver(self, frame: DataFrame, version: int) -> None:
        rows = frame.collect()
        if self._complete:
            self._versions.clear()
        self._versions[version] = rows
        kept = [row for number in sorted(self._versions) for row in self._versions[number]]
        self._show(kept, frame)

    def _show(self, rows: list[Any], frame: DataFrame) -> None:
        view = self._session.createDataFrame(rows, frame.schema)
        view.createOrReplaceTempView(self._name)


class KafkaSink(Sink):
    """Writes the columns value, key, topic, partition and headers as Spark does: at least once.

    After a crash the newest version's rows are written again; Kafka has no way to tell. A reader
    that has to count each row once keys its own state by a column of the row.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self.description = f"KafkaSink[{options.get('topic', 'the column topic')}]"

    def deliver(self, frame: DataFrame, version: int) -> None:
        frame.write.format("kafka").options(**self._options).save()


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"The option {name} is a whole number, not {text!r}.") from None
