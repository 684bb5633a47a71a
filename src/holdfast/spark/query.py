"""The running query: Spark brings the batches, the version loop does the work."""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.conf import StateStoreConf
from holdfast.engine.maintenance import Periodic
from holdfast.inspection import LiveState, read_state
from holdfast.spark import hadoop, jvm
from holdfast.spark.loop import QuerySpec, VersionLoop
from holdfast.spark.progress import progress
from holdfast.spark.sinks import Sink

log = logging.getLogger(__name__)
_IDLE_POLL_MS = 50
_PROGRESS_KEPT = 100


class StatefulQuery:
    """A running stateful stream; has what StreamingQuery has."""

    def __init__(self, spec: QuerySpec, sink: Sink) -> None:
        self._spec = spec
        self._sink = sink
        self._session = spec.source.sparkSession
        self._conf = StateStoreConf.from_spark(self._session.conf)
        self._loop = VersionLoop(spec, sink, self._conf)
        self._lock = threading.RLock()
        """One at a time: a batch, a tick, a merge."""
        self._inner: StreamingQuery
        self._started = threading.Event()
        self._idle: Periodic | None = None
        self._maintenance: Periodic | None = None
        self._progress: deque[dict[str, Any]] = deque(maxlen=_PROGRESS_KEPT)
        self._failure: BaseException | None = None
        self._ended = False

    def start(self) -> None:
        """Open the state, deliver what a crash left undelivered, start Spark's query."""
        self._loop.open()
        self._sink.start(self._spec.native)
        self._loop.deliver_leftover()
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
        if self._ticks_wanted and not self._ends_by_itself:
            self._idle = Periodic("holdfast-ticks", _IDLE_POLL_MS, self._tick_if_idle)

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        self._started.wait()
        with self._lock:
            if self._failure is not None:
                raise self._failure
            offsets = hadoop.read_text(self._session, f"{self._spec.checkpoint}/offsets/{batch_id}")
            facts = {"id": batch_id, "query_id": self.id, "offsets": offsets}
            if self._loop.is_replay(facts):
                log.info("Batch %d is in version %d already", batch_id, self.version)
                self._loop.deliver()
                return
            self._run_version(batch, facts)

    def _run_version(self, batch: DataFrame | None, facts: dict[str, Any] | None) -> None:
        observe = None
        if batch is not None:
            observe = lambda: jvm.event_time_stats(self._inner._jsq)  # noqa: E731 - one line
        report = self._loop.run(batch, facts, observe)
        query = {"id": self.id, "runId": self.runId, "name": self.name}
        titles = [stage.operator.title for stage in self._spec.stages]
        self._progress.append(progress(report, query, titles))

    # -- ticks ---------------------------------------------------------------------------------

    @property
    def _ends_by_itself(self) -> bool:
        return bool({"availableNow", "once"} & set(self._spec.trigger))

    @property
    def _ticks_wanted(self) -> bool:
        wanted = self._session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        return str(wanted).lower() == "true" and self._loop.has_ticks

    def _tick_if_idle(self) -> None:
        inner = self._inner
        if not inner.isActive or self._failure is not None:
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
            while self._loop.marks.is_tick_due:
                self._run_version(None, None)

    def _maintain(self) -> None:
        """Merge one partition after the other while no batch waits, then clean up."""
        for number, partition in self._loop.partitions():
            with self._lock:
                if self.isActive:
                    self._loop.merge(number, partition)
        with self._lock:
            self._loop.clean()

    # -- what StreamingQuery has ---------------------------------------------------------------

    @property
    def id(self) -> str:
        """The query's id, the same across restarts."""
        return str(self._inner.id)

    @property
    def runId(self) -> str:
        """This run's id."""
        return str(self._inner.runId)

    @property
    def name(self) -> str | None:
        """The name given by queryName."""
        return self._spec.name

    @property
    def isActive(self) -> bool:
        """Whether the query is running."""
        return self._inner.isActive

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        return self._inner.status

    @property
    def version(self) -> int:
        """The newest committed version."""
        return self._loop.manifest.version

    def state(self, operator: int | None = None, store: str | None = None) -> LiveState:
        """The state of the newest version, to be read while the query runs; see `holdfast.read`."""
        return read_state(self._loop.root, operator=operator, store=store)

    @property
    def recentProgress(self) -> list[dict[str, Any]]:
        """Progress of the last versions, oldest first."""
        return list(self._progress)

    @property
    def lastProgress(self) -> dict[str, Any] | None:
        """Progress of the last version."""
        return self._progress[-1] if self._progress else None

    def exception(self) -> BaseException | None:
        """What ended the query, if it failed."""
        return self._failure or self._inner.exception()

    def explain(self, extended: bool = False) -> None:
        """Spark's plan for the rows that reach the first operator."""
        self._inner.explain(extended)

    def processAllAvailable(self) -> None:
        """Wait until all data at hand is in state and out of the sink, due ticks included."""
        self._inner.processAllAvailable()
        if self._ticks_wanted:
            self._run_due_ticks()
        self._raise_failure()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query; raises what ended it."""
        ended = self._inner.awaitTermination(timeout)
        if timeout is None or ended:
            self._end()
        self._raise_failure()
        return ended

    def stop(self) -> None:
        """End the query after the batch in flight."""
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
        if self._failure is not None or self._inner.exception() is not None:
            return
        if self._ends_by_itself and self._ticks_wanted:
            self._run_due_ticks()
        self._loop.note_delivered()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
