"""Listeners: PySpark's own class, told of Holdfast's queries with PySpark's own events."""

from __future__ import annotations

import atexit
import logging
import threading
import time
import weakref
from collections import deque
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
MOST_WAITING = 1000
"""Versions of a query that wait for its listeners."""
_POLL_S = 0.2
_AT_EXIT_S = 5.0


class Listeners:
    """A set of listeners, in the order they came. Safe to change from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[StreamingQueryListener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

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


class AnnouncedQuery(Protocol):
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

    `own` are told as well as those of all queries. Spark is asked for what they are told only
    while there are any. Of the progress that slow listeners leave waiting, the newest is kept.
    """

    def __init__(self, query: AnnouncedQuery, own: Listeners, idle_interval_s: float) -> None:
        self._query = query
        self._own = own
        self._idle_interval_s = idle_interval_s
        self._changed = threading.Condition()
        self._waiting: deque[Callable[[], dict[str, Any]]] = deque()
        self._end: QueryTerminatedEvent | None = None
        self._has_dropped = False
        self._tell("onQueryStarted", QueryStartedEvent.fromJson(self._facts()))
        self._thread = threading.Thread(target=self._run, name="holdfast-listeners", daemon=True)
        self._thread.start()
        _announcers.add(self)

    def progressed(self, progress: Callable[[], dict[str, Any]]) -> None:
        """A version was delivered. What is to be said of it is asked for when it is told."""
        with self._changed:
            if not self._has_listeners or self._end is not None:
                return
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._warn_of_slowness()
            self._waiting.append(progress)
            self._changed.notify()

    def terminated(self, failure: BaseException | None) -> None:
        """The query has ended. Returns at once; the listeners hear of it after all else."""
        condition = getattr(failure, "getCondition", lambda: getattr(failure, "condition", None))
        facts = {
            **self._facts(),
            "exception": None if failure is None else str(failure),
            "errorClassOnException": condition(),
        }
        with self._changed:
            if self._end is None:
                self._end = QueryTerminatedEvent.fromJson(facts)
                self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait until the listeners know all there is to know, but no longer than that."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def _has_listeners(self) -> bool:
        return bool(_of_all_queries) or bool(self._own)

    def _warn_of_slowness(self) -> None:
        if not self._has_dropped:
            self._has_dropped = True
            log.warning(
                "The listeners of the query %s are too slow: they are not told of every version",
                self._query.name or self._query.id,
            )

    def _run(self) -> None:
        pause_s = self._idle_interval_s
        while True:
            with self._changed:
                if not self._waiting and self._end is None:
                    self._changed.wait(pause_s)
                progress = self._waiting.popleft() if self._waiting else None
                end = self._end
            try:
                if progress is not None:
                    event = QueryProgressEvent(spark_progress(progress()))
                    self._tell("onQueryProgress", event)
                    pause_s = self._idle_interval_s
                elif end is not None:
                    self._tell("onQueryTerminated", end)
                    return
                else:
                    pause_s = self._idle_interval_s if self._tell_if_idle() else _POLL_S
            except Exception:
                log.warning("The listeners could not be told of a version", exc_info=True)

    def _tell_if_idle(self) -> bool:
        """Tell that the query is idle; whether it is, as far as anybody wants to know."""
        if not self._has_listeners:
            return True
        is_idle = self._query.is_idle
        if is_idle:
            self._tell("onQueryIdle", QueryIdleEvent.fromJson(self._facts()))
        return is_idle

    def _tell(self, method: str, event: Any) -> None:
        _of_all_queries.tell(method, event)
        self._own.tell(method, event)

    def _facts(self) -> dict[str, Any]:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        query = self._query
        return {"id": query.id, "runId": query.runId, "name": query.name, "timestamp": stamp}


_announcers: weakref.WeakSet[Announcer] = weakref.WeakSet()


@atexit.register
def _tell_the_rest() -> None:
    """Give the listeners of queries that have ended a moment before the process ends."""
    until = time.monotonic() + _AT_EXIT_S
    for announcer in list(_announcers):
        if announcer._end is not None:
            announcer.join(max(0.0, until - time.monotonic()))
