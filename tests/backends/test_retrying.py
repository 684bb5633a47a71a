"""Calls that fail are made again, for a time that begins with the first failure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.backends import retrying
from holdfast.backends.retrying import Retrying, retried


class Clock:
    """Time that passes by being slept or used up."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self._lock = threading.Lock()

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        with self._lock:
            self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    return clock


def failing(clock: Clock, times: int, each_s: float, calls: list[float]) -> Callable[[], str]:
    """A call that takes so long and fails so many times before it gives something."""

    def call() -> str:
        calls.append(clock.now_s)
        clock.sleep(each_s)
        if len(calls) <= times:
            raise TimeoutError
        return "given"

    return call


def is_timeout(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


def test_a_call_that_took_the_whole_limit_to_fail_is_made_again(clock: Clock) -> None:
    calls: list[float] = []
    assert retried(failing(clock, 1, 60.0, calls), is_timeout, 60_000) == "given"
    assert len(calls) == 2


def test_no_call_is_begun_later_than_the_limit_after_the_first_failure(clock: Clock) -> None:
    calls: list[float] = []
    with pytest.raises(TimeoutError):
        retried(failing(clock, 10**6, 60.0, calls), is_timeout, 60_000)
    assert 2 <= len(calls) <= 3
    assert calls[-1] <= 1000.0 + 60.0 + 60.0


@pytest.mark.parametrize("limit_ms", [0, 60_000])
def test_what_does_not_pass_and_what_has_no_time_is_raised_at_once(
    clock: Clock, limit_ms: int
) -> None:
    calls: list[float] = []
    passes = is_timeout if limit_ms == 0 else lambda error: False
    with pytest.raises(TimeoutError):
        retried(failing(clock, 1, 1.0, calls), passes, limit_ms)
    assert len(calls) == 1


def test_calls_that_belong_together_have_one_limit(clock: Clock) -> None:
    together = Retrying(is_timeout, 10_000)
    calls: list[float] = []
    assert together.call(failing(clock, 3, 0.0, calls)) == "given"
    clock.sleep(10.0)
    late: list[float] = []
    with pytest.raises(TimeoutError):
        together.call(failing(clock, 1, 0.0, late))
    assert len(late) == 1


def test_calls_of_many_threads_are_all_made(clock: Clock) -> None:
    together = Retrying(is_timeout, 10_000)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda n: together.call(failing(clock, n % 2, 0.0, [])), range(100))
        assert list(found) == ["given"] * 100
