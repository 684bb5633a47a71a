"""Two drivers on one checkpoint: exactly one goes on, the other stops with Conflict.

A driver falls asleep at one step of a version, by barriers at the steps of a commit and in the
storage. Meanwhile another one takes over its checkpoint and goes on. Then the first wakes up.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from drivers import KEEP, Driver, World
from pyspark.sql import SparkSession

from holdfast.errors import Conflict, HoldfastError
from holdfast.testing.faults import Call, Fault

pytestmark = pytest.mark.spark
PATIENCE_S = 120


class Sleep:
    """Stops a thread once, until it is woken."""

    def __init__(self) -> None:
        self._asleep, self._awake = threading.Event(), threading.Event()
        self.is_armed = False

    def here(self, *_: object) -> None:
        if self.is_armed:
            self.is_armed = False
            self._asleep.set()
            assert self._awake.wait(PATIENCE_S)

    def wait(self) -> None:
        assert self._asleep.wait(PATIENCE_S), "it never came to where it should sleep"

    def wake(self) -> None:
        self._awake.set()


def method(owner: Callable[[Driver], Any], name: str) -> Callable[[Driver, Sleep], None]:
    """Asleep before a method."""

    def place(driver: Driver, sleep: Sleep) -> None:
        target = owner(driver)
        plain = getattr(target, name)

        def slept(*args: Any, **kwargs: Any) -> Any:
            sleep.here()
            return plain(*args, **kwargs)

        setattr(target, name, slept)

    return place


def call(operation: str, prefix: str) -> Callable[[Driver, Sleep], None]:
    """Asleep before a call of the storage."""

    def place(driver: Driver, sleep: Sleep) -> None:
        def plan(call: Call) -> Fault | None:
            meant = call.operation == operation and call.path.startswith(prefix)
            return Fault.DELAY if meant else None

        driver.faulty.plan = plan
        driver.faulty._sleep = sleep.here

    return place


PLACES: dict[str, tuple[str, Callable[[Driver, Sleep], None]]] = {
    "before its tasks": ("function", method(lambda d: d.loop, "_run_stage")),
    "before the commit": ("function", method(lambda d: d.loop, "_commit")),
    "before the pack": ("function", method(lambda d: d.committer, "_pack")),
    "opening the pack": ("function", call("open_writer", "packs/")),
    "closing the pack": ("function", call("close", "packs/")),
    "listing tags": ("function", call("list", "tags")),
    "before publishing": ("function", method(lambda d: d.versions, "publish")),
    "creating the manifest": ("function", call("create_if_absent", "versions/")),
    "before it delivers": ("function", method(lambda d: d.loop, "_deliver")),
    "before it writes files": ("parquet", method(lambda d: d.sink, "_written")),
    "before its plan": ("parquet", method(lambda d: d.sink, "_names")),
}


@pytest.mark.parametrize("ahead", [1, KEEP + 1])
@pytest.mark.parametrize("place", PLACES)
def test_of_two_drivers_the_one_that_slept_stops_with_a_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, ahead: int
) -> None:
    sink, put_to_sleep = PLACES[place]
    world, sleep = World(spark, tmp_path, sink, monkeypatch), Sleep()
    first = world.driver()
    first.open()
    first.run(0)
    put_to_sleep(first, sleep)
    sleep.is_armed = True
    failures: list[BaseException] = []
    thread = threading.Thread(target=_go_on, args=(first, 1, failures))
    thread.start()
    try:
        sleep.wait()
        second = world.driver()
        second.open()
        for number in range(1, 2 + ahead):
            second.run(number)
        second.loop.clean()
    finally:
        sleep.wake()
        thread.join()
    assert [type(error) for error in failures] == [Conflict]
    second.run(2 + ahead)
    second.loop.clean()
    world.check(3 + ahead)


def _go_on(driver: Driver, number: int, failures: list[BaseException]) -> None:
    """Run a batch and those after it, until something fails."""
    try:
        while True:
            driver.run(number)
            number += 1
    except HoldfastError as error:
        failures.append(error)


def test_of_drivers_that_commit_at_the_same_time_exactly_one_goes_on(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "function", monkeypatch)
    drivers = [world.driver(), world.driver()]
    for each in drivers:
        each.open()
    barrier = threading.Barrier(2, timeout=PATIENCE_S)
    for each in drivers:
        each.faulty._sleep = lambda seconds: barrier.wait() and None
        each.faulty.plan = _at_manifest
    failures: list[BaseException] = []
    threads = [threading.Thread(target=_once, args=(each, failures)) for each in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [type(error) for error in failures] == [Conflict]
    world.check(1)


def _at_manifest(call: Call) -> Fault | None:
    meant = call.operation == "create_if_absent" and call.path.startswith("versions/")
    return Fault.DELAY if meant else None


def _once(driver: Driver, failures: list[BaseException]) -> None:
    try:
        driver.run(0)
    except HoldfastError as error:
        failures.append(error)
