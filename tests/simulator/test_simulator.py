"""Seeded runs of a stream's own code, with everything around it simulated; see `simulation`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from itertools import product

import pytest
from cases import CASES
from mutations import MUTATIONS, mutated
from simulation.copies import Copy
from simulation.decisions import Decisions
from simulation.scenario import AVAILABLE_NOW, DEFAULT, ONCE, Scenario, Theme
from simulation.shrinking import failure_of, first_failure, report, shrunk
from simulation.world import CHECKPOINT, KEPT_PLANS

from holdfast.errors import Conflict, IllegalState

SEEDS = range(200)
SOAK_FROM = int(os.environ.get("HOLDFAST_SEED", "1000"))
SOAK_SEEDS = int(os.environ.get("HOLDFAST_SEEDS", "100000"))
PARTS = 4
"""Tests that share the seeds, so that they can run beside each other."""
MOST_SEEDS_FOR_A_FAULT = 100
FAULTS = pytest.mark.parametrize("fault", MUTATIONS, ids=[name for name, _ in MUTATIONS])


@pytest.mark.parametrize("part", range(PARTS))
def test_every_seed_keeps_the_promises(part: int) -> None:
    failed = first_failure(SEEDS[part::PARTS])
    assert failed is None, report(failed)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(PARTS))
def test_a_hundred_thousand_seeds_keep_the_promises(part: int) -> None:
    seeds = range(SOAK_FROM + part, SOAK_FROM + SOAK_SEEDS, PARTS)
    started, failed = time.monotonic(), first_failure(seeds)
    rate = len(seeds) / (time.monotonic() - started)
    print(
        f"seeds {seeds[0]} to {seeds[-1]}, one in {PARTS}: {len(seeds)} runs, {rate:.1f} a second"
    )
    assert failed is None, report(failed)


@pytest.mark.parametrize("choices", CASES)
def test_what_failed_once_does_not_fail_again(choices: dict[int, int]) -> None:
    assert failure_of(choices) is None


# -- the simulator finds what it is for ----------------------------------------------------------


@FAULTS
def test_a_fault_that_was_mended_is_found_when_it_comes_back(fault: tuple[str, Theme]) -> None:
    theme = fault[1]
    with mutated(fault):
        failed = first_failure(range(MOST_SEEDS_FOR_A_FAULT), theme)
        assert failed is not None
        print(f"seed {failed}: {Scenario(Decisions(failed), theme).run()}")
    assert Scenario(Decisions(failed), theme).run() is None


def test_a_failing_seed_is_shrunk_to_decisions_that_fail_as_well() -> None:
    fault = next(iter(MUTATIONS))
    with mutated(fault):
        seed = first_failure(SEEDS)
        assert seed is not None
        scenario = Scenario(Decisions(seed))
        scenario.run()
        kept = scenario.world.decisions.kept
        choices = shrunk(kept, lambda each: failure_of(each) is not None, most_runs=40)
        assert failure_of(choices) is not None
        assert len(choices) < len(kept)
    assert failure_of(choices) is None


def test_shrinking_leaves_out_whatever_is_not_needed() -> None:
    small = shrunk(dict.fromkeys(range(100), 1), lambda each: {17, 63} <= each.keys())
    assert set(small) == {17, 63}


@pytest.mark.parametrize("theme", Theme)
def test_a_seed_and_what_it_decided_give_the_same_run(theme: Theme) -> None:
    first = Scenario(Decisions(7), theme)
    first.run()
    kept = first.world.decisions.kept
    assert kept
    for again in (Decisions(7), Decisions(kept=kept)):
        second = Scenario(again, theme)
        second.run()
        assert second.world.scheduler.log == first.world.scheduler.log


def test_runs_meet_what_they_are_meant_to_meet() -> None:
    wanted = {
        "CRASH", "ERROR", "LOST_REPLY", "STALE", "CLOCK", "SINK_FAILS", "SINK_FAILS_LATE",
        "SINK_STOPS", "POWER", ".tmp-", ": stop", ".snapshot", "versions/", "claims/2", ".plan",
        "Initializing",
    }  # fmt: skip
    seen: Counter[str] = Counter()
    for seed, theme in product(range(16), Theme):
        scenario = Scenario(Decisions(seed), theme)
        scenario.run()
        log = "\n".join(scenario.world.scheduler.log)
        seen.update(what for what in wanted if what in log)
        seen.update(scenario.world.journal.counts)
    counts = {"batches", "ticks", "deliveries", "given up", "put back", "power failures"}
    assert wanted | counts <= set(seen), seen


# -- faults that it found, told step by step -----------------------------------------------------


def _all_not_synced(options: int, chance: float) -> int:
    """What goes with the power at its worst."""
    return 1


class Story(Scenario):
    """A run in which everything happens as it is told, and nothing else goes wrong."""

    def __init__(self, tell: Callable[[Story], None], theme: Theme = Theme.STORM) -> None:
        super().__init__(Decisions(), theme)
        self._tell = tell

    def _direct(self) -> None:
        self.configure()
        self._tell(self)

    def is_there(self, path: str) -> bool:
        return self.world.blobs.size(path) is not None


def test_a_stream_starts_after_a_version_behind_a_tick_was_given_up() -> None:
    def tell(story: Story) -> None:
        story.world.source += [[(0, 1, 100)], [(1, 1, 300)]]
        story.end(story.start(AVAILABLE_NOW), "drain")
        tick = story.world.journal.head
        assert tick is not None
        assert (tick.number, sum(tick.out.values())) == (3, 1)
        story.world.source.append([(1, 1, 310)])
        story.end(story.start(ONCE), "drain")
        head = story.world.journal.head
        assert head is not None
        assert head.parent is tick
        story.give_up(head)
        story.last_run()

    assert Story(tell).run() is None


def test_the_newcomer_continues_where_the_older_driver_makes_the_first_version() -> None:
    outcomes = []

    def tell(story: Story) -> None:
        holds = story.world.scheduler.holds
        holds["app-1", "create versions/0"] = lambda: story.is_there("claims/2")
        holds["app-2", "create versions/0"] = lambda: story.is_there("versions/0")
        story.world.source.append([(0, 1, 100)])
        drivers = [story.start(AVAILABLE_NOW) for _ in range(2)]
        for driver in drivers:
            driver.is_alone = False
        for driver in drivers:
            story.end(driver, "drain")
            outcomes.append(driver.error)
        story.last_run()

    assert Story(tell).run() is None
    older, newcomer = outcomes
    assert isinstance(older, Conflict)
    assert newcomer is None


def test_a_driver_does_not_take_state_that_is_being_made_for_state_that_is_gone() -> None:
    outcomes = []

    def tell(story: Story) -> None:
        note = f"{CHECKPOINT}/holdfast-state"
        holds = story.world.scheduler.holds
        holds["app-1", f"read {note}"] = lambda: note in story.world.files.texts
        story.world.source.append([(0, 1, 100)])
        drivers = [story.start(AVAILABLE_NOW) for _ in range(2)]
        for driver in drivers:
            driver.is_alone = False
        for driver in drivers:
            story.end(driver, "drain")
            outcomes.append(driver.error)
        story.last_run()

    assert Story(tell).run() is None
    assert all(error is None or isinstance(error, Conflict) for error in outcomes)


def test_a_newcomer_starts_where_the_driver_before_builds_on_the_tick_it_delivers_again() -> None:
    outcomes = []

    def tell(story: Story) -> None:
        story.world.source += [[(0, 1, 100)], [(1, 1, 300)]]
        story.end(story.start(AVAILABLE_NOW), "drain")
        tick = story.world.journal.head
        assert tick is not None
        assert (tick.number, sum(tick.out.values())) == (3, 1)
        note = f"delivered/3-{tick.manifest.commit_id}"
        assert story.is_there(note)
        holds = story.world.scheduler.holds
        holds["app-2", "create versions/4"] = lambda: story.is_there("claims/3")
        holds["app-3", f"size {note}"] = lambda: not story.is_there(note)
        story.world.source.append([(1, 1, 310)])
        drivers = [story.start(ONCE)]
        drivers[0].is_alone = False
        story.world.scheduler.wait_for(lambda: story.is_there("claims/2"))
        drivers.append(story.start(AVAILABLE_NOW))
        drivers[1].is_alone = False
        for driver in drivers:
            story.end(driver, "drain")
            outcomes.append(driver.error)
        assert story.is_there("versions/4")
        story.last_run()

    assert Story(tell).run() is None
    assert outcomes == [None, None]


def test_a_batch_planned_before_an_old_copy_is_asked_about_and_comes_once() -> None:
    def tell(story: Story) -> None:
        story.into_files = True
        scheduler, texts = story.world.scheduler, story.world.files.texts
        scheduler.holds["app-1", "create versions/1"] = lambda: False
        story.world.source.append([(0, 1, 100)])
        first = story.start(ONCE)
        scheduler.wait_for(lambda: f"{CHECKPOINT}/offsets/0" in texts)
        story.end(first, "kill")
        copy = Copy.of(story.world)
        for number in range(KEPT_PLANS + 1):
            story.end(story.start(ONCE), "drain")
            story.world.source.append([(0, 1, 101 + number)])
        copy.put_back(story.world)
        asked = story.start(AVAILABLE_NOW)
        story.end(asked, "drain")
        assert isinstance(asked.error, IllegalState)
        assert "does not say whether the rows of version 1 are in the sink" in str(asked.error)
        story.last_run()
        assert story.world.journal.counts["doubts"] == 1

    assert Story(tell).run() is None


def test_a_tick_under_way_is_finished_where_its_query_is_stopped_while_a_batch_waits() -> None:
    def tell(story: Story) -> None:
        scheduler, texts = story.world.scheduler, story.world.files.texts

        def has_met(step: str) -> bool:
            return any(f"app-1/{step}" in line for line in scheduler.log)

        scheduler.holds["app-1", "create versions/3"] = lambda: has_met("stream: the stream ends")
        story.world.source += [[(0, 1, 100)], [(1, 1, 300)]]
        driver = story.start(DEFAULT)
        scheduler.wait_for(lambda: has_met("holdfast-ticks: create versions/3"))
        story.world.source.append([(1, 1, 310)])
        scheduler.wait_for(lambda: f"{CHECKPOINT}/offsets/2" in texts)
        story.end(driver, "stop")
        assert driver.error is None
        tick = story.world.journal.head
        assert tick is not None
        assert (tick.number, sum(tick.out.values())) == (3, 1)
        assert story.is_there(f"delivered/3-{tick.manifest.commit_id}")
        story.last_run()

    assert Story(tell).run() is None


def test_files_that_a_sink_has_are_still_whole_after_the_power_failed() -> None:
    def tell(story: Story) -> None:
        story.into_files = True
        story.world.source += [[(0, 1, 100)], [(1, 1, 300)]]
        story.end(story.start(AVAILABLE_NOW), "drain")
        head = story.world.journal.head
        assert head is not None
        assert sum(head.out.values()) == 1
        story.world.lose_power(_all_not_synced)
        story.last_run()

    assert Story(tell, Theme.DISK).run() is None


def test_files_that_a_plan_names_are_still_there_after_the_power_failed() -> None:
    def tell(story: Story) -> None:
        scheduler, texts = story.world.scheduler, story.world.files.texts
        story.into_files = True
        story.world.source.append([(0, 1, 100)])
        story.end(story.start(ONCE), "drain")
        story.world.source.append([(1, 1, 300)])
        scheduler.holds["app-2", "a file was made"] = lambda: False
        second = story.start(ONCE)
        scheduler.wait_for(lambda: sum(path.endswith(".plan") for path in texts) == 2)
        story.end(second, "kill")
        story.world.lose_power(_all_not_synced)
        story.last_run()

    assert Story(tell, Theme.DISK).run() is None
