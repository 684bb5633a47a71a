"""Listeners: PySpark's StreamingQueryListener, called for Holdfast's queries."""

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
"""How many versions of a query may wait for slow listeners."""
_POLL_S = 0.2
_AT_EXIT_S = 5.0


class Listeners:
    """Listeners in the order they were added. Safe to change from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: tuple[StreamingQueryListener, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, listener: StreamingQueryListener) -> None:
        """Add a listener; adding it again changes nothing.

        Raises InvalidArgument if it is not a StreamingQueryListener.
        """
        if not isinstance(listener, StreamingQueryListener):
            raise InvalidArgument(
                "A listener is an instance of pyspark.sql.streaming.StreamingQueryListener, not of "
                f"{type(listener).__name__}."
            )
        with self._lock:
            if not any(known is listener for known in self._listeners):
                self._listeners = (*self._listeners, listener)

    def remove(self, listener: StreamingQueryListener) -> None:
        """Remove a listener; nothing happens if it was not added."""
        with self._lock:
            self._listeners = tuple(known for known in self._listeners if known is not listener)

    def tell(self, method: str, event: Any) -> None:
        """Call a method of every listener. Exceptions are logged and stop nothing."""
        for listener in self._listeners:
            try:
                getattr(listener, method)(event)
            except Exception:
                log.warning(
                    "%s of the listener %s failed", method, type(listener).__name__, exc_info=True
                )


_of_all_queries = Listeners()
_of_sessions: dict[str, Listeners] = {}


def listeners_of(session: str) -> Listeners:
    """The listeners of a session's queries, by the session's key."""
    return _of_sessions.setdefault(session, Listeners())


def addListener(listener: StreamingQueryListener) -> None:
    """Call `listener` for every stateful query of this process, also those already running.

    `holdfast.streams(spark).addListener` is for the queries of one session, and calls the listener
    for Spark's own as well; add a listener to one of the two. `listener` is a
    pyspark.sql.streaming.StreamingQueryListener. Its methods are called on a thread of the query,
    in order, and what they raise is logged. Adding it again changes nothing. Raises
    InvalidArgument if it is no StreamingQueryListener.
    """
    _of_all_queries.add(listener)


def removeListener(listener: StreamingQueryListener) -> None:
    """Stop calling `listener`, which `addListener` added; does nothing if it was not added."""
    _of_all_queries.remove(listener)


def spark_progress(progress: Mapping[str, Any]) -> StreamingQueryProgress:
    """A progress as PySpark's class; Spark's fields are also attributes, ours only items."""
    built = StreamingQueryProgress.fromJson(dict(progress))
    dict.update(built, {name: progress[name] for name in _OWN_FIELDS})
    for operator, told in zip(built.stateOperators, progress["stateOperators"], strict=True):
        dict.update(operator, {"operatorId": told["operatorId"]})
    return built


class AnnouncedQuery(Protocol):
    """The facts about a query that listeners receive."""

    @property
    def id(self) -> str: ...
    @property
    def runId(self) -> str: ...
    @property
    def name(self) -> str | None: ...
    @property
    def is_idle(self) -> bool: ...


class Announcer:
    """Calls the listeners of one query in order, on a separate thread.

    `own` are the query's listeners, `shared` those of its session; those of `addListener` are
    called as well. Events are computed
    only while there are listeners, because that asks Spark. If listeners are too slow, the oldest
    waiting progress is dropped.
    """

    def __init__(
        self,
        query: AnnouncedQuery,
        own: Listeners,
        idle_interval_s: float,
        shared: Listeners | None = None,
    ) -> None:
        self._query = query
        self._audiences = (_of_all_queries, shared or Listeners(), own)
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
        """A version was delivered. Its progress is computed only when a listener gets it."""
        with self._changed:
            if not self._has_listeners or self._end is not None:
                return
            if len(self._waiting) >= MOST_WAITING:
                self._waiting.popleft()
                self._warn_of_slowness()
            self._waiting.append(progress)
            self._changed.notify()

    def terminated(self, failure: BaseException | None) -> None:
        """The query has ended. Returns at once; the listeners get this event last."""
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
        """Wait until the listeners have received every event, but at most `timeout_s`."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def _has_listeners(self) -> bool:
        return any(self._audiences)

    def _warn_of_slowness(self) -> None:
        if not self._has_dropped:
            self._has_dropped = True
            log.warning(
                "The listeners of the query %s are too slow: they miss some versions",
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
                log.warning("A version could not be reported to the listeners", exc_info=True)

    def _tell_if_idle(self) -> bool:
        """Report that the query is idle; return whether it is and there is anyone to report to."""
        if not self._has_listeners:
            return True
        is_idle = self._query.is_idle
        if is_idle:
            self._tell("onQueryIdle", QueryIdleEvent.fromJson(self._facts()))
        return is_idle

    def _tell(self, method: str, event: Any) -> None:
        for listeners in self._audiences:
            listeners.tell(method, event)

    def _facts(self) -> dict[str, Any]:
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        query = self._query
        return {"id": query.id, "runId": query.runId, "name": query.name, "timestamp": stamp}


_announcers: weakref.WeakSet[Announcer] = weakref.WeakSet()


@atexit.register
def _tell_the_rest() -> None:
    """Let the listeners of ended queries finish, for a moment, before the process ends."""
    until = time.monotonic() + _AT_EXIT_S
    for announcer in list(_announcers):
        if announcer._end is not None:
            announcer.join(max(0.0, until - time.monotonic()))
