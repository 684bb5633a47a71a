"""Two drivers on one checkpoint: the newcomer continues, the older one stops with Conflict.

A driver falls asleep at one step of a version, by barriers at the steps of a commit and in the
storage. Meanwhile another one claims its checkpoint. The first wakes up before or after the
newcomer has run a batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from drivers import KEEP, Driver, World
from pyspark.sql import SparkSession

from holdfast.errors import Conflict, HoldfastError, IllegalState
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
    "before its tasks": ("function", method(lambda d: d.loop._computation, "_run_stage")),
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


@contextmanager
def first_asleep(
    world: World, put_to_sleep: Callable[[Driver, Sleep], None]
) -> Iterator[list[BaseException]]:
    """A driver that falls asleep in its second batch, and wakes up at the end of the block.

    Gives what it fails with, which is there after the block.
    """
    first, sleep = world.driver(), Sleep()
    first.open()
    first.run(0)
    put_to_sleep(first, sleep)
    sleep.is_armed = True
    failures: list[BaseException] = []
    thread = threading.Thread(target=_go_on, args=(first, 1, failures))
    thread.start()
    try:
        sleep.wait()
        yield failures
    finally:
        sleep.wake()
        thread.join()


@pytest.mark.parametrize("ahead", [1, KEEP + 1])
@pytest.mark.parametrize("place", PLACES)
def test_of_two_drivers_the_one_that_slept_stops_with_a_conflict(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, ahead: int
) -> None:
    sink, put_to_sleep = PLACES[place]
    world = World(spark, tmp_path, sink, monkeypatch)
    with first_asleep(world, put_to_sleep) as failures:
        second = world.driver()
        second.open()
        for number in range(1, 2 + ahead):
            second.run(number)
        second.loop.clean()
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


@pytest.mark.parametrize(
    "place", ["before its tasks", "creating the manifest", "before it delivers", "before its plan"]
)
def test_what_an_overtaken_driver_still_commits_is_adopted_by_the_newcomer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    sink, put_to_sleep = PLACES[place]
    world = World(spark, tmp_path, sink, monkeypatch)
    with first_asleep(world, put_to_sleep) as failures:
        second = world.driver()
        second.open()
    assert [type(error) for error in failures] == [Conflict]
    assert f"process {os.getpid()} on" in str(failures[0])
    for number in range(1, 4):
        second.run(number)
    world.check(4)


def test_an_older_driver_that_commits_first_does_not_stop_the_newcomer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "function", monkeypatch)
    older, newcomer = world.driver(), world.driver()
    older.open()
    sleep = Sleep()
    call("create_if_absent", "versions/")(older, sleep)
    sleep.is_armed = True
    failures: list[BaseException] = []
    thread = threading.Thread(target=_go_on, args=(older, 0, failures))
    thread.start()
    try:
        sleep.wait()
        newcomer.open()

        def wake_the_older(*_: object) -> None:
            sleep.wake()
            thread.join()

        newcomer.faulty._sleep = wake_the_older
        newcomer.faulty.plan = _at_manifest
        newcomer.run(0)
    finally:
        sleep.wake()
        thread.join()
    assert [type(error) for error in failures] == [Conflict]
    newcomer.run(1)
    world.check(2)


def test_a_newcomer_that_dies_after_its_claim_leaves_the_checkpoint_to_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "function", monkeypatch)
    older, dead = world.driver(), world.driver()
    older.open()
    older.run(0)
    dead.open()
    with pytest.raises(Conflict, match="has taken over"):
        older.run(1)
    following = world.driver()
    following.open()
    for number in range(1, 3):
        following.run(number)
    world.check(3)


def test_a_start_that_is_refused_does_not_stop_the_driver_that_runs(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "function", monkeypatch)
    running, refused = world.driver(), world.driver()
    running.open()
    running.run(0)
    note = tmp_path / "cp" / "holdfast-state"
    noted = note.read_text()
    note.write_text("another state\n")
    with pytest.raises(IllegalState, match="belongs to the state"):
        refused.open()
    note.write_text(noted)
    running.run(1)
    world.check(2)


def _at_manifest(call: Call) -> Fault | None:
    meant = call.operation == "create_if_absent" and call.path.startswith("versions/")
    return Fault.DELAY if meant else None
