"""Listeners: PySpark's own class, told of Holdfast's queries with PySpark's own events."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)

from holdfast.errors import InvalidArgument

log = logging.getLogger(__name__)
_OWN_FIELDS = ("version", "isTick")
_POLL_S = 0.2


class Listeners:
    """A set of listeners, in the order they came. Safe to change from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[StreamingQueryListener, ...] = ()

    def add(self, listener: StreamingQueryListener) -> None:
        """Tell a listener from now on; one that is there already stays once."""
        if not isinstance(listener, StreamingQueryListener):
            raise InvalidArgument(
                "A listener is an instance of pyspark.sql.streaming.StreamingQueryListener, not of "
                f"{type(listener).__name__}."
            )
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners = (*self._listeners, listener)

    def remove(self, listener: StreamingQueryListener) -> None:
        """Tell a listener no more; one that is not there is no error."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known is not listener)

    def tell(self, method: str, event: Any) -> None:
        """Call every listener. What one raises is logged and does no harm."""
        for listener in self._listeners:
            try:
                getattr(listener, method)(event)
            except Exception:
                log.warning(
                    "%s of the listener %s failed", method, type(listener).__name__, exc_info=True
                )


_of_all_queries = Listeners()


def addListener(listener: StreamingQueryListener) -> None:
    """Tell a listener of every stateful query of this process, those running included."""
    _of_all_queries.add(listener)


def removeListener(listener: StreamingQueryListener) -> None:
    """Tell a listener added by `addListener` no more."""
    _of_all_queries.remove(listener)


def spark_progress(progress: Mapping[str, Any]) -> StreamingQueryProgress:
    """A progress as PySpark's class: Spark's fields are items and attributes, ours are items."""
    built = StreamingQueryProgress.fromJson(dict(progress))
    dict.update(built, {name: progress[name] for name in _OWN_FIELDS})
    return built


class Told(Protocol):
    """What listeners are told about."""

    @property
    def id(self) -> str: ...
    @property
    def runId(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def is_idle(self) -> bool: ...


class Announcer:
    """Tells the listeners of one query what happens, in order, on a thread of its own.

    `own` are told as well as those of all queries.
    """

    def __init__(self, query: Told, own: Listeners, idle_interval_s: float) -> None:
        self._query = query
        self._own = own
        self._idle_interval_s = idle_interval_s
        self._waiting: queue.SimpleQueue[Callable[[], dict[str, Any]] | QueryTerminatedEvent]
        self._waiting = queue.SimpleQueue()
        self._tell("onQueryStarted", QueryStartedEvent.fromJson(self._facts()))
        self._thread = threading.Thread(target=self._run, name="holdfast-listeners", daemon=True)
        self._thread.start()

    def progressed(self, progress: Callable[[], dict[str, Any]]) -> None:
        """A version was delivered. What is to be said of it is asked for when it is told."""
        self._waiting.put(progress)

    def terminated(self, failure: BaseException | None) -> None:
        """The query has ended. Returns once the listeners know."""
        condition = getattr(failure, "getCondition", lambda: getattr(failure, "condition", None))
        facts = {
            **self._facts(),
            "exception": None if failure is None else str(failure),
            "errorClassOnException": condition(),
        }
        self._waiting.put(QueryTerminatedEvent.fromJson(facts))
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        told_at = time.monotonic()
        while True:
            try:
                event = self._waiting.get(timeout=_POLL_S)
            except queue.Empty:
                if time.monotonic() - told_at >= self._idle_interval_s and self._query.is_idle:
                    self._tell("onQueryIdle", QueryIdleEvent.fromJson(self._facts()))
                    told_at = time.monotonic()
                continue
            if isinstance(event, QueryTerminatedEvent):
                self._tell("onQueryTerminated", event)
                return
            self._tell("onQueryProgress", QueryProgressEvent(spark_progress(event())))
            told_at = time.monotonic()

    def _tell(self, method: str, event: Any) -> None:
        _of_all_queries.tell(method, event)
        self._own.tell(method, event)

    def _facts(self) -> dict[str, Any]:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        query = self._query
        return {"id": query.id, "runId": query.runId, "name": query.name, "timestamp": stamp}
