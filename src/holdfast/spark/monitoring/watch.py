"""Everything that follows a query's progress: its history, listeners, metrics, the live line."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.conf import StateStoreConf
from holdfast.spark.interop import seam
from holdfast.spark.monitoring.line import Line, line_of, open_line
from holdfast.spark.monitoring.listeners import Announcer, Listeners
from holdfast.spark.monitoring.metrics import MetricsServer, QueryMetrics
from holdfast.spark.monitoring.progress import complete, idle
from holdfast.spark.running.spark_query import SparkQuery

log = logging.getLogger(__name__)
_PROGRESS_KEPT = 100
_SPARKS_PROGRESS_S = 5.0
"""How long to wait for Spark's own progress of a batch, which follows right after the batch."""


@dataclass(frozen=True)
class _Entry:
    """A version's progress; `batch_id` is that of Spark's batch, None for a tick."""

    progress: dict[str, Any]
    batch_id: int | None


class Watch:
    """Follows one query; `shared` are the listeners of its session."""

    def __init__(self, conf: StateStoreConf, shared: Listeners) -> None:
        self.listeners = Listeners()
        self._shared = shared
        self.metrics = QueryMetrics()
        self._conf = conf
        self._entries: deque[_Entry] = deque(maxlen=_PROGRESS_KEPT)
        self._sources: list[dict[str, Any]] = []
        self._completing = threading.Lock()
        self._ending = threading.Lock()
        self._announcer: Announcer | None = None
        self._line: Line | None = None
        self._inner: SparkQuery
        self._server: MetricsServer | None = None
        if conf.metrics_port >= 0:
            self._server = MetricsServer.join(conf.metrics_port, self.metrics)

    def started(self, inner: SparkQuery) -> None:
        """Spark's query runs. The listeners receive the event before this returns."""
        self._inner = inner
        self.metrics.query = self._name
        if self._conf.progress:
            self._line = open_line()
        idle_interval_s = seam.queries.idle_interval_ms(inner.current) / 1000
        self._announcer = Announcer(self, self.listeners, idle_interval_s, self._shared)

    def progressed(self, progress: dict[str, Any], batch_id: int | None) -> None:
        """A version was delivered."""
        entry = _Entry(progress, batch_id)
        self._entries.append(entry)
        self.metrics.add(progress)
        if self._line is not None:
            self._line.show(line_of(self._name, progress))
        if self._announcer is not None:
            self._announcer.progressed(lambda: self._completed(entry))

    def ended(self, failure: BaseException | None) -> None:
        """The query has ended, or failed to start. Waits for no listener and raises nothing."""
        with self._ending:  # a second call finds nothing left to do
            line, self._line = self._line, None
            if self._announcer is not None:
                self._announcer.terminated(failure)
            try:
                if line is not None:
                    line.close()
                if self._server is not None:
                    self._server.leave(self.metrics)
            except Exception:
                log.warning("The end of the query could not be shown", exc_info=True)

    @property
    def recent(self) -> list[dict[str, Any]]:
        """The progress of the last versions and idle triggers, oldest first."""
        entries = list(self._entries)
        for entry in entries:
            self._complete(entry)
        versions = [entry.progress for entry in entries]
        found = list(versions)
        for told in seam.queries.idle_progress(self._inner.current) if versions else []:
            before = [each for each in versions if each["timestamp"] < told["timestamp"]]
            if before:
                found.append(idle(before[-1], told))
        return sorted(found, key=_timestamp)[-_PROGRESS_KEPT:]

    @property
    def last(self) -> dict[str, Any] | None:
        """The newest progress, of a version or of an idle trigger after it."""
        if not self._entries:
            return None
        entry = self._entries[-1]
        self._complete(entry)
        newest = seam.queries.idle_progress(self._inner.current, newest=True)
        is_idle = bool(newest) and newest[0]["timestamp"] > entry.progress["timestamp"]
        return idle(entry.progress, newest[0]) if is_idle else entry.progress

    @property
    def metrics_url(self) -> str | None:
        """The URL of the metrics; None if they are not served."""
        return None if self._server is None else self._server.url

    def _completed(self, entry: _Entry) -> dict[str, Any]:
        """The progress with its sources, once Spark has reported them."""
        until = time.monotonic() + _SPARKS_PROGRESS_S
        pause_s = 0.01
        while not self._complete(entry) and time.monotonic() < until:
            if not self._inner.isActive:
                self._complete(entry)
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.2)
        return entry.progress

    def _complete(self, entry: _Entry) -> bool:
        """Fill in the sources if Spark has reported them; return whether they are there."""
        progress = entry.progress
        with self._completing:
            if progress["sources"]:
                return True
            if entry.batch_id is None:
                progress["sources"] = [_without_rows(source) for source in self._sources]
                return True
            found = seam.queries.batch_progress(self._inner.current, entry.batch_id)
            if found is not None:
                complete(progress, found)
                self._sources = progress["sources"]
            return found is not None

    # -- what listeners receive about the query ------------------------------------------------

    @property
    def id(self) -> str:
        return str(self._inner.id)

    @property
    def runId(self) -> str:
        return str(self._inner.runId)

    @property
    def name(self) -> str | None:
        return self._inner.name

    @property
    def is_idle(self) -> bool:
        # Before its first trigger a query is starting, not idle.
        inner = self._inner
        has_begun = bool(self._entries) or inner.lastProgress is not None
        return inner.isActive and has_begun and not inner.status["isTriggerActive"]

    @property
    def _name(self) -> str:
        return self._inner.name or self.id


def _timestamp(progress: Mapping[str, Any]) -> str:
    return str(progress["timestamp"])


def _without_rows(source: dict[str, Any]) -> dict[str, Any]:
    """A source in a version without a batch: the same offsets, nothing read."""
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    return {**source, "startOffset": source["endOffset"], "numInputRows": 0, **rates}
