"""One run of a query: batches, ticks and maintenance, one at a time."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from holdfast.conf import StateStoreConf
from holdfast.engine.periodic import PeriodicJob
from holdfast.errors import Conflict, HoldfastError
from holdfast.spark.interop import seam
from holdfast.spark.monitoring.progress import ReportedQuery, VersionReport, progress
from holdfast.spark.monitoring.watch import Watch
from holdfast.spark.pipeline.flow import order_in_spark
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.running.failures import as_end, explained, unwrapped
from holdfast.spark.running.spark_query import INTERRUPTED, SparkQuery
from holdfast.spark.running.ticks import Ticks
from holdfast.spark.sinks.sink import Sink
from holdfast.spark.versions.loop import VersionLoop

log = logging.getLogger(__name__)
_IDLE_POLL_MS = 50
_PAUSE_S = 0.01
_CANCELLED = re.compile("Interrupted|cancelled")


class Outcome:
    """Whether a run is over, and what it failed of."""

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self.batch_failure: Exception | None = None
        """What a batch raised; Spark wraps it up as a failure of a function of the user's."""
        self.is_stopping = False
        self.has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether the query was stopped or has failed: it commits no version after that."""
        has_failed = self.failure is not None or self.batch_failure is not None
        return self.has_ended or self.is_stopping or has_failed


class Turns:
    """One at a time: a batch, a tick, a merge."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.batch_waits = threading.Event()
        self._maker: threading.Thread | None = None
        """Who makes a version, and has the lock for it."""

    @contextlib.contextmanager
    def of_batch(self, is_too_late: Callable[[], bool]) -> Iterator[None]:
        """Have the lock, unless the query is stopped first: then the next run gets the batch.

        Whoever stops the query waits for its batch, and may be who has the lock: a function of
        the user's that a tick calls.
        """
        self.batch_waits.set()
        try:
            while not self.lock.acquire(timeout=_PAUSE_S):
                if is_too_late():
                    raise RuntimeError(INTERRUPTED)
        finally:
            self.batch_waits.clear()
        try:
            yield
        finally:
            self.lock.release()

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """While a version is made or delivered: the sink may call a function of the user's."""
        self._maker = threading.current_thread()
        try:
            yield
        finally:
            self._maker = None

    @property
    def is_maker(self) -> bool:
        """Whether a function of the user's asks, which is called with a version."""
        return self._maker is threading.current_thread()

    def yield_to_batches(self, is_active: Callable[[], bool]) -> None:
        """Wait while a batch does: whoever lets go of the lock could be the next to take it."""
        while self.batch_waits.is_set() and is_active():
            time.sleep(_PAUSE_S)


