"""The running query: one version for each batch, delivered in order, exactly once where the sink
can tell.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.chain import StoreShape
from holdfast.engine.commit import Prepared, Swap
from holdfast.engine.committer import Committer
from holdfast.engine.filenames import DELIVERED, delivered_path
from holdfast.engine.hash_samples import check_samples
from holdfast.engine.hashing import HASH_NAME
from holdfast.engine.maintenance import Periodic
from holdfast.engine.manifest import Manifest
from holdfast.engine.provider import check_same_store, new_store_entry
from holdfast.engine.retention import clean
from holdfast.engine.storage import Runtime
from holdfast.engine.versions import VersionLog
from holdfast.errors import IllegalState
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.spark import hadoop, jvm
from holdfast.spark.aggregation import Aggregation
from holdfast.spark.sinks import MemorySink, Sink
from holdfast.streams.aggregating import (
    AggregationTask,
    StoreSpec,
    TaskResult,
    merge_partition,
    run_aggregation,
)
from holdfast.streams.reading import Output
from holdfast.streams.watermark import Watermarks

log = logging.getLogger(__name__)
_OPERATOR = 0
_ROWS_PER_BATCH = 1_000_000
_IDLE_POLL_S = 0.05
_DEFAULT_SHUFFLE_PARTITIONS = "200"


@dataclass
class QuerySpec:
    """What a query was started with."""

    source: DataFrame
    native: DataFrame
    operator: Aggregation
    steps: tuple[Callable[[DataFrame], DataFrame], ...]
    mode: str
    checkpoint: str
    state_location: str | None
    trigger: dict[str, Any]
    name: str | None


@dataclass
class _Run:
    """What is known once the state is open."""

    store: StoreSpec
    manifest: Manifest
    shape: StoreShape
    newest_at_ms: int | None = None
    """A time by the monotonic clock at which no version after `manifest` existed, if known."""
    progress: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=100))


class StatefulQuery:
    """A running stateful stream; has what StreamingQuery has."""

    def __init__(self, spec: QuerySpec, sink: Sink) -> None:
        self._spec = spec
        self._sink = sink
        self._session = spec.source.sparkSession
        self._runtime = Runtime.system()
        self._root = spec.state_location or f"{spec.checkpoint}/holdfast"
        self._conf = StateStoreConf.from_spark(self._session.conf)
        self._versions = VersionLog(open_storage(self._root), self._runtime)
        self._committer = Committer(self._versions, self._runtime, self._conf)
        self._run_id = str(uuid4())
        self._run: _Run | None = None
        self._lock = threading.RLock()
        self._inner: StreamingQuery | None = None
        self._started = threading.Event()
        self._idle: Periodic | None = None
        self._maintenance: Periodic | None = None
        self._merges: dict[int, tuple[Swap, ...]] = {}
        self._failure: BaseException | None = None
        self._ended = False

    # -- starting and the batches Spark brings ------------------------------------------------

    def start(self) -> None:
        """Open the state, deliver what a crash left undelivered, start Spark's query."""
        self._run = self._open()
        if isinstance(self._sink, MemorySink):
            self._sink.start(self._spec.native)
        self._deliver_leftover()
        writer = (
            self._spec.source.writeStream.foreachBatch(self._on_batch)
            .option("checkpointLocation", self._spec.checkpoint)
            .outputMode("append")
        )
        if self._spec.name is not None:
            writer = writer.queryName(self._spec.name)
        if self._spec.trigger:
            writer = writer.trigger(**self._spec.trigger)
        self._inner = writer.start()
        self._started.set()
        self._maintenance = Periodic(
            "holdfast-maintenance", self._conf.maintenance_interval_ms, self._maintain
        )
        if self._ticks_wanted and not {"availableNow", "once"} & set(self._spec.trigger):
            self._idle = Periodic("holdfast-ticks", int(_IDLE_POLL_S * 1000), self._tick_if_idle)

    def _open(self) -> _Run:
        operator = self._spec.operator
        batch = self._empty_batch()
        key_schema, value_schema = operator.schemas(operator.batch_frame(batch, 1))
        shape = StoreShape.of(key_schema, value_schema, operator.key_index, 0)
        manifest = self._versions.newest_intact()
        if manifest is None:
            manifest = self._create(shape)
        stored = manifest.operators[_OPERATOR][DEFAULT_STORE_NAME]
        check_same_store(stored, shape, f"the query's state in {self._root}")
        check_samples(shape, manifest.hash_name, stored.hash_samples)
        spec = StoreSpec(
            root=self._root,
            operator=_OPERATOR,
            key_schema=key_schema,
            value_schema=value_schema,
            key_index=operator.key_index,
            partitions=len(stored.partitions),
            conf=self._conf,
            run_id=self._run_id,
        )
        return _Run(spec, manifest, shape)

    def _empty_batch(self) -> DataFrame:
        return self._session.createDataFrame([], self._spec.source.schema)

    def _create(self, shape: StoreShape) -> Manifest:
        count = 1 if self._spec.operator.is_global else self._first_partitions()
        entry = new_store_entry(shape, [(index, count) for index in range(count)])
        policy = self._session.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")
        manifest = Manifest(
            version=0,
            parent=None,
            commit_id=self._runtime.new_id(),
            writer_id=self._runtime.new_id(),
            epoch=0,
            committed_at_ms=self._runtime.clock_ms(),
            hash_name=HASH_NAME,
            operators={_OPERATOR: {DEFAULT_STORE_NAME: entry}},
            watermark=Watermarks(policy=str(policy)).json(),
            delivered_through=0,
        )
        return self._versions.publish(manifest, 1, None)

    def _first_partitions(self) -> int:
        wanted = str(self._session.conf.get("spark.sql.shuffle.partitions"))
        if wanted == _DEFAULT_SHUFFLE_PARTITIONS:
            return 2 * self._session.sparkContext.defaultParallelism
        return int(wanted)

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        self._started.wait()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            offsets = hadoop.read_text(self._session, f"{self._spec.checkpoint}/offsets/{batch_id}")
            facts = {"id": batch_id, "query_id": self.id, "offsets": offsets}
            if self._is_replay(facts):
                log.info(
                    "Batch %d is in version %d already", batch_id, self._known.manifest.version
                )
                self._deliver()
                return
            self._run_version(batch, facts)

    def _is_replay(self, facts: dict[str, Any]) -> bool:
        """Whether Spark brings a batch that is committed; by its content, not only its number."""
        last = self._known.manifest.batch
        if last is None or facts["id"] > last["id"]:
            return False
        if facts["id"] == last["id"] and facts["offsets"] == last["offsets"]:
            return True
        raise IllegalState(
            f"Spark brings batch {facts['id']} with other offsets than the state has seen. The "
            f"state's last batch is {last['id']}: {last['offsets']!r}; Spark's is "
            f"{facts['offsets']!r}. The checkpoint {self._spec.checkpoint} and the state "
            f"{self._root} do not belong together; nothing was changed."
        )

    @property
    def _known(self) -> _Run:
        assert self._run is not None
        return self._run

    @property
    def _watermarks(self) -> Watermarks:
        stored = self._known.manifest.watermark
        return Watermarks() if stored is None else Watermarks.from_json(stored)

    # -- making a version ----------------------------------------------------------------------

    def _run_version(self, batch: DataFrame | None, facts: dict[str, Any] | None) -> None:
        """Compute, commit and deliver one version; without a batch it is a tick."""
        run, operator = self._known, self._spec.operator
        started = time.monotonic()
        marks = self._watermarks.following()
        uses_time = operator.has_event_time and self._spec.mode != "complete"
        task = AggregationTask(
            store=run.store,
            base_version=run.manifest.version,
            merges=operator.merges,
            ansi=str(self._session.conf.get("spark.sql.ansi.enabled")).lower() == "true",
            late=marks.late_ms * 1000 if uses_time else None,
            evict=marks.evict_ms * 1000 if uses_time else None,
        )
        results = self._run_tasks(task, batch)
        if batch is not None and self._inner is not None:
            marks = self._observed(marks)
        before_ms = self._runtime.monotonic_ms()
        manifest = self._committer.commit(
            run.manifest,
            run.newest_at_ms,
            [self._with_merges(result.prepared) for result in results],
            self._runtime.new_id(),
            batch=facts if facts is not None else run.manifest.batch,
            watermark=marks.json(),
            delivered_through=run.manifest.version,
        )
        run.manifest, run.newest_at_ms = manifest, before_ms
        self._merges = {}
        self._deliver()
        self._note_progress(results, marks, time.monotonic() - started, facts)

    def _run_tasks(self, task: AggregationTask, batch: DataFrame | None) -> list[TaskResult]:
        count = task.store.partitions
        if batch is None:
            frame = self._spec.operator.batch_frame(self._empty_batch(), count)
            schema = jvm.arrow_schema(frame).serialize().to_pybytes()
            numbers = self._session.sparkContext.parallelize(range(count), count)
            return numbers.map(lambda p: run_aggregation(task, p, schema, ())).collect()
        own = jvm.own_frame(batch, count)
        rdd, schema = jvm.arrow_rdd(self._spec.operator.batch_frame(own, count), _ROWS_PER_BATCH)
        results = rdd.mapPartitionsWithIndex(
            lambda p, raw: [run_aggregation(task, p, schema, raw)]
        ).collect()
        if len(results) != count:
            raise IllegalState(f"Spark ran {len(results)} tasks for {count} partitions.")
        return results

    def _observed(self, marks: Watermarks) -> Watermarks:
        assert self._inner is not None
        stats = jvm.event_time_stats(self._inner._jsq)
        return marks.observed(
            [entry.max_ms if entry.rows else None for entry in stats],
            [entry.delay_ms for entry in stats],
        )

    # -- delivering ----------------------------------------------------------------------------

    def _deliver(self) -> None:
        """Hand the newest version's rows to the sink."""
        run, operator = self._known, self._spec.operator
        marks = self._watermarks
        output = Output(
            store=run.store,
            version=run.manifest.version,
            mode=self._spec.mode,
            above=marks.late_ms * 1000,
            upto=marks.evict_ms * 1000 if operator.has_event_time else None,
        )
        stored = operator.batch_frame(self._empty_batch(), 1)
        frame = operator.output_frame(stored, output)
        for step in self._spec.steps:
            frame = step(frame)
        self._sink.deliver(frame, run.manifest.version)

    def _deliver_leftover(self) -> None:
        """A tick that was committed before a crash may not have been delivered."""
        manifest = self._known.manifest
        if manifest.version < 2 or self._was_delivered(manifest.version):
            return
        if self._versions.load(manifest.version - 1).batch == manifest.batch:
            self._deliver()

    def _was_delivered(self, version: int) -> bool:
        return self._versions.storage.size(delivered_path(version)) is not None

    # -- ticks ---------------------------------------------------------------------------------

    @property
    def _ticks_wanted(self) -> bool:
        wanted = self._session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        operator = self._spec.operator
        enabled = str(wanted).lower() == "true"
        return enabled and operator.has_event_time and self._spec.mode != "complete"

    def _tick_if_idle(self) -> None:
        inner = self._inner
        if inner is None or not inner.isActive or self._failure is not None:
            return
        status = inner.status
        if status["isDataAvailable"] or status["isTriggerActive"]:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not inner.status["isDataAvailable"]:
                self._run_due_ticks()
        except Exception as error:
            self._failure = error
            log.exception("A tick failed; the query stops")
            inner.stop()
        finally:
            self._lock.release()

    def _run_due_ticks(self) -> None:
        with self._lock:
            while self._watermarks.is_tick_due:
                self._run_version(None, None)

    # -- maintenance ---------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Merge one partition after the other while no batch waits, then clean up."""
        run = self._known
        for partition in range(run.store.partitions):
            with self._lock:
                if partition not in self._merges and self.isActive:
                    self._merges[partition] = self._merged(run.store, partition)
        with self._lock:
            clean(self._versions, self._runtime, self._conf, self._waiting_files)

    def _merged(self, store: StoreSpec, partition: int) -> tuple[Swap, ...]:
        context = self._session.sparkContext
        task = context.parallelize([partition], 1).map(lambda p: merge_partition(store, p))
        merged: tuple[Swap, ...] = task.collect()[0]
        return merged

    def _with_merges(self, prepared: Prepared) -> Prepared:
        """What a task prepared, with what maintenance merged of its partition meanwhile."""
        merges = self._merges.get(prepared.partition, ())
        return replace(prepared, swaps=(*prepared.swaps, *merges))

    def _waiting_files(self) -> set[str]:
        return {
            swap.output.path(f"{_OPERATOR}/{partition}")
            for partition, swaps in self._merges.items()
            for swap in swaps
        }

    # -- what StreamingQuery has ---------------------------------------------------------------

    @property
    def id(self) -> str:
        """The query's id, the same across restarts."""
        assert self._inner is not None
        return str(self._inner.id)

    @property
    def runId(self) -> str:
        """This run's id."""
        assert self._inner is not None
        return str(self._inner.runId)

    @property
    def name(self) -> str | None:
        """The name given by queryName."""
        return self._spec.name

    @property
    def isActive(self) -> bool:
        """Whether the query is running."""
        return self._inner is not None and self._inner.isActive

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        assert self._inner is not None
        return self._inner.status

    @property
    def version(self) -> int:
        """The newest committed version."""
        return self._known.manifest.version

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """Progress of the last versions, oldest first."""
        return list(self._known.progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Progress of the last version."""
        return self._known.progress[-1] if self._known.progress else None

    def exception(self) -> BaseException | None:
        """What ended the query, if it failed."""
        assert self._inner is not None
        return self._failure or self._inner.exception()

    def explain(self, extended: bool = False) -> None:
        """Spark's plan for the rows that reach the operator."""
        assert self._inner is not None
        self._inner.explain(extended)

    def processAllAvailable(self) -> None:
        """Wait until all data at hand is in state and out of the sink, due ticks included."""
        assert self._inner is not None
        self._inner.processAllAvailable()
        if self._ticks_wanted:
            self._run_due_ticks()
        self._raise_failure()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query; raises what ended it."""
        assert self._inner is not None
        ended = self._inner.awaitTermination(timeout)
        if timeout is None or ended:
            self._end()
        self._raise_failure()
        return ended

    def stop(self) -> None:
        """End the query after the batch in flight."""
        if self._inner is not None:
            self._inner.stop()
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        for thread in (self._idle, self._maintenance):
            if thread is not None:
                thread.stop()
        once = {"availableNow", "once"} & set(self._spec.trigger)
        failed = self._failure is not None or (
            self._inner is not None and self._inner.exception() is not None
        )
        if once and self._ticks_wanted and not failed:
            self._run_due_ticks()
        if not failed and self.version:
            self._note_delivered()

    def _note_delivered(self) -> None:
        """Spare the next start a second delivery; earlier notes have served."""
        storage, own = self._versions.storage, delivered_path(self.version)
        storage.create_if_absent(own, b"")
        for blob in storage.list(DELIVERED):
            if blob.path != own:
                storage.delete(blob.path)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _note_progress(
        self,
        results: list[TaskResult],
        marks: Watermarks,
        seconds: float,
        facts: dict[str, Any] | None,
    ) -> None:
        version = self._known.manifest.version
        rows = sum(result.rows + result.late_rows for result in results)
        self._known.progress.append(
            {
                "id": self.id,
                "runId": self.runId,
                "name": self.name,
                "batchId": version - 1,
                "version": version,
                "numInputRows": rows,
                "processedRowsPerSecond": rows / seconds if seconds else 0.0,
                "durationMs": {"triggerExecution": int(seconds * 1000)},
                "eventTime": {"watermark": marks.evict_ms},
                "isTick": facts is None,
                "stateOperators": [
                    {
                        "operatorName": "stateStoreSave",
                        "numRowsTotal": sum(r.prepared.num_keys for r in results),
                        "numRowsUpdated": sum(r.updated for r in results),
                        "numRowsRemoved": sum(r.evicted for r in results),
                        "numRowsDroppedByWatermark": sum(r.late_rows for r in results),
                        "memoryUsedBytes": sum(r.memory_bytes for r in results),
                        "numShufflePartitions": len(results),
                        "numStateStoreInstances": len(results),
                        "customMetrics": {
                            "stateOnCurrentVersionSizeBytes": sum(r.state_bytes for r in results)
                        },
                    }
                ],
            }
        )
