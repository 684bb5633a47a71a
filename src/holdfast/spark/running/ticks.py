"""Ticks: versions without data, run exactly when Spark would run a batch without data."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, Protocol

from holdfast.streams.version import MOST_TICKS

log = logging.getLogger(__name__)
_LOOKS, _BETWEEN_LOOKS_S = 6, 0.005
"""Between triggers Spark waits for as little as 10 ms: whoever looks seldom would never see it."""
_IDLE_MESSAGES = frozenset({"Waiting for data to arrive", "Waiting for next trigger"})


class TickLoop(Protocol):
    """What makes the versions of a query."""

    root: str

    def is_tick_due(self, until_ms: int) -> bool:
        """Whether a version without data would change something by then, as far as is known."""
        ...


def is_idle(status: Mapping[str, Any]) -> bool:
    """Whether Spark's last trigger found no data, by the status of its query.

    A query that is starting, or between the choice of a batch and its begin, shows the same two
    flags; only the message tells them apart. A tick there would overtake the batch.
    """
    is_waiting = str(status["message"]) in _IDLE_MESSAGES
    return is_waiting and not (status["isDataAvailable"] or status["isTriggerActive"])


class Ticks:
    """Runs what is due of one query, never beside a batch and never once the query is over.

    `run` makes one version without data; `status` is Spark's of the query; `is_over` says that
    the query has failed or is being stopped.
    """

    def __init__(
        self,
        loop: TickLoop,
        lock: RLock,
        run: Callable[[], None],
        status: Callable[[], Mapping[str, Any]],
        is_over: Callable[[], bool],
    ) -> None:
        self._loop, self._lock, self._run = loop, lock, run
        self._status, self._is_over = status, is_over

    def run_due(self, most: int | None = None) -> None:
        """Run what is due by now, up to `most` versions; the rest is left to the next call."""
        until_ms = _now_ms()
        with self._lock:
            for _ in range(MOST_TICKS if most is None else most):
                if self._is_over() or not self._loop.is_tick_due(until_ms):
                    return
                self._run()
            if most is None and self._loop.is_tick_due(until_ms):
                log.warning(
                    "After %d versions without data of %s timers are still due: those that fire "
                    "register others for the past. They are left for later.",
                    MOST_TICKS,
                    self._loop.root,
                )

    def run_one_if_idle(self) -> None:
        """Run one version that is due, if Spark waits for data and no batch is under way.

        Spark is asked only when something is due: an idle query costs next to nothing.
        """
        for _ in range(_LOOKS):
            if self._is_over() or not self._loop.is_tick_due(_now_ms()):
                return
            if self._run_one():
                return
            time.sleep(_BETWEEN_LOOKS_S)

    def _run_one(self) -> bool:
        """Run one version if Spark waits for data; whether it did. No batch comes meanwhile."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            may_run = not self._is_over() and is_idle(self._status())
            if may_run:
                self.run_due(most=1)
            return may_run
        finally:
            self._lock.release()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
