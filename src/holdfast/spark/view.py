"""The view of a query: what other services see of its state, and the tasks that write it.

A task that fails on purpose has to reach the driver as the error it is, but Spark passes on only
the text of a worker's exception. So a task packs the error as JSON into a RuntimeError, behind a
marker, and the driver finds the marker in the text of Spark's error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast import errors
from holdfast.conf import VIEW_PREFIX, StateStoreConf, settings_below
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.spark.operators.operator import ViewSource
from holdfast.spark.pipeline.spec import ViewRequest
from holdfast.spark.pipeline.stages import StageRun
from holdfast.spark.pipeline.templates import Template
from holdfast.streams import process
from holdfast.streams.tasks.task import StoreSpec
from holdfast.types import Schema, StructType, columns_of, parse_schema
from holdfast.views import (
    ChangeCounts,
    Follower,
    View,
    ViewChange,
    ViewSchema,
    ViewSpec,
    ViewStep,
    is_unbounded,
    open_view,
)

_SMALL_BYTES = 16 << 10
"""If a partition's delta is no larger than this, none of its rows exceeds a database's limit."""
_COUNTS = "written long, removed long, odd long"
_PACKED = re.compile(r"holdfast error: (?P<json>\[.*\])")


def take_view_request(
    take: Callable[[str], str | None], own: Mapping[str, str], settings: Mapping[str, str]
) -> ViewRequest | None:
    """Take the view out of a writer's options; None if there is no view.

    `take` removes an option and returns its value. `settings` are the query's, among them
    `spark.holdfast.view.…`, which say how to reach the view's database; `own` are those of them
    that the writer itself set.
    """
    location, operator, variable = take("view"), take("viewOperator"), take("viewVariable")
    if location is None:
        given = [
            n for n, value in (("viewOperator", operator), ("viewVariable", variable)) if value
        ]
        if stray := [*given, *(f"view.{name}" for name in settings_below(VIEW_PREFIX, own))]:
            raise InvalidArgument(
                f"The option {stray[0]} has no effect without the option view. Set view, or leave "
                "it out."
            )
        return None
    if operator is not None and not operator.isdecimal():
        raise InvalidArgument(
            "The option viewOperator must be the number of an operator, counted from 0."
        )
    number = None if operator is None else int(operator)
    return ViewRequest(location, settings_below(VIEW_PREFIX, settings), number, variable)


@dataclass(frozen=True)
class ViewedStore:
    """One store as tasks read it for a view."""

    store: StoreSpec
    view: ViewSpec
    step: ViewStep

    def changes(self, partition: int) -> Iterator[ViewChange]:
        """What the version changed; all rows if the view has to be filled."""
        reader = self.store.engine(partition).get_read_store(self.step.version)
        return self.step.changes(reader, partition)

    def fitting(self, rows: pa.Table) -> pa.Table:
        """Rows with the columns of the view."""
        schema = self.view.schema
        columns = [*columns_of(rows, schema.keys), *columns_of(rows, schema.values)]
        return pa.table(columns, names=[*schema.keys.names, *schema.values.names])


class StreamView:
    """Writes each version of a query to its view; tasks write the rows of their partitions."""

    def __init__(
        self,
        request: ViewRequest,
        stages: Sequence[StageRun],
        session: SparkSession,
        manifest: Manifest,
        versions: VersionLog,
        root: str,
        conf: StateStoreConf,
    ) -> None:
        number = len(stages) - 1 if request.operator is None else request.operator
        if number >= len(stages):
            raise InvalidArgument(
                f"viewOperator is {number}, but the query has the operators 0 to {len(stages) - 1}."
            )
        self._run, self._number = stages[number], number
        if self._run.store.is_foreign:
            raise InvalidArgument(
                f"{conf.provider_class} keeps the state, but a view needs Holdfast's own provider. "
                "Leave out the option view."
            )
        self._session = session
        self._shown: ViewSource = self._run.operator.shown(request.variable)
        self._store = self._run.stores[self._shown.store]
        self._made: Template | None = None
        make = self._shown.make
        if make is not None:
            schemas = [self._run.frames.rows_schema]
            self._made = Template(session, schemas, lambda rows: make(rows[0]))
        self._spec = ViewSpec(
            request.location, self._schema(), request.options, conf.retry_timeout_ms
        )
        self._view: View = open_view(self._spec)
        self._follower = Follower(
            self._view, manifest, number, self._shown.store, root, versions.newest_intact
        )

    def _schema(self) -> ViewSchema:
        keys = self._store.key_schema
        if self._made is not None:
            made = parse_schema(self._made.made.schema).fields
            return ViewSchema(
                Schema(StructType(made[: len(keys)])), Schema(StructType(made[len(keys) :]))
            )
        values = self._store.value_schema.fields
        if self._shown.values is not None:
            values = tuple(f for f in values if f.name in self._shown.values)
        return ViewSchema(keys, Schema(StructType(values)))

    def follow(self, manifest: Manifest, before: Callable[[], Manifest | None]) -> None:
        """Update the view to a version; `before` returns the version before it, if it is there."""

        def run(step: ViewStep) -> list[ChangeCounts]:
            return self._by_tasks(ViewedStore(self._store, self._spec, step))

        self._follower.follow(manifest, before, run, is_small=self._is_small(manifest))

    def _is_small(self, manifest: Manifest) -> bool:
        """Whether the changes are so small that no row can exceed the database's limit on rows.

        Then a small batch needs no extra job to check sizes. The size of a delta does not
        show this if files are compressed, or if Spark computes the view's values.
        """
        made = self._made is not None and any(map(is_unbounded, self._spec.schema.values))
        if made or self._store.conf.compression != "none":
            return False
        parts = manifest.operators[self._number][self._shown.store].partitions
        deltas = [ref for part in parts for ref in part.segments[:1] if ref.low == ref.high]
        return max((ref.info.size for ref in deltas), default=0) <= _SMALL_BYTES

    def _by_tasks(self, shown: ViewedStore) -> list[ChangeCounts]:
        numbers = self._run.rdd.numbers(self._session)
        if self._made is None:
            written = numbers.mapInArrow(_writer(shown), _COUNTS)
        else:
            rows = numbers.mapInArrow(_reader(shown), self._run.frames.rows_schema)
            written = self._made.fill(rows).mapInArrow(_finisher(shown), _COUNTS)
        try:
            return _sums(written)
        except (PySparkException, Py4JJavaError) as error:
            unpacked = _unpacked_error(error)
            if unpacked is None:
                raise
            raise unpacked from None


def _sums(frame: DataFrame) -> list[ChangeCounts]:
    return [ChangeCounts(*row) for row in frame.collect()]


_Batches = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _writer(shown: ViewedStore) -> _Batches:
    """Writes the changes of the partitions whose numbers it reads."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process.acknowledge()
        view, done = open_view(shown.view), ChangeCounts()
        for partition in _numbers(batches):
            for upserts, deletes in shown.changes(partition):
                fitted = None if upserts is None else shown.fitting(upserts)
                with _packing_errors():
                    done += shown.step.run(view, [(fitted, deletes)])
        yield _counts(done)
        process.acknowledge()

    return write


