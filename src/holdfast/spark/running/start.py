"""The start of a query: its place is taken, its state opened, then Spark's query started."""

from __future__ import annotations

import threading
from functools import partial

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.conf import StateStoreConf
from holdfast.spark.interop import seam
from holdfast.spark.monitoring.listeners import listeners_of
from holdfast.spark.monitoring.watch import Watch
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.running.active import PendingRun, leave_place, note_id, take_place
from holdfast.spark.running.ending import Ending, is_taken_batch
from holdfast.spark.running.failures import explained
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.running.run import Outcome, QueryRun
from holdfast.spark.running.spark_query import BatchFunction, SparkQuery
from holdfast.spark.sinks.sink import Sink
from holdfast.spark.versions.loop import VersionLoop
from holdfast.spark.versions.opening import LoopOpening


def start_query(spec: QuerySpec, sink: Sink) -> StatefulQuery:
    """Open the state, deliver what a crash left undelivered, start Spark's query."""
    return _Start(spec, sink).run()


class _Start:
    def __init__(self, spec: QuerySpec, sink: Sink) -> None:
        self._spec, self._sink = spec, sink
        self._session = spec.source.sparkSession
        self._conf = StateStoreConf.from_spark(spec.settings)
        self._opening = LoopOpening(spec, sink, self._conf)
        key = seam.sessions.session_key(self._session)
        self._watch = Watch(self._conf, listeners_of(key))
        self._outcome = Outcome()
        self._pending = PendingRun(key, self._opening.home.checkpoint.query_id)
        self._batches = BatchFunction(self._pending.take)
        self._place = seam.files.qualified(self._session, spec.checkpoint)

    def run(self) -> StatefulQuery:
        """Start the query, or take back what was done for it."""
        loop: VersionLoop | None = None
        inner: SparkQuery | None = None
        try:
            take_place(self._session, self._place, self._pending)
            with explained(self._opening.home.root):
                loop = self._opening.open()
                self._sink.start(self._spec.native)
                loop.deliver_leftover()
            inner = SparkQuery(partial(self._begin, loop), partial(self._may_resume, loop))
            self._watch.started(inner)
            return self._started(loop, inner)
        except BaseException as error:
            self._give_up(error, loop, inner)
            raise

    def _started(self, loop: VersionLoop, inner: SparkQuery) -> StatefulQuery:
        run = QueryRun(self._spec, self._sink, self._conf, loop, inner, self._watch, self._outcome)
        ending = Ending(run, self._leave)
        query = StatefulQuery(run, ending)
        self._pending.started(query, run.take)
        threading.Thread(target=ending.follow_spark, name="holdfast-end", daemon=True).start()
        return query

    def _begin(self, loop: VersionLoop) -> StreamingQuery:
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
        begun = seam.queries.start(self._session, self._opening.home.checkpoint, writer)
        loop.known_as(str(begun.id), str(begun.runId))
        note_id(str(begun.id))
        return begun

    def _may_resume(self, loop: VersionLoop, error: BaseException) -> bool:
        """Whether all that ended Spark's query is an older driver that wrote to its logs first.

        That driver has been overtaken and stops before it takes another batch.
        """
        return is_taken_batch(error) and not self._outcome.is_over and loop.has_newest_claim

    def _leave(self) -> None:
        """Let go of the place and of Spark's query, which are those of a run that is over."""
        leave_place(self._place, self._pending)
        self._batches.release()

    def _give_up(
        self, error: BaseException, loop: VersionLoop | None, inner: SparkQuery | None
    ) -> None:
        """Take back a start that failed, and have Spark's query end, if it runs already."""
        self._outcome.failure = error
        self._outcome.has_ended = True
        self._pending.failed(error)
        leave_place(self._place, self._pending)
        try:
            if inner is not None:
                inner.stop()
        finally:
            self._batches.release()
            self._watch.ended(error)
            if loop is not None:
                loop.close()
            if self._spec.is_temporary:
                seam.files.delete(self._session, self._spec.checkpoint)
