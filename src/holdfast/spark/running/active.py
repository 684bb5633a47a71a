"""The stateful queries of this application, by checkpoint: one at a time may run on each."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Conflict

log = logging.getLogger(__name__)
_RULE = "spark.sql.streaming.stopActiveRunOnRestart"
Take = Callable[[DataFrame, int], None]
"""Makes a version of a batch."""


class Run(Protocol):
    """A run of a query."""

    @property
    def isActive(self) -> bool:
        """Whether it can still commit a version."""
        ...

    @property
    def is_ending(self) -> bool:
        """Whether Spark's part of it is over, and ours follows by itself."""
        ...

    def stop(self) -> None:
        """End it; when this returns it commits no more."""
        ...

    def finish(self) -> None:
        """Wait for the end of a run that is ending."""
        ...


class PendingRun:
    """Stands for a run in its place until it is there, and passes everything on to it.

    Whoever wants something of a run that is being started waits until it is, or has failed to.
    """

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._run: Run | None = None
        self._take: Take | None = None
        self._error: BaseException | None = None

    def started(self, run: Run, take: Take) -> None:
        """The run is there, and takes Spark's batches."""
        self._run, self._take = run, take
        self._settled.set()

    def failed(self, error: BaseException) -> None:
        """The run did not come to start."""
        self._error = error
        self._settled.set()

    def take(self, batch: DataFrame, batch_id: int) -> None:
        """Pass a batch of Spark's on, which may be there before the run."""
        self._settled.wait()
        if self._error is not None:
            raise self._error
        assert self._take is not None
        self._take(batch, batch_id)

    @property
    def isActive(self) -> bool:
        """Whether it can still commit a version."""
        if self._run is None:
            return self._error is None
        return self._run.isActive

    @property
    def is_ending(self) -> bool:
        """Whether Spark's part of it is over, and ours follows by itself."""
        self._settled.wait()
        return self._run is None or self._run.is_ending

    def stop(self) -> None:
        """End it; when this returns it commits no more."""
        self._settled.wait()
        if self._run is not None:
            self._run.stop()

    def finish(self) -> None:
        """Wait for the end of a run that is ending."""
        self._settled.wait()
        if self._run is not None:
            self._run.finish()


_runs: dict[str, Run] = {}
_lock = threading.Lock()


def take_place(session: SparkSession, checkpoint: str, run: Run) -> None:
    """Make a run the one of its checkpoint, by Spark's rule for a query that is started twice.

    An earlier run that is over but not at its end yet is waited for. One that is active is
    stopped, or where `spark.sql.streaming.stopActiveRunOnRestart` is false raises Conflict.
    """
    with _lock:
        earlier = _runs.get(checkpoint)
    if earlier is not None and earlier.isActive:
        if earlier.is_ending:
            earlier.finish()
        elif str(session.conf.get(_RULE, "true")).lower() == "true":
            log.warning("Stopping the query that runs on %s: it is started again", checkpoint)
            earlier.stop()
        else:
            raise Conflict(
                f"A query of this application already runs on the checkpoint {checkpoint}. Stop "
                f"it first, or set {_RULE} to true."
            )
    with _lock:
        if (now := _runs.get(checkpoint)) is not earlier and now is not None and now.isActive:
            raise Conflict(
                f"Another query of this application was just started on the checkpoint "
                f"{checkpoint}. Start it once."
            )
        _runs[checkpoint] = run


def leave_place(checkpoint: str, run: Run) -> None:
    """Forget a run that has ended."""
    with _lock:
        if _runs.get(checkpoint) is run:
            del _runs[checkpoint]
