"""Calls to a server that may be away for a while."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

log = logging.getLogger(__name__)
T = TypeVar("T")
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.1, 4.0


def retried(call: Callable[[], T], passes: Callable[[Exception], bool], limit_ms: int) -> T:
    """What `call` gives, called again while its failure is one that passes by itself.

    Waits double between calls, and differ so that many callers do not come at once. The failure
    at the end of `limit_ms`, and one that does not pass, is raised as it is.
    """
    return Patience(limit_ms).retried(call, passes)


class Patience:
    """What many calls to one server share, by any threads: how long they wait for it in all.

    It ends when none of them has succeeded for `limit_ms`, however many they are.
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit_s = limit_ms / 1000
        self._deadline = time.monotonic() + self._limit_s
        self._is_over = False

    def end(self) -> None:
        """Have no call made again from now on."""
        self._is_over = True

    def retried(self, call: Callable[[], T], passes: Callable[[Exception], bool]) -> T:
        """What `call` gives, called again as `retried` does, while there is patience."""
        wait_s = _FIRST_WAIT_S
        while True:
            try:
                made = call()
            except Exception as error:
                left_s = self._deadline - time.monotonic()
                if left_s <= 0 or self._is_over or not passes(error):
                    raise
                if wait_s == _FIRST_WAIT_S:
                    log.warning("No answer (%s); trying again", type(error).__name__)
            else:
                self._deadline = time.monotonic() + self._limit_s
                return made
            time.sleep(min(wait_s * random.uniform(0.5, 1.0), left_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
