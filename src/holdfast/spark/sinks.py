"""Where a version's output goes."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pyspark.sql import DataFrame

from holdfast.errors import InvalidArgument
from holdfast.spark import hadoop

FILE_FORMATS = ("parquet", "orc", "json", "csv", "text")
_PART = re.compile(r"part-(?P<task>\d+)-[0-9a-f\-]+(?P<rest>[.\-].*)")


class Sink(Protocol):
    """Takes the output of each version, the newest one again after a crash."""

    def deliver(self, frame: DataFrame, version: int) -> None:
        """Take a version's rows. Called in the order of versions; must not keep `frame`."""


class NoopSink:
    """Computes every row and keeps none."""

    def deliver(self, frame: DataFrame, version: int) -> None:
        frame.write.format("noop").mode("overwrite").save()


class FunctionSink:
    """Calls a function with the rows and the version."""

    def __init__(self, function: Callable[[DataFrame, int], None]) -> None:
        self._function = function

    def deliver(self, frame: DataFrame, version: int) -> None:
        self._function(frame, version)


class ConsoleSink:
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


class MemorySink:
    """Keeps rows in the session as a temporary view of the query's name."""

    def __init__(self, name: str, complete: bool) -> None:
        self._name = name
        self._complete = complete
        self._versions: dict[int, list[Any]] = {}

    def deliver(self, frame: DataFrame, version: int) -> None:
        rows = frame.collect()
        if self._complete:
            self._versions.clear()
        self._versions[version] = rows
        kept = [row for number in sorted(self._versions) for row in self._versions[number]]
        view = self._session(frame).createDataFrame(kept, frame.schema)
        view.createOrReplaceTempView(self._name)

    def start(self, frame: DataFrame) -> None:
        """Make the view before the first version, with the output's schema."""
        empty = frame.sparkSession.createDataFrame([], frame.schema)
        empty.createOrReplaceTempView(self._name)
        self._owner = frame.sparkSession

    def _session(self, frame: DataFrame) -> Any:
        return self._owner


class FileSink:
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
