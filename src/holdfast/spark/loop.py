"""The version loop: one version for each batch, computed, committed, delivered, in this order."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.backends.locations import open_storage
from holdfast.conf import BESIDE_CHECKPOINT, StateStoreConf
from holdfast.engine.chain import StoreShape
from holdfast.engine.commit import Prepared, Swap
from holdfast.engine.committer import Committer
from holdfast.engine.filenames import DELIVERED, delivered_path
from holdfast.engine.hash_samples import check_samples
from holdfast.engine.hashing import HASH_NAME
from holdfast.engine.manifest import Manifest, StoreEntry
from holdfast.engine.provider import check_same_store, new_store_entry
from holdfast.engine.retention import clean
from holdfast.engine.storage import Runtime
from holdfast.engine.versions import VersionLog
from holdfast.errors import IllegalState, InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.spark import jvm
from holdfast.spark.locations import state_root
from holdfast.spark.operators import Operator, Stage, TaskSettings
from holdfast.spark.pairing import (
    Definition,
    check_next_batch,
    check_pair,
    check_same_query,
    new_scope,
    note_pair,
)
from holdfast.spark.sinks import Sink
from holdfast.spark.templates import Template
from holdfast.store import load_provider_class
from holdfast.streams import worker
from holdfast.streams.outbox import Emitted, Outbox, OutboxReader, filed
from holdfast.streams.reading import Output, read_output
from holdfast.streams.task import StoreSpec, Task, TaskResult, run_task
from holdfast.streams.watermark import Watermarks

log = logging.getLogger(__name__)
_DEFAULT_SHUFFLE_PARTITIONS = "200"


@dataclass(frozen=True)
class QuerySpec:
    """What a query was started with."""

    source: DataFrame
    native: DataFrame
    stages: tuple[Stage, ...]
    mode: str
    checkpoint: str
    state_location: str | None
    trigger: Mapping[str, Any]
    name: str | None
    is_temporary: bool = False
    """Whether the checkpoint goes when the query ends well."""
    metrics_port: str | None = None


@dataclass(frozen=True)
class _Frames:
    """What Spark computes for a stage: the tasks' input of a batch, and the output of its rows."""

    stage: Stage
    session: SparkSession
    batch: Template
    rows_schema: StructType
    output: Template

    @classmethod
    def of(
        cls, stage: Stage, before: DataFrame, partitions: int, output_session: SparkSession
    ) -> _Frames:
        """Those of a stage that comes after `before`."""
        operator, session = stage.operator, before.sparkSession
        batch = Template(
            session,
            before.schema,
            lambda rows: operator.batch_frame(rows, partitions, Watermarks()),
        )
        rows_schema = operator.rows_schema(batch.made)
        output = Template(output_session, rows_schema, stage.output)
        return cls(stage, session, batch, rows_schema, output)

    def of_batch(self, batch: DataFrame, partitions: int, marks: Watermarks) -> DataFrame:
        """What the tasks get of a batch."""
        if self.stage.operator.reads_marks:
            batch = jvm.moved(batch, self.session)
            return self.stage.operator.batch_frame(batch, partitions, marks)
        return self.batch.fill(batch)


@dataclass(frozen=True)
class _StageRun:
    """A stage once its state is open; `schema` is that of the Arrow rows its tasks get."""

    frames: _Frames
    store: StoreSpec
    schema: bytes

    @property
    def operator(self) -> Operator:
        return self.frames.stage.operator

    @property
    def emits(self) -> bool:
        """Whether its output comes from the tasks' outbox instead of from state."""
        return self.operator.emits or self.store.is_foreign


@dataclass(frozen=True)
class VersionReport:
    """What became of one version."""

    version: int
    batch: Mapping[str, Any] | None
    marks: Watermarks
    seconds: Mapping[str, float]
    results: Mapping[int, Sequence[TaskResult]]
    late_rows: int

    @property
    def is_tick(self) -> bool:
        """Whether it is a version without a batch."""
        return self.batch is None