def _reader(shown: ViewedStore) -> _Batches:
    """Deletes removed keys from the view, and emits stored rows for Spark to finish."""

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        process.acknowledge()
        view = open_view(shown.view)
        for partition in _numbers(batches):
            for upserts, deletes in shown.changes(partition):
                with _packing_errors():
                    shown.step.run(view, [(None, deletes)])
                if upserts is not None:
                    yield from upserts.to_batches()
        process.acknowledge()

    return read


def _finisher(shown: ViewedStore) -> _Batches:
    """Writes the rows that Spark finished."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        view, done = open_view(shown.view), ChangeCounts()
        for batch in batches:
            rows = shown.fitting(pa.Table.from_batches([batch]))
            with _packing_errors():
                done += shown.step.run(view, [(rows, None)])
        yield _counts(done)

    return write


def _numbers(batches: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _counts(done: ChangeCounts) -> pa.RecordBatch:
    counts = {"written": done.written, "removed": done.removed, "odd": done.odd}
    return pa.RecordBatch.from_pydict({name: [count] for name, count in counts.items()})


@contextmanager
def _packing_errors() -> Iterator[None]:
    """Pack a HoldfastError of a task into text, which is all that Spark passes to the driver."""
    try:
        yield
    except HoldfastError as error:
        packed = json.dumps([type(error).__name__, error.message, error.condition])
        raise RuntimeError(f"holdfast error: {packed}") from error


def _unpacked_error(error: Exception) -> HoldfastError | None:
    """The HoldfastError that a task raised, unpacked; None if it was another error."""
    found = _PACKED.search(str(error))
    if found is None:
        return None
    name, message, condition = json.loads(found["json"])
    kind: type[HoldfastError] = getattr(errors, name)
    return kind(message, condition=condition)
