"""A run of a world: data, drivers, faults and restarts, all of them decided by one seed."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pyspark.errors import StreamingQueryException

from holdfast.engine.files.filenames import manifest_path
from holdfast.errors import Conflict, HoldfastError, IllegalState
from holdfast.spark.pipeline.flow import Flow, Input, Stage
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.running.start import start_query
from simulation.consoles import roll_back
from simulation.copies import Copy
from simulation.decisions import Decisions
from simulation.frames import Frame
from simulation.journal import Version
from simulation.operators import INPUT, Row, Totals
from simulation.sinks import RecordingFiles, RecordingFunction
from simulation.spark import Run
from simulation.threads import Event, Process
from simulation.world import CHECKPOINT, OUT, Application, World, inhabited

DEFAULT: dict[str, Any] = {}
AVAILABLE_NOW = {"availableNow": True}
ONCE = {"once": True}
_DOUBT = re.compile(
    r"put back, and (?P<folder>\S+) does not say .* add "
    r"(?P<plan>\d+\.(?P<commit>\w+)\.plan) with the text (?P<text>\{.*\})\."
)
_MOST_DOUBTS = 3
_STOPS = 0.05
"""How often a function of the user's stops its query."""
_EXPECTED = (HoldfastError, StreamingQueryException, OSError, RuntimeError)
"""What a run may end with where storage, sinks or another driver get in its way."""


class Theme(Enum):
    """What a run is mostly about."""

    STORM = "everything goes wrong now and then"
    DUEL = "two drivers, and nothing goes wrong"
    SINKS = "sinks fail"
    REPAIR = "somebody takes a version away, or puts a copy back"
    DISK = "processes die within their writes to a local disk, and the power fails"
    ROLLBACK = "somebody goes back to an earlier version, beside a driver or without one"


@dataclass
class Driver:
    """An application with one query on the checkpoint."""

    application: Application
    trigger: Mapping[str, Any]
    polls: int = 0
    """How often its user asks for all that is there, before waiting for the end."""
    attempts: int = 1
    """How often its user starts the query, if it fails."""
    is_alone: bool = True
    """Whether it is the only driver of its time."""
    is_newcomer: bool = False
    """Whether it was started when the other driver of its time had been running."""
    is_stopped: bool = False
    """Whether it was told to stop."""
    query: StatefulQuery | None = None
    error: BaseException | None = None
    is_over: bool = False


