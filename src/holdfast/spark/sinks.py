"""Where a version's output goes."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import InvalidArgument
from holdfast.spark import hadoop

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
_PART = re.compile(r"part-(?P<task>\d+)-[0-9a-f\-]+(?P<rest>[.\-].*)")


class Sink(ABC):
    """Takes the output of each version, the newest one again after a crash."""

    def start(self, native: DataFrame) -> None:  # noqa: B027 - most have nothing to do
        """Get ready; `native` has the schema and the session of the output."""

    @abstractmethod
    def deliver(self, frame: DataFrame, version: int) -> None:
        """Take a version's rows. Called in the order of versions; must not keep `frame`."""


class NoopSink(Sink):
    """Computes every row and keeps none."""

    def deliver(self, frame: DataFrame, version: int) -> None:
        frame.write.format("noop").mode("overwrite").save()


class FunctionSink(Sink):
    """Calls a function with the rows and the version."""

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def deliver(self, frame: DataFrame, version: int) -> None:
        self._function(frame, version)


class ConsoleSink(Sink):
    """Prints rows in the layout of Spark's console sink, whose batches count from 0."""

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


class FileSink(Sink):
    """Files whose names derive from version and partition, created only if absent.

    Spark writes a version aside; its files are then renamed into place, each unless a file of
    that name is there: then an earlier delivery of the same version put it there, with the same
    rows. Nothing is overwritten or deleted, so a stream that reads the folder sees each row once.
    """

    def __init__(
        self, path: str, file_format: str, options: Mapping[str, str], partition_by: list[str]
    ) -> None:
        self._path = path.rstrip("/")
        self._format = file_format
        self._options = dict(options)
        self._partition_by = partition_by

    def deliver(self, frame: DataFrame, version: int) -> None:
        aside = f"{self._path}/_holdfast/{version}"
        session = frame.sparkSession
        hadoop.delete(session, aside)
        writer = frame.write.format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(aside)
        for file in hadoop.files(session, aside):
            directory, _, name = file.rpartition("/")
            match = _PART.fullmatch(name)
            if match is not None:
                target = f"part-{version:010d}-{match['task']}{match['rest']}"
                folder = f"{self._path}/{directory}" if directory else self._path
                hadoop.rename_if_absent(session, f"{aside}/{file}", f"{folder}/{target}")
        hadoop.delete(session, aside)


def _number(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument(f"The option {name} is a whole number, not {text!r}.") from None
