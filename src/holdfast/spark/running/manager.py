"""The streaming queries of a session together: Spark's own and the stateful ones."""

from __future__ import annotations

import re
import threading
import time

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.monitoring.listeners import listeners_of
from holdfast.spark.running.active import (
    forget_ends,
    has_end,
    is_stateful,
    running,
)
from holdfast.spark.running.query import StatefulQuery

_POLL_S, _PAUSE_S, _AT_ONCE_S = 0.1, 0.01, 0.001
_QUERY = re.compile(r"\bid = (?P<id>[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""How an error of Spark's names the query that it ended."""
_native_listeners: dict[str, list[_NativeQueries]] = {}
"""By session, what `QueryManager.addListener` has added to Spark's own listeners."""
_lock = threading.Lock()


def query_manager(session: SparkSession) -> QueryManager:
    """The streaming queries of a session, Spark's own and Holdfast's; as `spark.streams`.

        holdfast.streams(spark).awaitAnyTermination()

    `session` is a classic SparkSession; raises InvalidArgument for anything else.
    """
    given: object = session
    if not isinstance(given, SparkSession) or not seam.sessions.is_classic(given):
        raise InvalidArgument(
            f"holdfast.streams takes a classic SparkSession, not {type(session).__name__}: call "
            "holdfast.streams(spark)."
        )
    return QueryManager(session)


class QueryManager:
    """What StreamingQueryManager has, over Spark's own queries and the stateful ones.

    `spark.streams` also knows a stateful query, by the part of it that Spark runs: its `stop()`
    ends all of the query, but its progress and its listeners tell of Spark's part alone.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._key = seam.sessions.session_key(session)

    @property
    def active(self) -> list[StreamingQuery | StatefulQuery]:
        """The queries that run, each once; one that is still being started is not among them."""
        native = [each for each in self._session.streams.active if not is_stateful(str(each.id))]
        return [*native, *(query for query in running(self._key) if query.isActive)]

    def get(self, id: str) -> StreamingQuery | StatefulQuery | None:  # noqa: A002 - Spark's name
        """The running query of an id; None if there is none."""
        for query in running(self._key):
            if query.id == str(id) and query.isActive:
                found: StatefulQuery = query
                return found
        return None if is_stateful(str(id)) else self._session.streams.get(str(id))

    def awaitAnyTermination(self, timeout: float | None = None) -> bool | None:
        """Wait until a query ends, at most `timeout` seconds; raises what ended it.

        A query that has ended since the session began, or since `resetTerminated`, counts. Returns
        whether there was one, if there is a timeout. Raises StreamingQueryException for Spark's
        own query that failed, and what `awaitTermination` raises for a stateful one. Raises
        InvalidArgument for a timeout that is not positive.
        """
        if timeout is None:
            while not self._has_end(_POLL_S):
                pass
            return None
        given: object = timeout
        if not isinstance(given, (int, float)) or given <= 0:
            raise InvalidArgument(
                f"awaitAnyTermination takes a positive number of seconds, not {timeout!r}."
            )
        until = time.monotonic() + timeout
        while (left := until - time.monotonic()) > 0:
            if self._has_end(min(_POLL_S, left)):
                return True
        return False

    def resetTerminated(self) -> None:
        """Forget the queries that have ended: `awaitAnyTermination` then waits for the next."""
        forget_ends(self._key)
        self._session.streams.resetTerminated()

    def addListener(self, listener: StreamingQueryListener) -> None:
        """Call `listener` for every query of the session; adding it again changes nothing.

        A version of a stateful query is one event. What Spark tells of its part of that query is
        left out. Raises InvalidArgument if it is no StreamingQueryListener.
        """
        listeners_of(self._key).add(listener)
        with _lock:
            added = _native_listeners.setdefault(self._key, [])
            if not any(each.listener is listener for each in added):
                native = _NativeQueries(listener)
                self._session.streams.addListener(native)
                added.append(native)

    def removeListener(self, listener: StreamingQueryListener) -> None:
        """Stop calling a listener; nothing happens if it was not added here."""
        listeners_of(self._key).remove(listener)
        with _lock:
            added = _native_listeners.get(self._key, [])
            for native in [each for each in added if each.listener is listener]:
                self._session.streams.removeListener(native)
                added.remove(native)

    def _has_end(self, wait_s: float) -> bool:
        """Whether a query has ended, waiting for so long; raises what ended it.

        Spark counts its part of a stateful query as a query of its own. Whether that is the end of
        the stateful one, which may still be on its way, only that one can tell.
        """
        spark_has_end, of_stateful = False, False
        try:
            at_most_s = _AT_ONCE_S if has_end(self._key) else max(wait_s, _AT_ONCE_S)
            spark_has_end = bool(self._session.streams.awaitAnyTermination(at_most_s))  # type: ignore[arg-type]
        except StreamingQueryException as error:
            named = _QUERY.search(str(error))
            of_stateful = named is not None and is_stateful(named["id"])
            if not of_stateful:
                raise
        is_ending = any(query.is_ending for query in running(self._key))
        if has_end(self._key):
            return True
        if is_ending:
            time.sleep(_PAUSE_S)
            return False
        if of_stateful:  # it was started again, or never came to start: Spark is to wait for more
            self._session.streams.resetTerminated()
        return spark_has_end


class _NativeQueries(StreamingQueryListener):
    """Passes on what Spark tells of its own queries, and nothing of its part of stateful ones."""

    def __init__(self, listener: StreamingQueryListener) -> None:
        self.listener = listener

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        if not is_stateful(str(event.id)):
            self.listener.onQueryStarted(event)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        if not is_stateful(str(event.progress.id)):
            self.listener.onQueryProgress(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        if not is_stateful(str(event.id)):
            self.listener.onQueryIdle(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        if not is_stateful(str(event.id)):
            self.listener.onQueryTerminated(event)
