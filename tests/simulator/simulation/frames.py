"""Frames, sessions and RDDs of whole numbers: as much of PySpark as a stream's driver asks for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame
from pyspark.sql.types import LongType, StructField, StructType

if TYPE_CHECKING:
    from simulation.world import Application

Rows = list[tuple[int, ...]]
Partitions = list[Rows]


class Cancelled(Py4JJavaError):
    """What a job raises that Spark cancels because its query is stopped."""

    def __init__(self) -> None:
        Exception.__init__(self, "Job 0 cancelled part of cancelled job group")

    def __str__(self) -> str:
        return str(self.args[0])


class Interrupted(Py4JJavaError):
    """What a call raises that waits in Spark's thread when its query is stopped."""

    def __init__(self) -> None:
        Exception.__init__(self, "java.lang.InterruptedException")

    def __str__(self) -> str:
        return str(self.args[0])


class Frame(DataFrame):
    """Rows in partitions, computed whenever they are asked for."""

    _session: Any
    _names: tuple[str, ...]
    _compute: Callable[[], Partitions]

    def __new__(cls, *_: Any) -> Frame:
        return object.__new__(cls)

    def __init__(
        self, session: Any, names: Iterable[str], compute: Callable[[], Partitions]
    ) -> None:
        self._session, self._names, self._compute = session, tuple(names), compute

    @classmethod
    def of(cls, session: Any, names: Iterable[str], partitions: Partitions) -> Frame:
        return cls(session, names, lambda: partitions)

    @property
    def sparkSession(self) -> Any:
        return self._session

    @property
    def schema(self) -> StructType:
        return StructType([StructField(name, LongType()) for name in self._names])

    @property
    def columns(self) -> list[str]:
        return list(self._names)

    def toDF(self, *_: str) -> Any:
        return self

    def isEmpty(self) -> bool:
        return not self.rows()

    def partitions(self) -> Partitions:
        return self._compute()

    def rows(self) -> Rows:
        return [row for part in self._compute() for row in part]

    def arrow_schema(self) -> pa.Schema:
        return pa.schema([(name, pa.int64()) for name in self._names])

    def raw(self) -> list[list[bytes]]:
        """The partitions as Arrow record batches in bytes."""
        return [
            [_batch(part, self.arrow_schema()).serialize().to_pybytes()] for part in self._compute()
        ]

    def mapInArrow(self, func: Any, schema: Any, *_: Any, **__: Any) -> Any:
        def compute() -> Partitions:
            return [
                [
                    row
                    for batch in func(iter([_batch(part, self.arrow_schema())]))
                    for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
                ]
                for part in self._compute()
            ]

        return Frame(self._session, schema.names, compute)

    @property
    def writeStream(self) -> Any:
        return self._session.application.stream_writer()

    @property
    def write(self) -> Any:
        return FrameWriter(self)


def _batch(rows: Rows, schema: pa.Schema) -> pa.RecordBatch:
    columns = [[row[number] for row in rows] for number in range(len(schema))]
    arrays = [pa.array(column, pa.int64()) for column in columns]
    return pa.record_batch(arrays, schema=schema)


class FrameWriter:
    """Writes one file for each partition that has rows."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame

    def format(self, _: str) -> FrameWriter:
        return self

    def options(self, **_: str) -> FrameWriter:
        return self

    def save(self, folder: str) -> None:
        application: Application = self._frame.sparkSession.application
        application.job("write")
        files, job = application.world.files, application.world.new_uuid()
        for number, rows in enumerate(self._frame.partitions()):
            if rows:
                text = "\n".join(json.dumps(row) for row in rows)
                files.write(f"{folder}/part-{number:05d}-{job}-c000.json", text)
        files.write(f"{folder}/_SUCCESS", "")


class Rdd:
    """Raw partitions, and what a function makes of each."""

    def __init__(self, application: Application, parts: Sequence[Sequence[bytes]]) -> None:
        self._application, self._parts = application, parts
        self._work: Callable[[int, Iterator[bytes]], Iterable[Any]] | None = None

    def mapPartitionsWithIndex(self, work: Any) -> Rdd:
        self._work = work
        return self

    def collect(self) -> list[Any]:
        assert self._work is not None
        self._application.job("tasks")
        return [
            each
            for number, part in enumerate(self._parts)
            for each in self._work(number, iter(part))
        ]


class Settings:
    """A session's settings."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = dict(given)

    @property
    def getAll(self) -> dict[str, str]:
        return self._given

    def get(self, name: str, default: Any = "") -> Any:
        return self._given.get(name, default)


class Context:
    """As much of a SparkContext as is asked for."""

    master = "local[2]"

    def __init__(self, name: str) -> None:
        self.applicationId = name


class Session:
    """As much of a SparkSession as is asked for."""

    version = "simulated"

    def __init__(self, application: Application, settings: Mapping[str, str]) -> None:
        self.application = application
        self.conf = Settings(settings)
        self.sparkContext = Context(application.name)

    def createDataFrame(self, rows: Any, schema: Any) -> Frame:
        columns = [] if isinstance(rows, list) else [c.to_pylist() for c in rows.columns]
        return Frame.of(self, schema.names, [list(zip(*columns, strict=True))])

    def range(self, start: int, end: int, step: int, count: int) -> Frame:
        return Frame.of(self, ["id"], [[(number,)] for number in range(start, end, step)])
