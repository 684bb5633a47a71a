"""The running query: Spark brings the batches, the version loop does the work."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from py4j.protocol import Py4JJavaError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.conf import StateStoreConf
from holdfast.engine.periodic import PeriodicJob
from holdfast.errors import Conflict, HoldfastError
from holdfast.reading import LiveState, Root, choose_store
from holdfast.spark.interop import seam
from holdfast.spark.monitoring.listeners import spark_progress
from holdfast.spark.monitoring.metrics import metrics_text
from holdfast.spark.monitoring.progress import VersionReport, progress
from holdfast.spark.monitoring.watch import Watch
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.running.active import leave_place, take_place
from holdfast.spark.running.failures import as_end, explained, unwrapped
from holdfast.spark.running.loop import VersionLoop
from holdfast.spark.running.spark_query import INTERRUPTED, BatchFunction, SparkQuery
from holdfast.spark.running.ticks import Ticks
from holdfast.spark.sinks.sink import Sink

log = logging.getLogger(__name__)
_IDLE_POLL_MS = 50
_PAUSE_S = 0.01
_TAKEN_BATCH = re.compile(
    "CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming (jobs detected|queries are concurrently using)"
)
"""How Spark's logs of batches and files say that another driver has written to them."""
_CANCELLED = re.compile("Interrupted|cancelled")


