"""Spark's own query under a stateful one."""

from __future__ import annotations

import logging
import math
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)
_MOST_RESUMED = 5
"""An overtaken driver writes at most one entry to each of Spark's two logs before it stops."""


INTERRUPTED = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling a batch of a query that was "
    "stopped: java.lang.InterruptedException"
)
"""What Spark takes for the end of a stopped query. It looks by a pattern for which a real error,
with its Java stack, is so long that Spark's thread overflows its own."""


class BatchFunction:
    """The function that Spark calls with each batch, until it is released.

    Py4J keeps the function while the JVM has Spark's query, and the JVM keeps Spark's query while
    Python has it. No garbage collector sees that circle: a function that still reached the query
    after its end would keep both, and every plan they made, for as long as the driver lives.
    """

    def __init__(self, take: Callable[[DataFrame, int], None]) -> None:
        self._take: Callable[[DataFrame, int], None] | None = take
        self._failure: BaseException | None = None
        """What the last batch let out, most often because its query was stopped."""

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        take = self._take
        if take is None:
            raise RuntimeError(INTERRUPTED)
        try:
            take(batch, batch_id)
        except BaseException as failure:
            self._failure = failure
            raise

    def release(self) -> None:
        """Let go of the query, whose batches are over, and of the frames of what ended it.

        The error stays whole but for the local variables of its frames.
        """
        self._take = None
        failure, self._failure = self._failure, None
        seen: set[int] = set()
        # PySpark's wrapper of this function keeps the error, its traceback the query.
        while failure is not None and id(failure) not in seen:
            seen.add(id(failure))
            traceback.clear_frames(failure.__traceback__)
            failure = failure.__cause__ or failure.__context__


class SparkQuery:
    """The query that brings the batches; started again where an older driver ended it.

    Two drivers on one checkpoint race for the next entry of Spark's logs, whoever of them is to
    continue, and Spark's query ends where it comes second. `may_resume` says of what ended it
    that this was all, and the query is started once more: it replays what the other one wrote.
    """

    def __init__(
        self, start: Callable[[], StreamingQuery], may_resume: Callable[[BaseException], bool]
    ) -> None:
        self._start, self._may_resume = start, may_resume
        self._lock = threading.Lock()
        self._is_stopped = False
        self._resumed = 0
        self._current = start()

    @property
    def current(self) -> StreamingQuery:
        """The query as it runs now. While it is being started again, this waits."""
        with self._lock:
            return self._current

    @property
    def id(self) -> str:
        """The query's id, the same across restarts."""
        return str(self.current.id)

    @property
    def runId(self) -> str:
        """The id of its present run."""
        return str(self.current.runId)

    @property
    def name(self) -> str | None:
        """The query's name."""
        return self.current.name

    @property
    def status(self) -> dict[str, Any]:
        """Spark's status of it."""
        return self.current.status

    @property
    def lastProgress(self) -> Any:
        """Spark's last progress."""
        return self.current.lastProgress

    @property
    def isActive(self) -> bool:
        """Whether it runs."""
        current = self.current
        return current.isActive or self._resume(current, current.exception())

    def exception(self) -> StreamingQueryException | None:
        """What ended it, if it failed."""
        current = self.current
        error = current.exception()
        return self.current.exception() if self._resume(current, error) else error

    def explain(self, extended: bool = False) -> None:
        """Spark's plan of it."""
        self.current.explain(extended)

    def processAllAvailable(self) -> None:
        """Wait until Spark has run all data at hand; raises what ended it."""
        while True:
            current = self.current
            try:
                return current.processAllAvailable()
            except StreamingQueryException as error:
                if not self._resume(current, error):
                    raise

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        """Wait for its end, at most so many seconds; raises what ended it."""
        started, left = time.monotonic(), timeout
        while True:
            current = self.current
            try:
                return current.awaitTermination(left)
            except StreamingQueryException as error:
                if not self._resume(current, error):
                    raise
            if timeout is not None:
                left = max(1, math.ceil(started + timeout - time.monotonic()))

    def stop(self) -> None:
        """End it, and start it no more."""
        with self._lock:
            self._is_stopped = True
        self.current.stop()

    def _resume(self, ended: StreamingQuery, error: BaseException | None) -> bool:
        """Whether another run follows the one that ended; starts it if nobody has yet."""
        if error is None:
            return False
        with self._lock:
            if self._current is not ended:
                return True
            is_last = self._is_stopped or self._resumed >= _MOST_RESUMED
            if is_last or not self._may_resume(error):
                return False
            self._resumed += 1
            log.warning("An older driver wrote to Spark's logs at the same time; resuming")
            self._current = self._start()
            return True
