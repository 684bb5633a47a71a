"""Calls to a server that may be away for a while."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 4.0


class Retrying:
    """Calls that belong together, each made again while its failure is one that passes by itself.

    They have `limit_ms` together, from the first failure of any of them on: a call that needed all
    its time to fail is made again, too. Nothing is begun after that, so they end with the last call
    that was begun before. Waits double between calls, and differ so that many callers do not come
    at once. Thread-safe.
    """

    def __init__(self, passes: Callable[[Exception], bool], limit_ms: int) -> None:
        self._passes, self._limit_s = passes, limit_ms / 1000
        self._deadline: float | None = None
        self._lock = threading.Lock()

    def call(self, call: Callable[[], T]) -> T:
        """What `call` gives. Its failure at the end, and one that does not pass, is raised."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                return call()
            except Exception as error:
                if not self._passes(error):
                    raise
                left_s = self._left_s(error)
                if left_s <= 0:
                    raise
            time.sleep(min(wait_s * random.uniform(0.5, 1.0), left_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _left_s(self, error: Exception) -> float:
        now = time.monotonic()
        with self._lock:
            if self._deadline is None:
                self._deadline = now + self._limit_s
                log.warning("No answer (%s); trying for %g s", type(error).__name__, self._limit_s)
            return self._deadline - now


def retried(call: Callable[[], T], passes: Callable[[Exception], bool], limit_ms: int) -> T:
    """What `call` gives, made again for `limit_ms` after its first failure, as in `Retrying`."""
    return Retrying(passes, limit_ms).call(call)
