"""A thread that runs a function at intervals until it is stopped."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

log = logging.getLogger(__name__)


class PeriodicJob:
    """Runs `work` every `interval_ms` on a daemon thread. What `work` raises is logged."""

    def __init__(self, name: str, interval_ms: int, work: Callable[[], None]) -> None:
        self._interval_s = interval_ms / 1000
        self._work = work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, after a round that is under way."""
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            try:
                self._work()
            except Exception:
                log.warning("Error in %s", self._thread.name, exc_info=True)
