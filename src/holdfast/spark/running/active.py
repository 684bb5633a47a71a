"""The stateful queries of this application, by checkpoint: one at a time may run on each."""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from pyspark.sql import SparkSession

from holdfast.errors import Conflict

log = logging.getLogger(__name__)
_RULE = "spark.sql.streaming.stopActiveRunOnRestart"


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