class Scenario:
    """One run. `failure` says what did not hold, if something did not."""

    def __init__(self, decisions: Decisions, theme: Theme | None = None) -> None:
        self.world = World(decisions)
        self._theme = theme or decisions.one_of(tuple(Theme))
        if self._theme is Theme.DISK:
            self.world.move_to_disk()
        self._decisions = decisions
        self._drivers: list[Driver] = []
        self._consoles: list[Application] = []
        self._moment = 100
        self._copy: Copy | None = None
        self._is_fair = True
        self._has_given_up = False
        self._director = Process("director")
        self._director.may_crash = False

    def run(self) -> str | None:
        """Run it; what did not hold, None if all did."""
        level = logging.root.manager.disable
        logging.disable(logging.CRITICAL)
        try:
            with inhabited(self.world):
                self.world.scheduler.run(self._director, self._direct)
        finally:
            logging.disable(level)
        return self.world.scheduler.failure

    # -- what happens --------------------------------------------------------------------------

    def _direct(self) -> None:
        self.configure()
        weather = self._weather()
        self.add_data(0)
        for _ in range(self._decisions.one_of((2, 1, 3, 4))):
            self.world.scheduler.chances = weather
            self._phase()
            self.calm_down()
            self.check()
            self._meddle()
        self.last_run()

    def configure(self) -> None:
        """Choose what kind of query it is, and its settings."""
        one_of = self._decisions.one_of
        self.into_files = one_of((False, True))
        if self._theme is Theme.REPAIR:
            self.into_files = one_of((True, True, True, False))
        self.world.journal.rings = one_of((False, True))
        self.world.most_chunks = one_of((1, 3))
        self._settings = {
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.minBatchesToRetain": "2",
            "spark.sql.streaming.stateStore.minDeltasForSnapshot": "2",
            "spark.sql.streaming.stateStore.maintenanceInterval": one_of(("200ms", "60s")),
            "spark.holdfast.gracePeriod": one_of(("600ms", "60s")),
            "spark.holdfast.mergeFanout": "2",
            "spark.holdfast.maxSegments": one_of(("24", "3")),
            "spark.holdfast.keepCopies": one_of(("off", "on")),
            "spark.holdfast.locality": "off",
        }

    def _weather(self) -> dict[Event, float]:
        """Choose how often what goes wrong; in fair weather nothing but the order is open."""
        one_of = self._decisions.one_of
        self._is_fair = self._theme is Theme.DUEL
        if self._is_fair:
            return {Event.SWITCH: one_of((0.05, 0.01, 0.3))}
        if self._theme is Theme.SINKS:
            fails, fails_late = one_of((0.15, 0.4)), one_of((0.0, 0.1))
            return {
                Event.SWITCH: one_of((0.01, 0.05, 0.3)),
                Event.SINK_FAILS: fails, Event.SINK_FAILS_LATE: fails_late,
                Event.SINK_STOPS: _STOPS,
            }  # fmt: skip
        if self._theme is Theme.DISK:
            return {
                Event.SWITCH: one_of((0.0, 0.01, 0.05)),
                Event.CRASH: one_of((0.002, 0.0, 0.005)),
                Event.POWER: one_of((0.002, 0.0, 0.005)),
                Event.SINK_FAILS: one_of((0.0, 0.1)),
            }  # fmt: skip
        return {
            Event.SWITCH: one_of((0.0, 0.01, 0.05, 0.3)),
            Event.CRASH: one_of((0.0, 0.002, 0.01)),
            Event.ERROR: one_of((0.0, 0.002, 0.02)),
            Event.LOST_REPLY: one_of((0.0, 0.002, 0.02)),
            Event.STALE: one_of((0.0, 0.1)),
            Event.CLOCK: one_of((0.0, 0.002)),
            Event.SINK_FAILS: one_of((0.0, 0.1, 0.3)),
            Event.SINK_FAILS_LATE: one_of((0.0, 0.1)),
            Event.SINK_STOPS: _STOPS,
        }

    def settle(self, error: BaseException | None) -> bool:
        """Do what a file sink asks for that cannot tell whether it has a version; if it asks."""
        asked = _DOUBT.search(str(error)) if isinstance(error, IllegalState) else None
        if asked is None:
            return False
        world, folder = self.world, asked["folder"]
        world.journal.counts["doubts"] += 1
        if world.journal.is_in_files(asked["commit"]):
            world.files.texts[f"{folder}/{asked['plan']}"] = asked["text"]
            return True
        for path in [each for each in world.files.texts if each.startswith(f"{folder}/")]:
            if path.endswith(".plan"):
                del world.files.texts[path]
        return True

    def _meddle(self) -> None:
        """What people do to a checkpoint while nothing runs on it, as docs/recovery.md has it."""
        for driver in self._drivers:
            if self.settle(driver.error):
                driver.error = None
        if self._theme is Theme.ROLLBACK and self._decisions.one_of((True, False)):
            self._roll_back()
        if self._theme in (Theme.DISK, Theme.ROLLBACK):
            return
        is_likely = self._theme is Theme.REPAIR
        chances = {1: 0.35, 2: 0.3, 3: 0.3} if is_likely else {1: 0.05, 2: 0.05, 3: 0.05}
        choice = self._decisions.pick(chances)
        head = self.world.journal.head
        if choice == 1 and head is not None and head.delivers and not self._has_given_up:
            assert head.parent is not None
            if self.world.blobs.size(manifest_path(head.parent.number)) is not None:
                self.give_up(head)  # retention has left one to continue from
        self._has_given_up = choice == 1
        if choice == 2:
            self._copy = Copy.of(self.world)
        if choice == 3 and self._copy is not None and self.into_files:
            self._copy.put_back(self.world)

    def _roll_back(self) -> None:
        """Somebody goes back, from a process that may die meanwhile, and need not wait for it."""
        one_of, scheduler = self._decisions.one_of, self.world.scheduler
        console = Application(self.world, f"console-{len(self._consoles) + 1}", self._settings)
        self._consoles.append(console)
        for driver in self._drivers:
            driver.is_alone = driver.is_alone and _has_ended(driver)
        steps, is_over = one_of((1, 2, 3)), False

        def operate() -> None:
            nonlocal is_over
            with suppress(*_EXPECTED):
                roll_back(self.world, console, steps)
            is_over = True

        scheduler.spawn("operator", console, operate)
        if one_of((True, False)):
            scheduler.wait_for(lambda: is_over or console.is_dead, 60_000)

    def give_up(self, head: Version) -> None:
        """Take the newest version for damaged, and Spark back to the batch after the last one."""
        assert head.parent is not None
        blobs, texts = self.world.blobs, self.world.files.texts
        path = manifest_path(head.number)
        blobs.create_if_absent(f"{path}.damaged", bytes(blobs.read(path)))
        blobs.delete(path)
        batch = head.parent.manifest.batch
        last = -1 if batch is None else batch["id"]
        for log, most in (("commits", last), ("offsets", last + 1)):
            start = f"{CHECKPOINT}/{log}/"
            for name in [each for each in texts if each.startswith(start)]:
                if int(name.removeprefix(start)) > most:
                    del texts[name]
        self.world.journal.given_up()

    def _phase(self) -> None:
        """A driver on the checkpoint, perhaps a second one; data meanwhile; some end."""
        one_of, scheduler = self._decisions.one_of, self.world.scheduler
        known, is_duel = len(self._drivers), self._theme is Theme.DUEL
        self.add_data(one_of((3, 2, 4) if is_duel else (1, 0, 2)))
        triggers = (DEFAULT, AVAILABLE_NOW, ONCE)
        if self._theme is Theme.SINKS:
            triggers = (DEFAULT, DEFAULT, *triggers)
        attempts = 1 if is_duel else one_of((1, 2, 3))
        driver = self.start(one_of(triggers), one_of((0, 1, 3)), attempts)
        ways = ("drain", "stop") if is_duel else ("drain", "stop", "kill")
        other = None
        if is_duel or one_of((False, False, False, True)):
            scheduler.sleep(one_of((20, 1, 60, 300)))
            driver.is_alone = False
            has_begun = driver.query is not None
            other = self.start(one_of((DEFAULT, AVAILABLE_NOW)))
            other.is_alone, other.is_newcomer = False, has_begun
        for _ in range(one_of((1, 0, 2))):
            scheduler.sleep(one_of((20, 1, 100, 300)))
            self.add_data(one_of((1, 0, 2)))
            if self._theme is Theme.ROLLBACK and one_of((True, False)):
                self._roll_back()
        if other is not None:
            self.end(other, one_of(ways))
        self.end(driver, one_of(ways))
        drivers = self._drivers[known:]
        for each in drivers:
            self._check_outcome(each)
        is_well = any(each.error is None or each.is_stopped for each in drivers)
        is_in_doubt = any(_DOUBT.search(str(each.error)) for each in drivers)
        is_well = is_well or is_in_doubt or not self._is_fair
        self.world.journal.hold(is_well, "all drivers failed in fair weather")

    def _check_outcome(self, driver: Driver) -> None:
        """In fair weather the newest driver ends well, and an older one by a conflict at most."""
        error, name = driver.error, driver.application.name
        is_claimant = driver.application is self.world.journal.claimant
        is_newest = driver.is_alone or driver.is_newcomer or is_claimant
        # A driver that is stopped while it loses an entry of Spark's logs is not started again.
        may_conflict = driver.is_stopped if is_newest else True
        is_well = error is None or (isinstance(error, Conflict) and may_conflict)
        is_well = is_well or _DOUBT.search(str(error)) is not None
        promise = f"{name} failed in fair weather: {error!r}"
        self.world.journal.hold(is_well or not self._is_fair, promise)

    def add_data(self, chunks: int) -> None:
        for _ in range(chunks):
            self._moment += self._decisions.one_of((30, 5, 80))
            rows: list[Row] = []
            for _ in range(self._decisions.one_of((1, 2, 3))):
                moment = self._moment - self._decisions.one_of((0, 10, 25, 60))
                rows.append((self._decisions.one_of((0, 1, 2)), 1 + len(rows), moment))
            self.world.source.append(rows)

    # -- drivers -------------------------------------------------------------------------------

    def start(self, trigger: Mapping[str, Any], polls: int = 0, attempts: int = 1) -> Driver:
        name = f"app-{len(self._drivers) + 1}"
        application = Application(self.world, name, self._settings)
        is_alone = all(console.is_dead for console in self._consoles)
        driver = Driver(application, trigger, polls, attempts, is_alone)
        self._drivers.append(driver)
        self.world.scheduler.spawn("user", application, lambda: self._use(driver))
        return driver

    def _use(self, driver: Driver) -> None:
        """What the user's program does: start the query, wait for its end, try again."""
        while driver.attempts > 0:
            driver.attempts -= 1
            driver.error = driver.query = None
            try:
                self._run_query(driver)
                break
            except _EXPECTED as error:
                driver.error = error
                is_own = driver.is_alone and isinstance(error, Conflict)
                self.world.journal.hold(not is_own, f"a conflict with nobody: {error!r}")
        driver.is_over = True

    def _run_query(self, driver: Driver) -> None:
        application = driver.application
        application.run, application.stop_query = Run(), None
        sink = RecordingFiles(application) if self.into_files else RecordingFunction(application)
        try:
            query = start_query(self._spec(application, driver.trigger), sink)
            driver.query, application.stop_query = query, query.stop
            for _ in range(driver.polls):
                query.processAllAvailable()
            query.awaitTermination()
        finally:
            application.run.is_over = True  # it may be started again, by whomever

    def _spec(self, application: Application, trigger: Mapping[str, Any]) -> QuerySpec:
        source = Frame.of(application.session, INPUT, [[]])
        operator = Totals(rings=self.world.journal.rings)
        stage = Stage(operator, (Input(Flow.of(source), source),), source)
        return QuerySpec(
            flow=Flow.of(stage),
            native=source,
            mode="append",
            checkpoint=CHECKPOINT,
            trigger=trigger,
            name=None,
            settings=self._settings,
        )

    def end(self, driver: Driver, how: str) -> None:
        """End a driver from outside, or wait until it has ended by itself."""
        scheduler, application = self.world.scheduler, driver.application
        if how == "kill":
            if not application.is_dead:
                scheduler.kill(application)
            return
        if driver.trigger or how == "drain":
            scheduler.wait_for(lambda: _has_ended(driver), 2_000)
        if not _has_ended(driver):
            scheduler.spawn("stopper", application, lambda: self._stop(driver))
            scheduler.wait_for(lambda: _has_ended(driver), 60_000)
            is_over = _has_ended(driver)
            self.world.journal.hold(is_over, f"{application.name} did not stop")

    def _stop(self, driver: Driver) -> None:
        application = driver.application
        driver.attempts, driver.is_stopped = 0, True
        self.world.scheduler.wait_for(lambda: driver.query is not None or _has_ended(driver))
        if driver.query is not None:
            try:
                driver.query.stop()
            except _EXPECTED as error:
                driver.error = driver.error or error
            application.run.is_over = True

    def calm_down(self) -> None:
        """Nothing goes wrong from here on; processes that still run are ended."""
        scheduler = self.world.scheduler
        scheduler.chances = {Event.SWITCH: scheduler.chances.get(Event.SWITCH, 0)}
        for driver in self._drivers:
            if not driver.application.is_dead and not driver.is_over:
                scheduler.kill(driver.application)
        for driver in self._drivers:
            driver.application.is_dead = True
        self._end_consoles()
        scheduler.sleep(1)
        scheduler.skew_ms = 0

    def _end_consoles(self) -> None:
        """Whoever is still at a command line is interrupted."""
        for console in self._consoles:
            if not console.is_dead:
                self.world.scheduler.kill(console)
            console.is_dead = True

    def check(self) -> None:
        world = self.world
        world.journal.check_state()
        if self.into_files:
            world.journal.check_files(world.files.texts, OUT, is_end=False)

    def last_run(self) -> None:
        """With nothing in its way a driver brings everything to its end."""
        self._end_consoles()
        driver = self._run_to_end()
        for _ in range(_MOST_DOUBTS):
            if not self.settle(driver.error):
                break
            driver = self._run_to_end()
        journal = self.world.journal
        journal.hold(driver.error is None, f"the last run failed: {driver.error!r}")
        if driver.error is None:
            journal.check_end()
            self.check()
            if self.into_files:
                journal.check_files(self.world.files.texts, OUT, is_end=True)

    def _run_to_end(self) -> Driver:
        driver = self.start(self._decisions.one_of((AVAILABLE_NOW, DEFAULT)))
        scheduler = self.world.scheduler
        if driver.trigger:
            scheduler.wait_for(lambda: driver.is_over)
        else:
            scheduler.wait_for(lambda: driver.is_over or driver.query is not None)
            scheduler.spawn("drainer", driver.application, lambda: self._drain(driver))
            scheduler.wait_for(lambda: driver.is_over)
        return driver

    def _drain(self, driver: Driver) -> None:
        if driver.query is not None:
            with suppress(*_EXPECTED):  # awaitTermination raises it as well
                driver.query.processAllAvailable()
                driver.query.stop()


def _has_ended(driver: Driver) -> bool:
    return driver.is_over or driver.application.is_dead
