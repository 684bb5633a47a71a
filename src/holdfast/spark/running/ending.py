"""The end of a run: by itself, by a failure, or because somebody stops it."""

from __future__ import annotations

import contextlib
import logging
import re
import threading
from collections.abc import Callable
from typing import NoReturn

from pyspark.errors import StreamingQueryException

from holdfast.errors import Conflict, HoldfastError
from holdfast.spark.interop import seam
from holdfast.spark.running.active import note_end
from holdfast.spark.running.failures import as_end, unwrapped
from holdfast.spark.running.run import QueryRun

log = logging.getLogger(__name__)
_TAKEN_BATCH = re.compile(
    "CONCURRENT_STREAM_LOG_UPDATE|Multiple streaming (jobs detected|queries are concurrently using)"
)


def is_taken_batch(error: BaseException) -> bool:
    """Whether Spark's logs of batches or files say that another driver has written to them."""
    return _TAKEN_BATCH.search(str(error)) is not None


class Ending:
    """Brings a run to its end, once, and says what ended it."""

    def __init__(self, run: QueryRun, leave: Callable[[], None]) -> None:
        self._run, self._loop, self._spec = run, run.loop, run.spec
        self._outcome, self._leave = run.outcome, leave
        self._session = seam.sessions.session_key(run.spec.source.sparkSession)
        self._lock = threading.Lock()
        self._end_told: BaseException | None = None
        """What ended Spark's query, once it was asked for."""

    # -- what ended it -------------------------------------------------------------------------

    def exception(self) -> BaseException | None:
        """What ended the query, if it failed."""
        return self._outcome.failure or self._told(self._run.inner.exception())

    def raise_failure(self) -> None:
        """Raise what a tick or maintenance has failed of, if one has."""
        if self._outcome.failure is not None:
            raise self._outcome.failure

    def raise_end(self, error: StreamingQueryException) -> NoReturn:
        """Raise what ended the query, once it commits no more: it may be started again at once."""
        self.finish()
        raise self._outcome.failure or self._told(error) or error

    def _told(self, error: BaseException | None) -> BaseException | None:
        """What ended Spark's query, in Holdfast's words where another driver did.

        A driver that was overtaken fails wherever it notices first: in a batch, in Spark's logs.
        """
        if error is not None and self._end_told is None:
            batch_failure = self._outcome.batch_failure
            conflict = self._loop.overtaken()
            if conflict is None and is_taken_batch(error):
                conflict = Conflict(
                    f"Another driver continues with the checkpoint {self._spec.checkpoint}: it has "
                    "taken the batch that this one was about to take. This one must stop."
                )
            known = conflict or unwrapped(batch_failure or error)
            if isinstance(known, HoldfastError):
                self._end_told = as_end(known)
                self._end_told.__cause__ = self._end_told.__cause__ or error
            else:
                error.__cause__ = batch_failure
                self._end_told = error
        return self._end_told

    # -- the end -------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the query after the batch in flight."""
        self._outcome.is_stopping = True
        self._run.inner.stop()
        self.finish()

    def follow_spark(self) -> None:
        """End when Spark's query does, also where nobody waits for it.

        Whoever ends that one by `spark.streams` has stopped all of it: nothing follows by itself.
        """
        with contextlib.suppress(Exception):  # exception() tells it
            self._run.inner.awaitTermination()
        if not self._run.ends_by_itself:
            self._outcome.is_stopping = True
        try:
            self.finish()
        except Exception:
            log.warning("The end of the query %s went wrong", self._spec.name, exc_info=True)

    def finish(self) -> None:
        """Bring the query to its end, once; whoever comes second waits.

        A function of the user's that is given a version does not: the end waits for the version.
        """
        if self._run.turns.is_maker:
            return
        with self._lock:
            if not self._outcome.has_ended:
                try:
                    self._finish()
                finally:
                    self._outcome.has_ended = True
                    try:
                        note_end(self._session, self.exception())
                    finally:
                        self._leave()
        self._run.watch.ended(self.exception())

    def _finish(self) -> None:
        run = self._run
        run.stop_threads()
        if self.exception() is None:
            if run.ends_by_itself and run.has_ticks:
                with contextlib.suppress(Exception):  # exception() tells it
                    run.run_due()
            self._note_delivered()
            self._clean_once()
        self._loop.close()
        self._drop_temporary()

    def _note_delivered(self) -> None:
        """Spare the next start a second delivery; where that fails, it delivers once more."""
        try:
            with self._run.turns.lock:
                self._loop.note_delivered()
        except Exception:
            log.warning("Could not note what %s has delivered", self._loop.root, exc_info=True)

    def _clean_once(self) -> None:
        """Clean up at the end of a run that was too short for it, such as one by a timetable."""
        if self._run.has_cleaned or self._spec.is_temporary:
            return
        try:
            self._run.clean()
        except Exception:
            log.warning("Could not clean up %s", self._loop.root, exc_info=True)

    def _drop_temporary(self) -> None:
        """Remove a temporary checkpoint, unless it may tell why the query failed."""
        session = self._spec.source.sparkSession
        force = session.conf.get("spark.sql.streaming.forceDeleteTempCheckpointLocation", "false")
        if self._spec.is_temporary and (self.exception() is None or str(force) == "true"):
            seam.files.delete(session, self._spec.checkpoint)
