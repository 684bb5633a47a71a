"""What a timeout cuts off costs its own test, and no later one."""

from __future__ import annotations

import signal
import sys
import threading
from typing import Any

import pytest
from pyspark.sql import SparkSession
from waiting import until

pytestmark = pytest.mark.spark


class CutOff(BaseException):
    """Raised by a signal, as pytest-timeout raises."""


def _raise(*_: Any) -> None:
    raise CutOff


def _awaits_an_answer(thread: int) -> bool:
    """Whether a thread is in a call of the JVM."""
    frame = sys._current_frames()[thread]
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names[0] == "readinto" and "send_command" in names


def test_after_a_call_that_was_cut_off_the_next_gets_its_own_answer(spark: SparkSession) -> None:
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    latch = spark._jvm.java.util.concurrent.CountDownLatch(1)
    seconds = spark._jvm.java.util.concurrent.TimeUnit.SECONDS

    def cut_off() -> None:
        until(lambda: _awaits_an_answer(main))
        signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, _raise)
    try:
        wait = getattr(latch, "await")
        helper = threading.Thread(target=cut_off)
        helper.start()
        with pytest.raises(CutOff) as caught:
            wait(60, seconds)
    finally:
        helper.join()
        signal.signal(signal.SIGUSR1, before)
    assert latch.getCount() == 1
    latch.countDown()
    assert [spark.range(n).count() for n in (1, 2)] == [1, 2]
    del caught