class QueryRun:
    """Makes versions of what Spark's query brings, of what is due between, and tidies up."""

    def __init__(
        self,
        spec: QuerySpec,
        sink: Sink,
        conf: StateStoreConf,
        loop: VersionLoop,
        inner: SparkQuery,
        watch: Watch,
        outcome: Outcome,
    ) -> None:
        self.spec, self.loop, self.inner = spec, loop, inner
        self.watch, self.outcome, self.turns = watch, outcome, Turns()
        self._sink = sink
        self._session = spec.source.sparkSession
        wanted = self._session.conf.get("spark.sql.streaming.noDataMicroBatches.enabled", "true")
        # A run of one batch has no batch without data behind it.
        is_wanted = str(wanted).lower() == "true" and "once" not in spec.trigger
        self.has_ticks = is_wanted and loop.has_ticks
        self.has_cleaned = False
        self._plan_facts: tuple[list[str], list[int], bool] | None = None
        """The operators' titles and order, and whether there is a watermark, once asked for."""
        self._ticks = Ticks(
            loop,
            self.turns.lock,
            lambda: self._run_version(None, None),
            lambda: inner.status,
            lambda: outcome.is_over,
        )
        self._threads = [
            PeriodicJob("holdfast-maintenance", conf.maintenance_interval_ms, self.maintain)
        ]
        if self.has_ticks and not self.ends_by_itself:
            self._threads.insert(
                0, PeriodicJob("holdfast-ticks", _IDLE_POLL_MS, self._tick_if_idle)
            )

    @property
    def ends_by_itself(self) -> bool:
        """Whether the query is over once it has read what there is."""
        return bool({"availableNow", "once"} & set(self.spec.trigger))

    @property
    def is_ending(self) -> bool:
        """Whether the query ends by itself: its Spark query has, or it failed."""
        return self.outcome.is_over or not self.inner.isActive

    def stop_threads(self) -> None:
        """End the threads of ticks and maintenance; what they are at is waited for."""
        for thread in self._threads:
            thread.stop()

    # -- batches -------------------------------------------------------------------------------

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Make a version of a batch that Spark brings, once it is its turn."""
        # Before Spark's query has ended, it would be a failure.
        with self.turns.of_batch(lambda: not self.inner.isActive):
            try:
                self._take(batch, batch_id)
            except Exception as error:
                if self._is_cancellation(error):
                    raise RuntimeError(INTERRUPTED) from None
                self.outcome.batch_failure = error
                raise

    def _is_cancellation(self, error: Exception) -> bool:
        """Whether a batch failed because the query is stopped, here or by `spark.streams`."""
        is_sparks = isinstance(error, (Py4JJavaError, PySparkException))
        if not is_sparks or not _CANCELLED.search(str(error)):
            return False
        return self.outcome.is_stopping or not self.inner.isActive

    def _take(self, batch: DataFrame, batch_id: int) -> None:
        """Make a version of a batch. Requires: the lock."""
        with explained(self.loop.root):
            if self.outcome.failure is not None:
                raise self.outcome.failure
            offsets = self.loop.checkpoint.offsets(batch_id)
            facts = {"id": batch_id, "query_id": self.loop.query_id, "offsets": offsets}
            self.loop.catch_up()
            if self.loop.is_replay(facts):
                log.info("Batch %d is in version %d already", batch_id, self.loop.manifest.version)
                with self.turns.making():
                    self.loop.deliver()
                return
            self._run_version(batch, facts)

    def _run_version(self, batch: DataFrame | None, facts: dict[str, Any] | None) -> None:
        observe = None
        if batch is not None:
            observe = lambda: seam.queries.event_time_stats(self.inner.current)  # noqa: E731
        with self.turns.making():
            report = self.loop.run(batch, facts, observe)
        if report is not None:
            self._tell(report)

    def _tell(self, report: VersionReport) -> None:
        """Report a version. It is delivered: whatever goes wrong here is logged, and no more."""
        try:
            sink = self._sink
            told = progress(report, self._reported(), sink.description, sink.delivered_rows)
            self.watch.progressed(told, None if report.batch is None else report.batch["id"])
        except Exception:
            log.warning(
                "Version %d of %s was delivered, but its progress could not be reported",
                report.version,
                self.loop.root,
                exc_info=True,
            )

    def _reported(self) -> ReportedQuery:
        if self._plan_facts is None:
            titles = [stage.operator.title for stage in self.spec.stages]
            has_watermark = seam.frames.has_watermark(self.spec.native)
            self._plan_facts = titles, order_in_spark(self.spec.flow), has_watermark
        names = {"id": self.inner.id, "runId": self.inner.runId, "name": self.spec.name}
        return ReportedQuery(names, *self._plan_facts)

    # -- ticks ---------------------------------------------------------------------------------

    def run_due(self) -> None:
        """Run the versions without data that are due."""
        self._run_ticks(self._ticks.run_due)

    def _tick_if_idle(self) -> None:
        try:
            self._run_ticks(self._ticks.run_one_if_idle)
        except Exception:
            log.exception("A tick failed; the query stops")

    def _run_ticks(self, run: Callable[[], None]) -> None:
        """Run ticks; one that fails is the end of the query."""
        try:
            with explained(self.loop.root):
                run()
        except Exception as error:
            known = unwrapped(error)
            failure = as_end(known) if isinstance(known, HoldfastError) else known
            self.outcome.failure = failure
            raise failure from (failure.__cause__ or None)
        finally:
            self._stop_if_failed()

    def _stop_if_failed(self) -> None:
        """End Spark's query after a tick that failed. Requires: the lock is free.

        Spark waits for the batch it is in, and that batch for the lock.
        """
        if self.outcome.failure is not None:
            self.inner.stop()

    # -- maintenance ---------------------------------------------------------------------------

    def maintain(self) -> None:
        """Merge one partition after the other while no batch waits, then clean up."""
        try:
            self.loop.check_claim()
        except Conflict as conflict:  # an idle driver finds out here that it was overtaken
            self.outcome.failure = as_end(conflict)
            self._stop_if_failed()
            return
        with self.turns.lock:
            due = self.loop.due_merges()
        for place in due:
            self._yield_to_batches()
            with self.turns.lock:
                if self.is_ending:
                    return
                try:
                    self.loop.merge(place)
                except Exception:
                    log.warning("Could not merge %s of %s", place, self.loop.root, exc_info=True)
        self._yield_to_batches()
        self.clean()

    def clean(self) -> None:
        """Remove what no version needs any more."""
        self.loop.clean(self.turns.lock)
        self.has_cleaned = True

    def _yield_to_batches(self) -> None:
        self.turns.yield_to_batches(lambda: not self.outcome.has_ended)