class VersionLoop:
    """Makes the versions of one query. Calls come one at a time."""

    def __init__(self, spec: QuerySpec, sink: Sink, conf: StateStoreConf) -> None:
        self.spec = spec
        self._sink = sink
        self._conf = conf
        self._session: SparkSession = spec.source.sparkSession
        self._runtime = Runtime.system()
        wanted = spec.state_location
        if wanted is None and conf.state_location != BESIDE_CHECKPOINT:
            wanted = conf.state_location
        self.root = state_root(self._session, spec.checkpoint, wanted)
        self.versions = VersionLog(open_storage(self.root), self._runtime)
        self._committer = Committer(self.versions, self._runtime, conf)
        self._run_id = str(uuid4())
        self._newest_at_ms: int | None = None
        """A time by the monotonic clock at which no version after the newest existed, if known."""
        self._merges: dict[tuple[int, int], tuple[Swap, ...]] = {}
        self.manifest: Manifest
        self._stages: list[_StageRun]
        self._own: SparkSession
        self._needs_partitions: bool
        """Whether a version's rows have to come in the same partitions when they come again."""

    # -- opening -------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the state, or make it where there is none."""
        load_provider_class(self._conf.provider_class)
        found = self.versions.newest_intact()
        check_pair(self._session, self.spec.checkpoint, self.root, found)
        partitions = self._partitions(found)
        self._own = jvm.own_session(self._session, partitions)
        frame = jvm.empty_frame(self._own, self.spec.source.schema)
        prepared: list[_Frames] = []
        for stage in self.spec.stages:
            is_last = stage is self.spec.stages[-1]
            session = self._session if is_last else self._own
            prepared.append(_Frames.of(stage, frame, partitions, session))
            frame = prepared[-1].output.made
        self._needs_partitions = self._sink.sees_partitions or not jvm.is_deterministic(frame)
        shapes = [self._shape(frames.stage.operator, frames.batch.made) for frames in prepared]
        self.manifest = self._create(shapes, partitions) if found is None else found
        self._check(shapes)
        note_pair(self._session, self.spec.checkpoint, self.manifest)
        self._stages = [
            self._stage_run(number, frames, shape)
            for number, (frames, shape) in enumerate(zip(prepared, shapes, strict=True))
        ]

    def _shape(self, operator: Operator, batch: DataFrame) -> StoreShape:
        key_schema, value_schema = operator.schemas(batch)
        return StoreShape.of(key_schema, value_schema, operator.key_index, operator.prefix)

    def _stage_run(self, number: int, frames: _Frames, shape: StoreShape) -> _StageRun:
        store = StoreSpec(
            root=self.root,
            operator=number,
            key_schema=shape.key_schema,
            value_schema=shape.value_schema,
            key_index=shape.key_index,
            prefix=shape.prefix,
            partitions=len(self._stored(number).partitions),
            conf=self._conf,
            run_id=self._run_id,
        )
        schema = jvm.arrow_schema(frames.batch.made).serialize().to_pybytes()
        return _StageRun(frames, store, schema)

    def _stored(self, number: int) -> StoreEntry:
        return self.manifest.operators[number][DEFAULT_STORE_NAME]

    def _partitions(self, found: Manifest | None) -> int:
        """How many partitions keyed operators have: from the state, or at first from Spark."""
        wanted = str(self._session.conf.get("spark.sql.shuffle.partitions"))
        at_first = (
            2 * self._session.sparkContext.defaultParallelism
            if wanted == _DEFAULT_SHUFFLE_PARTITIONS
            else int(wanted)
        )
        if found is None:
            return at_first
        counts = [len(stores[DEFAULT_STORE_NAME].partitions) for stores in found.operators.values()]
        kept = max(counts)
        if kept not in (1, at_first):
            log.info(
                "The state in %s has %d partitions; spark.sql.shuffle.partitions=%s does not "
                "change that", self.root, kept, wanted,
            )  # fmt: skip
        return kept

    def _create(self, shapes: list[StoreShape], partitions: int) -> Manifest:
        operators = {}
        for number, (stage, shape) in enumerate(zip(self.spec.stages, shapes, strict=True)):
            count = 1 if stage.operator.is_global else partitions
            entry = new_store_entry(shape, [(index, count) for index in range(count)])
            operators[number] = {DEFAULT_STORE_NAME: entry}
        policy = self._session.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
        manifest = Manifest(
            version=0,
            parent=None,
            commit_id=self._runtime.new_id(),
            writer_id=self._runtime.new_id(),
            epoch=0,
            committed_at_ms=self._runtime.clock_ms(),
            hash_name=HASH_NAME,
            operators=operators,
            scope=new_scope(self._runtime.new_id(), self._definitions()),
            watermark=Watermarks(policy=str(policy)).json(),
            delivered_through=0,
        )
        return self.versions.publish(manifest, 1, None)

    def _check(self, shapes: list[StoreShape]) -> None:
        """Refuse state of another query, with the difference."""
        stored = len(self.manifest.operators)
        if stored != len(shapes):
            raise InvalidArgument(
                f"The query has {len(shapes)} stateful operators, the state in {self.root} "
                f"was made by one with {stored}. Use another checkpoint for the changed query.",
                condition="STATE_STORE_SCHEMA_MISMATCH",
            )
        for number, shape in enumerate(shapes):
            entry = self._stored(number)
            which = f" of operator {number}" if stored > 1 else ""
            check_same_store(entry, shape, f"the query's state{which} in {self.root}")
            check_samples(shape, self.manifest.hash_name, entry.hash_samples)
        check_same_query(self.manifest.scope.get("operators", ()), self._definitions(), self.root)

    def _definitions(self) -> list[Definition]:
        return [stage.operator.definition() for stage in self.spec.stages]

    # -- making a version ----------------------------------------------------------------------

    @property
    def marks(self) -> Watermarks:
        """The watermarks of the newest version."""
        stored = self.manifest.watermark
        return Watermarks() if stored is None else Watermarks.from_json(stored)

    @property
    def has_ticks(self) -> bool:
        """Whether a version without data can ever change something."""
        return any(stage.operator.ticks(self.spec.mode) for stage in self.spec.stages)

    def is_replay(self, facts: Mapping[str, Any]) -> bool:
        """Whether Spark brings a batch that is committed already."""
        return check_next_batch(self.manifest.batch, facts, self.spec.checkpoint, self.root)

    def run(
        self,
        batch: DataFrame | None,
        facts: Mapping[str, Any] | None,
        observe: jvm.Observe | None = None,
    ) -> VersionReport:
        """Compute, commit and deliver one version; without a batch it is a tick.

        `observe` gives the event times of the batch once its rows were read.
        """
        started = time.monotonic()
        marks = self.marks.following()
        ansi = str(self._session.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        frame = batch
        results: dict[int, list[TaskResult]] = {}
        late_rows = 0
        for number, run in enumerate(self._stages):
            is_last = number == len(self._stages) - 1
            settings = self._settings(run, marks, ansi, is_last)
            found, late = self._run_stage(run, run.operator.task(settings), frame, marks)
            results[number], late_rows = found, late_rows + late
            emitted = [result.emitted for result in found]
            frame = None if is_last else self._handed_on(run, emitted)
        if observe is not None:
            seen = observe()
            marks = marks.observed(
                [entry.max_ms if entry.rows else None for entry in seen],
                [entry.delay_ms for entry in seen],
            )
        computed = time.monotonic()
        self._commit(results, marks, facts)
        committed = time.monotonic()
        self._deliver(emitted)
        seconds = {
            "compute": computed - started,
            "commit": committed - computed,
            "deliver": time.monotonic() - committed,
        }
        return VersionReport(self.manifest.version, facts, marks, seconds, results, late_rows)

    def _settings(
        self, run: _StageRun, marks: Watermarks, ansi: bool, is_last: bool
    ) -> TaskSettings:
        hands_on = run.emits or not is_last
        outbox = Outbox(
            self.root, self.manifest.version + 1, run.store.partitions, run.store.options
        )
        return TaskSettings(
            run.store, self.manifest.version, self.spec.mode, ansi, marks,
            outbox if hands_on else None,
        )  # fmt: skip

    def _run_stage(
        self, run: _StageRun, task: Task, frame: DataFrame | None, marks: Watermarks
    ) -> tuple[list[TaskResult], int]:
        """The results of one operator's tasks, and the late rows Spark itself filtered out."""
        count, schema = run.store.partitions, run.schema
        if frame is None and not run.operator.is_global:
            numbers = self._session.sparkContext.parallelize(range(count), count)
            return numbers.map(lambda p: run_task(task, p, schema, ())).collect(), 0
        if frame is None:
            prepared = run.frames.batch.made  # of no rows: the one group that is there anyway
        else:
            prepared = run.frames.of_batch(frame, count, marks)
        rdd, schema = jvm.arrow_rdd(prepared)
        results = rdd.mapPartitionsWithIndex(
            lambda p, raw: [run_task(task, p, schema, raw)]
        ).collect()
        if len(results) != count:
            raise IllegalState(f"Spark ran {len(results)} tasks for {count} partitions.")
        return results, jvm.observed_late_rows(prepared)

    def _handed_on(self, run: _StageRun, emitted: list[Emitted]) -> DataFrame | None:
        """What the next operator gets; None where there is nothing."""
        if not any(part.rows for part in emitted):
            return None
        reader = _reader(run, emitted)
        rows = _at_hand if reader.is_at_hand else _by_tasks
        return run.frames.output.fill(rows(self._session, run, reader))

    def _commit(
        self,
        results: Mapping[int, list[TaskResult]],
        marks: Watermarks,
        facts: Mapping[str, Any] | None,
    ) -> None:
        last = self._stages[-1]
        outbox: tuple[Emitted, ...] = ()
        if last.emits:
            emitted = [result.emitted for result in results[len(self._stages) - 1]]
            outbox = filed(self.versions.storage, self.manifest.version + 1, emitted)
        before_ms = self._runtime.monotonic_ms()
        base = self.manifest
        self.manifest = self._committer.commit(
            base,
            self._newest_at_ms,
            [self._with_merges(r.prepared) for found in results.values() for r in found],
            self._runtime.new_id(),
            batch=facts if facts is not None else base.batch,
            watermark=marks.json(),
            outbox=tuple(part.json() for part in outbox),
            delivered_through=base.version,
        )
        self._newest_at_ms = before_ms
        self._merges = {}
        for path in {part["path"] for part in base.outbox}:
            self.versions.storage.delete(path)

    # -- delivering ----------------------------------------------------------------------------

    def deliver(self) -> None:
        """Hand the newest version's rows, as the storage has them, to the sink."""
        self._deliver([])

    def _deliver(self, emitted: list[Emitted]) -> None:
        """Hand the newest version's rows to the sink: as its tasks gave them, or else as stored."""
        run = self._stages[-1]
        fresh = _reader(run, emitted)
        if emitted and fresh.is_at_hand and not self._needs_partitions:
            rows = _at_hand(self._session, run, fresh)
        else:
            rows = _by_tasks(self._session, run, self._stored_output(run))
        self._sink.deliver(run.frames.output.fill(rows), self.manifest.version)

    def _stored_output(self, run: _StageRun) -> OutboxReader | Output:
        marks = self.marks
        if run.emits:
            return _reader(run, [Emitted.from_json(part) for part in self.manifest.outbox])
        return Output(
            store=run.store,
            version=self.manifest.version,
            mode=self.spec.mode,
            above=marks.late_us,
            upto=marks.evict_us if run.operator.key_index is not None else None,
        )

    def deliver_leftover(self) -> None:
        """A tick that was committed before a crash may not have been delivered."""
        newest = self.manifest
        if newest.version < 2 or self._was_delivered(newest.version):
            return
        if self.versions.load(newest.version - 1).batch == newest.batch:
            self.deliver()

    def _was_delivered(self, version: int) -> bool:
        return self.versions.storage.size(delivered_path(version)) is not None

    def note_delivered(self) -> None:
        """Spare the next start a second delivery; earlier notes have served."""
        if not self.manifest.version:
            return
        storage, own = self.versions.storage, delivered_path(self.manifest.version)
        storage.create_if_absent(own, b"")
        for blob in storage.list(DELIVERED):
            if blob.path != own:
                storage.delete(blob.path)

    # -- maintenance ---------------------------------------------------------------------------

    def partitions(self) -> list[tuple[int, int]]:
        """Every operator and partition that may need merging."""
        return [
            (number, partition)
            for number, run in enumerate(self._stages)
            for partition in range(run.store.partitions)
        ]

    def merge(self, number: int, partition: int) -> None:
        """Merge what is due of one partition, as a job of one task."""
        if (number, partition) in self._merges:
            return
        store = self._stages[number].store
        task = self._session.sparkContext.parallelize([partition], 1)
        merged = task.map(store.maintain).collect()[0]
        self._merges[number, partition] = merged

    def clean(self) -> None:
        """Remove what no version needs any more."""
        clean(self.versions, self._runtime, self._conf, self._waiting_files)

    def _with_merges(self, prepared: Prepared) -> Prepared:
        """What a task prepared, with what maintenance merged of its partition meanwhile."""
        merges = self._merges.get((prepared.operator, prepared.partition), ())
        return replace(prepared, swaps=(*prepared.swaps, *merges))

    def _waiting_files(self) -> set[str]:
        return {
            swap.output.path(f"{number}/{partition}")
            for (number, partition), swaps in self._merges.items()
            for swap in swaps
        }


def _at_hand(session: SparkSession, run: _StageRun, reader: OutboxReader) -> DataFrame:
    """Rows of an operator that came with its tasks' results: Spark has no job to run for them."""
    table = reader.table()
    return session.createDataFrame([] if table is None else table, run.frames.rows_schema)


def _by_tasks(session: SparkSession, run: _StageRun, reader: OutboxReader | Output) -> DataFrame:
    """Rows of an operator, read by tasks, one for each partition."""
    count = run.store.partitions

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        worker.acknowledge()
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                if isinstance(reader, OutboxReader):
                    yield from reader.read(partition)
                else:
                    for table in read_output(reader, partition):
                        yield from table.to_batches()
        worker.acknowledge()

    return session.range(0, count, 1, count).mapInArrow(read, run.frames.rows_schema)


def _reader(run: _StageRun, parts: Sequence[Emitted]) -> OutboxReader:
    return OutboxReader(run.store.root, run.store.options, tuple(parts))
