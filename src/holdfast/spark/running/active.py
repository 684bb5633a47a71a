"""The stateful queries of this application: one at a time on each checkpoint, and by session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import Conflict
from holdfast.spark.running.failures import without_frames

log = logging.getLogger(__name__)
_RULE = "spark.sql.streaming.stopActiveRunOnRestart"
Take = Callable[[DataFrame, int], None]
"""Makes a version of a batch."""


class Run(Protocol):
    """A run of a query."""

    @property
    def id(self) -> str:
        """What Spark calls the query."""
        ...

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
    `session` is the key of its session, and `find_id` gives the query's id from its checkpoint
    once Spark has written it there.
    """

    def __init__(self, session: str, find_id: Callable[[], str | None]) -> None:
        self.session = session
        self._find_id = find_id
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

    @property
    def query(self) -> Any | None:
        """The run as its user sees it; None before it has started, and where it failed to."""
        return self._run

    def is_starting_as(self, query_id: str) -> bool:
        """Whether it is being started as the query of an id."""
        if self._settled.is_set():
            return False
        try:
            return self._find_id() == query_id
        except Exception:  # whatever hides the id: the start itself will tell
            log.debug("The id of a starting query could not be read", exc_info=True)
            return False

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


_runs: dict[str, PendingRun] = {}
_lock = threading.Lock()


def take_place(session: SparkSession, checkpoint: str, run: PendingRun) -> None:
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


def leave_place(checkpoint: str, run: PendingRun) -> None:
    """Forget a run that has ended."""
    with _lock:
        if _runs.get(checkpoint) is run:
            del _runs[checkpoint]


# -- by session ----------------------------------------------------------------------------------

_MOST_KNOWN = 10_000
_known_ids: dict[str, None] = {}
"""Spark's ids of stateful queries, the newest last: Spark may tell of one after its end."""
_ends: dict[str, BaseException | None] = {}
"""By session, what a query that has ended failed of, if one has; without its frames, which would
keep the query."""


def note_id(query_id: str) -> None:
    """Take note that Spark's query of an id is under a stateful one."""
    with _lock:
        _known_ids.pop(query_id, None)
        _known_ids[query_id] = None
        while len(_known_ids) > _MOST_KNOWN:
            del _known_ids[next(iter(_known_ids))]


def is_stateful(query_id: str) -> bool:
    """Whether Spark's query of an id is under a stateful one, also one that is over."""
    with _lock:
        if query_id in _known_ids:
            return True
        runs = list(_runs.values())
    return any(run.is_starting_as(query_id) for run in runs)


def running(session: str) -> list[Any]:
    """The queries of a session whose end is not noted yet, as their users see them."""
    with _lock:
        runs = [run for run in _runs.values() if run.session == session]
    return [run.query for run in runs if run.query is not None]


def note_end(session: str, failure: BaseException | None) -> None:
    """Take note that a query of a session has ended; a failure stays until it is forgotten."""
    kept = None if failure is None else without_frames(failure)
    with _lock:
        _ends[session] = kept or _ends.get(session)


def has_end(session: str) -> bool:
    """Whether a query of a session has ended; raises what one of them failed of."""
    with _lock:
        failure = _ends.get(session)
        is_there = session in _ends
    if failure is not None:
        raise without_frames(failure)
    return is_there


def forget_ends(session: str) -> None:
    """Forget the queries of a session that have ended."""
    with _lock:
        _ends.pop(session, None)
