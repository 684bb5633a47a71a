"""Calls that fail are made again, for a time that begins with the first failure."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from holdfast.clients import retrying
from holdfast.clients.retrying import Retrier, retried


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


def test_calls_that_belong_together_wait_out_an_outage_once(clock: Clock) -> None:
    together = Retrier(is_timeout, 10_000)
    for number in range(5):
        calls: list[float] = []
        with pytest.raises(TimeoutError):
            together.call(failing(clock, 10**6, 0.0, calls))
        assert (len(calls) > 1) == (number == 0)
    assert clock.now_s <= 1010.5


def test_the_limit_counts_anew_once_a_call_has_succeeded(clock: Clock) -> None:
    together = Retrier(is_timeout, 10_000)
    for _ in range(5):
        calls: list[float] = []
        assert together.call(failing(clock, 3, 0.0, calls)) == "given"
        clock.sleep(10.0)
        assert len(calls) == 4


def test_after_a_failure_no_more_calls_are_made_and_none_is_on_its_way(clock: Clock) -> None:
    begun, ended = [], []

    def call(number: int) -> int:
        begun.append(number)
        if number == 3:
            raise ZeroDivisionError
        if number > 3:
            time.sleep(0.05)
        ended.append(number)
        return number

    with ThreadPoolExecutor(1) as pool:
        calls = [partial(call, number) for number in range(100)]
        with pytest.raises(ZeroDivisionError):
            Retrier(is_timeout, 10_000).call_all(pool, calls)
        assert len(begun) < 100
        assert set(begun) - set(ended) == {3}
        assert Retrier(is_timeout, 10_000).call_all(pool, calls[:3]) == [0, 1, 2]


def test_calls_of_many_threads_are_all_made(clock: Clock) -> None:
    together = Retrier(is_timeout, 10_000)
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda n: together.call(failing(clock, n % 2, 0.0, [])), range(100))
        assert list(found) == ["given"] * 100
