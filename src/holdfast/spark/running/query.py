"""The running query as its user sees it: what Spark's StreamingQuery has, and more."""

from __future__ import annotations

from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener, StreamingQueryProgress

from holdfast.reading import LiveState, Root, choose_store
from holdfast.spark.monitoring.listeners import spark_progress
from holdfast.spark.monitoring.metrics import metrics_text
from holdfast.spark.running.ending import Ending
from holdfast.spark.running.run import QueryRun


class StatefulQuery:
    """A running stateful stream; has what StreamingQuery has."""

    def __init__(self, run: QueryRun, ending: Ending) -> None:
        self._run, self._ending = run, ending
        self._inner, self._watch = run.inner, run.watch

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
        return self._run.spec.name

    @property
    def isActive(self) -> bool:
        """Whether the query is running, or has ticks to run after its last batch."""
        return not self._run.outcome.has_ended

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of the query."""
        return self._inner.status

    @property
    def version(self) -> int:
        """The newest committed version."""
        return self._run.loop.manifest.version

    def state(self, operator: int | None = None, store: str | None = None) -> LiveState:
        """The state of the newest version, to be read while the query runs; see `holdfast.read`."""
        root = Root(self._run.loop.versions.storage)
        return LiveState(choose_store(root, operator, store))

    @property
    def recentProgress(self) -> list[StreamingQueryProgress]:
        """Progress of the last versions, and of idle triggers between them, oldest first."""
        return [spark_progress(told) for told in self._watch.recent]

    @property
    def lastProgress(self) -> StreamingQueryProgress | None:
        """Progress of the last version, or of an idle trigger after it."""
        told = self._watch.last
        return None if told is None else spark_progress(told)

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
        return self._ending.exception()

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
            self._ending.raise_end(error)
        if self._run.has_ticks:
            self._run.run_due()
        self._ending.raise_failure()

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for the end of the query; raises what ended it."""
        try:
            ended = self._inner.awaitTermination(timeout)
        except StreamingQueryException as error:
            self._ending.raise_end(error)
        if timeout is None or ended:
            self._ending.finish()
        self._ending.raise_failure()
        return ended

    def stop(self) -> None:
        """End the query after the batch in flight.

        Where a function of the user's calls it with the rows of a version without data, the query
        ends when the function has returned.
        """
        self._ending.stop()

    @property
    def is_ending(self) -> bool:
        """Whether the query ends by itself: its Spark query has, or it failed."""
        return self._run.is_ending

    def finish(self) -> None:
        """Wait for the end of a query that is ending."""
        self._ending.finish()
