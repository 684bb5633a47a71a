"""The start of Spark's query, planned as Spark plans the queries that keep state."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.checkpoint import SparkCheckpoint
from holdfast.errors import IllegalState

_ADAPTIVE = "spark.sql.adaptive.enabled"
_SESSION = "sparkSessionForStream"
"""What StreamExecution calls the session it has cloned for its batches."""


class PlainPlanning(StreamingQueryListener):
    """Starts a query whose batches are planned without adaptive execution, as stateful ones are.

    Spark takes a query of ours for one without state and would plan it adaptively: stages found
    empty are then replaced, and the event times they counted are lost with them. The setting
    belongs to the query alone. Spark clones the session for each query, and calls listeners
    between that and the first batch; there the clone is changed, while `start` waits. Neither the
    user's session nor the sink ever sees it.
    """

    def __init__(self, session: SparkSession, checkpoint: SparkCheckpoint) -> None:
        self._session, self._checkpoint = session, checkpoint
        self._failure: Exception | None = None

    def start(self, writer: DataStreamWriter) -> StreamingQuery:
        """Start the query; `check` has to follow, once the query can be stopped."""
        self._session.streams.addListener(self)
        try:
            return writer.start()
        finally:
            self._session.streams.removeListener(self)

    def check(self, query: StreamingQuery) -> None:
        """Raise IllegalState if the query is planned adaptively after all."""
        settings = _settings(query._jsq)
        if settings is None or str(settings.get(_ADAPTIVE)).lower() == "false":
            return
        raise IllegalState(
            f"Spark {self._session.version} plans the query of {self._checkpoint.location} "
            "adaptively, and its watermark would not move. Set spark.sql.adaptive.enabled to "
            "false in the session."
        ) from self._failure

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Change the settings of our query's session; other queries may start meanwhile."""
        try:
            # Spark has written the id before it starts.
            if str(event.id) != self._checkpoint.query_id():
                return
            settings = _settings(self._session.streams._jsqm.get(str(event.id)))
            if settings is not None:
                settings.set(_ADAPTIVE, "false")
        except Exception as error:  # Spark would only log it; `check` finds out
            self._failure = error

    def onQueryProgress(self, event: QueryProgressEvent) -> None: ...

    def onQueryIdle(self, event: QueryIdleEvent) -> None: ...

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None: ...


def _settings(java_query: Any) -> Any | None:
    """The settings of the session that Spark made for a query; None where it has none to see.

    Older Sparks keep that session to themselves.
    """
    execution = java_query.streamingQuery()
    try:
        return execution.sparkSessionForStream().conf()
    except Py4JError:
        kind = execution.getClass()
    while kind is not None:
        for field in kind.getDeclaredFields():
            if str(field.getName()) == _SESSION:
                field.setAccessible(True)
                return field.get(execution).conf()
        kind = kind.getSuperclass()
    return None
