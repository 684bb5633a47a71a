"""Retries calls to a server that may be unavailable for a while."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, Executor, wait
from typing import TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 4.0


class Retrier:
    """Retries calls that belong together, as long as `passes` says that a failure is temporary.

    They wait for the server together, whichever threads make them, and give up when `limit_ms` have
    passed since a failure without any success. The time counts from that failure, not from the
    start of the call: a call that took all of it to fail is also tried again. Pauses double between
    calls, and are varied so that many callers do not return at once. Thread-safe.
    """

    def __init__(self, passes: Callable[[Exception], bool], limit_ms: int) -> None:
        self._passes, self._limit_s = passes, limit_ms / 1000
        self._deadline: float | None = None
        self._is_over = False
        self._lock = threading.Lock()

    def call(self, call: Callable[[], T]) -> T:
        """Return what `call` returns. Raises its last failure, or one that is not temporary."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                given = call()
            except Exception as error:
                if not self._passes(error):
                    raise
                left_s = self._left_s(error)
                if left_s <= 0:
                    raise
            else:
                with self._lock:
                    self._deadline = None
                return given
            time.sleep(min(wait_s * random.uniform(0.5, 1.0), left_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _left_s(self, error: Exception) -> float:
        now = time.monotonic()
        with self._lock:
            if self._is_over:
                return 0.0
            if self._deadline is None:
                self._deadline = now + self._limit_s
                log.warning("No answer (%s); trying for %g s", type(error).__name__, self._limit_s)
            return self._deadline - now

    def call_all(self, pool: Executor, calls: Iterable[Callable[[], T]]) -> list[T]:
        """Make calls in the threads of `pool`; return the results. The first failure is raised.

        After a failure no more calls are made, and those in flight have ended.
        """
        made = [pool.submit(self.call, call) for call in calls]
        try:
            wait(made, return_when=FIRST_EXCEPTION)
        finally:
            with self._lock:
                self._is_over = True
            ended = [future for future in made if not future.cancel()]
            wait(ended)
        return [future.result() for future in ended]


def retried(call: Callable[[], T], passes: Callable[[Exception], bool], limit_ms: int) -> T:
    """Return what `call` returns, retried for `limit_ms` after its first failure (`Retrier`)."""
    return Retrier(passes, limit_ms).call(call)