class StatefulQuery:
    """A running stateful stream; has what StreamingQuery has."""

    def __init__(self, spec: QuerySpec, sink: Sink) -> None:
        self._spec = spec
        self._sink = sink
        self._session = spec.source.sparkSession
        self._conf = StateStoreConf.from_spark(spec.settings)
        self._loop = VersionLoop(spec, sink, self._conf)
        wanted = self._session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        # A run of one batch has no batch without data behind it.
        is_wanted = str(wanted).lower() == "true" and "once" not in spec.trigger
        self._ticks_wanted = is_wanted and self._loop.has_ticks
        self._lock = threading.RLock()
        """One at a time: a batch, a tick, a merge."""
        self._ticks = Ticks(
            self._loop, self._lock, lambda: self._run_version(None, None),
            lambda: self._inner.status, lambda: self._is_over,
        )  # fmt: skip
        self._batch_waits = threading.Event()
        self._batches = BatchFunction(self._on_batch)
        self._inner: SparkQuery
        self._started = threading.Event()
        self._idle: PeriodicJob | None = None
        self._maintenance: PeriodicJob | None = None
        self._watch = Watch(self._conf)
        self._failure: BaseException | None = None
        self._batch_failure: Exception | None = None
        """What a batch raised; Spark wraps it up as a failure of a function of the user's."""
        self._end_told: BaseException | None = None
        """What ended Spark's query, once it was asked for."""
        self._maker: threading.Thread | None = None
        """Who makes a version, and has the lock for it."""
        self._ending = threading.Lock()
        self._ended = False
        self._stopping = False
        self._has_cleaned = False
        self._place = seam.files.qualified(self._session, spec.checkpoint)

    def start(self) -> None:
        """Open the state, deliver what a crash left undelivered, start Spark's query."""
        try:
            self._start()
        except BaseException as error:
            self._give_up(error)
            self._watch.ended(error)
            self._loop.close()
            if self._spec.is_temporary:
                seam.files.delete(self._session, self._spec.checkpoint)
            raise
        threading.Thread(target=self._end_with_spark, name="holdfast-end", daemon=True).start()

    def _start(self) -> None:
        take_place(self._session, self._place, self)
        with explained(self._loop.root):
            self._loop.open()
            self._sink.start(self._spec.native)
            self._loop.deliver_leftover()
        self._inner = SparkQuery(self._begin, self._may_resume)
        self._watch.started(self._inner)
        self._started.set()
        self._maintenance = PeriodicJob(
            "holdfast-maintenance", self._conf.maintenance_interval_ms, self._maintain
        )
        if self._ticks_wanted and not self._ends_by_itself:
            self._idle = PeriodicJob("holdfast-ticks", _IDLE_POLL_MS, self._tick_if_idle)

    def _begin(self) -> StreamingQuery:
        """Start Spark's query."""
        writer = (
            self._spec.source.writeStream.foreachBatch(self._batches)
            .option("checkpointLocation", self._spec.checkpoint)
            .outputMode("append")
        )
        if self._spec.name is not None:
            writer = writer.queryName(self._spec.name)
        if self._spec.trigger:
            writer = writer.trigger(**self._spec.trigger)
        begun = seam.queries.start(self._session, self._loop.checkpoint, writer)
        self._loop.query_id, self._loop.run_id = str(begun.id), str(begun.runId)
        return begun

    def _may_resume(self, error: BaseException) -> bool:
        """Whether all that ended Spark's query is an older driver that wrote to its logs first.

        That driver has been overtaken and stops before it takes another batch.
        """
        lost_race = _TAKEN_BATCH.search(str(error)) is not None
        return lost_race and not self._is_over and self._loop.has_newest_claim

    def _give_up(self, error: BaseException) -> None:
        """Have Spark's query end, if it runs already."""
        self._failure = error
        self._ended = True
        self._started.set()
        leave_place(self._place, self)
        if hasattr(self, "_inner"):
            self._inner.stop()
        self._batches.release(self._batch_failure)

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        self._started.wait()
        with self._turn_of_batch():
            try:
                self._take(batch, batch_id)
            except Exception as error:
                interrupted = self._stopping and isinstance(error, Py4JJavaError)
                if interrupted and _CANCELLED.search(str(error)):
                    raise RuntimeError(INTERRUPTED) from None
                self._batch_failure = error
                raise

    @contextlib.contextmanager
    def _turn_of_batch(self) -> Iterator[None]:
        """Have the lock, unless the query is stopped first: then the next run gets the batch.

        Whoever stops the query waits for its batch, and may be who has the lock: a function of
        the user's that a tick calls.
        """
        self._batch_waits.set()
        try:
            while not self._lock.acquire(timeout=_PAUSE_S):
                if self._stopping and not self._inner.isActive:  # before that it would be a failure
                    raise RuntimeError(INTERRUPTED)
        finally:
            self._batch_waits.clear()
        try:
            yield
        finally:
            self._lock.release()

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        """Make a version of a batch. Requires: the lock."""
        with explained(self._loop.root):
            if self._failure is not None:
                raise self._failure
            offsets = self._loop.checkpoint.offsets(batch_id)
            facts = {"id": batch_id, "query_id": self._loop.query_id, "offsets": offsets}
            self._loop.catch_up()
            if self._loop.is_replay(facts):
                log.info("Batch %d is in version %d already", batch_id, self.version)
                with self._making():
                    self._loop.deliver()
                return
            self._run_version(batch, facts)

    def _run_version(self, batch: DataFrame | None, facts: dict[str, Any] | None) -> None:
        observe = None
        if batch is not None:
            observe = lambda: seam.queries.event_time_stats(self._inner.current)  # noqa: E731
        with self._making():
            report = self._loop.run(batch, facts, observe)
        if report is not None:
            self._tell(report)

    @contextlib.contextmanager
    def _making(self) -> Iterator[None]:
        """While a version is made or delivered: the sink may call a function of the user's."""
        self._maker = threading.current_thread()
        try:
            yield
        finally:
            self._maker = None

    def _tell(self, report: VersionReport) -> None:
        """Report a version. It is delivered: whatever goes wrong here is logged, and no more."""
        try:
            query = {"id": self.id, "runId": self.runId, "name": self.name}
            titles = [stage.operator.title for stage in self._spec.stages]
            told = progress(report, query, titles, self._sink.description)
            self._watch.progressed(told, None if report.batch is None else report.batch["id"])
        except Exception:
            log.warning(
                "Version %d of %s was delivered, but its progress could not be reported",
                report.version, self._loop.root, exc_info=True,
            )  # fmt: skip

    # -- ticks ---------------------------------------------------------------------------------

    @property
    def _ends_by_itself(self) -> bool:
        return bool({"availableNow", "once"} & set(self._spec.trigger))

    def _tick_if_idle(self) -> None:
        try:
            self._run_ticks(self._ticks.run_one_if_idle)
        except Exception:
            log.exception("A tick failed; the query stops")

    def _run_ticks(self, run: Callable[[], None]) -> None:
        """Run ticks; one that fails is the end of the query."""
        try:
            with explained(self._loop.root):
                run()
        except Exception as error:
            known = unwrapped(error)
            self._failure = as_end(known) if isinstance(known, HoldfastError) else known
            raise self._failure from (self._failure.__cause__ or None)
        finally:
            self._stop_if_failed()

    def _stop_if_failed(self) -> None:
        """End Spark's query after a tick that failed. Requires: the lock is free.

        Spark waits for the batch it is in, and that batch for the lock.
        """
        if self._failure is not None:
            self._inner.stop()

    def _maintain(self) -> None:
        """Merge one partition after the other while no batch waits, then clean up."""
        try:
            self._loop.check_claim()
        except Conflict as conflict:  # an idle driver finds out here that it was overtaken
            self._failure = as_end(conflict)
            self._stop_if_failed()
            return
        with self._lock:
            due = self._loop.due_merges()
        for place in due:
            self._yield_to_batches()
            with self._lock:
                if self.is_ending:
                    return
                try:
                    self._loop.merge(place)
                except Exception:
                    log.warning("Could not merge %s of %s", place, self._loop.root, exc_info=True)
        self._yield_to_batches()
        self._clean()

    def _clean(self) -> None:
        self._loop.clean(self._lock)
        self._has_cleaned = True

    @property
    def _is_over(self) -> bool:
        """Whether the query was stopped or has failed: it commits no version after that."""
        has_failed = self._failure is not None or self._batch_failure is not None
        return self._ended or self._stopping or has_failed

    @property
    def is_ending(self) -> bool:
        """Whether the query ends by itself: its Spark query has, or it failed."""
        self._started.wait()
        return self._is_over or not self._inner.isActive

    def _yield_to_batches(self) -> None:
        """Wait while a batch does: whoever lets go of the lock could be the next to take it."""
        while self._batch_waits.is_set() and self.isActive:
            time.sleep(_PAUSE_S)

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
        """Whether the query is running, or has ticks to run after its last batch."""
        return not self._ended

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
        root = Root(self._loop.versions.storage)
        return LiveState(choose_store(root, operator, store))

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Progress of the last versions, oldest first."""
        return [spark_progress(told) for told in self._watch.recent]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Progress of the last version."""
        told = self._watch.recent
        return spark_progress(told[-1]) if told else None

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Tell a listener of this query from now on; its start is over."""
        self._watch.listeners.add(listener)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Tell a listener of this query no more."""
        self._watch.listeners.remove(listener)

    def metrics_text(self) -> str:
        """The query's figures in the text format of Prometheus."""
        return metrics_text([self._watch.metrics])

    @property
    def metrics_url(self) -> str | None:
        """Where the figures are served, if `spark.holdfast.metrics.port` says so."""
        return self._watch.metrics_url

    def exception(self) -> BaseException | None:
        """What ended the query, if it failed."""
        return self._failure or self._told(self._inner.exception())

    def _told(self, error: BaseException | None) -> BaseException | None:
        """What ended Spark's query, in Holdfast's words where another driver did.

        A driver that was overtaken fails wherever it notices first: in a batch, in Spark's logs.
        """
        if error is not None and self._end_told is None:
            conflict = self._loop.overtaken()
            if conflict is None and _TAKEN_BATCH.search(str(error)):
                conflict = Conflict(
                    f"Another driver goes on with the checkpoint {self._spec.checkpoint}: it has "
                    "taken the batch that this one was about to take. This one must stop."
                )
            known = conflict or unwrapped(self._batch_failure or error)
            if isinstance(known, HoldfastError):
                self._end_told = as_end(known)
                self._end_told.__cause__ = self._end_told.__cause__ or error
            else:
                error.__cause__ = self._batch_failure
                self._end_told = error
        return self._end_told

    def explain(self, extended: bool = False) -> None:
        """Spark's plan for the rows that reach the first operator."""
        self._inner.explain(extended)

    def processAllAvailable(self) -> None:
        """Wait until all data at hand is in state and out of the sink, due ticks included.

        Of timers that keep registering others for the past, only so many versions are waited for.
        """
        try:
            self._inner.processAllAvailable()
        except StreamingQueryException as error:
            self._raise_end(error)
        if self._ticks_wanted:
            self._run_ticks(self._ticks.run_due)
        self._raise_failure()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query; raises what ended it."""
        try:
            ended = self._inner.awaitTermination(timeout)
        except StreamingQueryException as error:
            self._raise_end(error)
        if timeout is None or ended:
            self._end()
        self._raise_failure()
        return ended

    def _raise_end(self, error: StreamingQueryException) -> NoReturn:
        """Raise what ended the query, once it commits no more: it may be started again at once."""
        self._end()
        raise self._failure or self._told(error) or error

    def stop(self) -> None:
        """End the query after the batch in flight.

        Where a function of the user's calls it with the rows of a version without data, the query
        ends when the function has returned.
        """
        self._stopping = True
        self._inner.stop()
        self._end()

    def _end_with_spark(self) -> None:
        """End when Spark's query does, also where nobody waits for it."""
        with contextlib.suppress(Exception):  # exception() tells it
            self._inner.awaitTermination()
        try:
            self._end()
        except Exception:
            log.warning("The end of the query %s went wrong", self._spec.name, exc_info=True)

    def finish(self) -> None:
        """Wait for the end of a query that is ending."""
        self._end()

    def _end(self) -> None:
        """Bring the query to its end, once; whoever comes second waits.

        A function of the user's that is given a version does not: the end waits for the version.
        """
        if self._maker is threading.current_thread():
            return
        with self._ending:
            if not self._ended:
                try:
                    self._finish()
                finally:
                    self._ended = True
                    leave_place(self._place, self)
                    self._batches.release(self._batch_failure)
        self._watch.ended(self.exception())

    def _finish(self) -> None:
        for thread in (self._idle, self._maintenance):
            if thread is not None:
                thread.stop()
        if self.exception() is None:
            if self._ends_by_itself and self._ticks_wanted:
                with contextlib.suppress(Exception):  # exception() tells it
                    self._run_ticks(self._ticks.run_due)
            self._note_delivered()
            self._clean_once()
        self._loop.close()
        self._drop_temporary()

    def _note_delivered(self) -> None:
        """Spare the next start a second delivery; where that fails, it delivers once more."""
        try:
            with self._lock:
                self._loop.note_delivered()
        except Exception:
            log.warning("Could not note what %s has delivered", self._loop.root, exc_info=True)

    def _clean_once(self) -> None:
        """Clean up at the end of a run that was too short for it, such as one by a timetable."""
        if self._has_cleaned or self._spec.is_temporary:
            return
        try:
            self._clean()
        except Exception:
            log.warning("Could not clean up %s", self._loop.root, exc_info=True)

    def _drop_temporary(self) -> None:
        """Remove a temporary checkpoint, unless it may tell why the query failed."""
        force = self._session.conf.get(
            "spark.sql.streaming.forceDeleteTempCheckpointLocation", "false"
        )
        if self._spec.is_temporary and (self.exception() is None or str(force) == "true"):
            seam.files.delete(self._session, self._spec.checkpoint)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
