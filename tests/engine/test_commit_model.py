"""The commit protocol holds in every order of events, as far as the bounds of the model go.

`pytest -s tests/engine/test_commit_model.py` prints how many states were visited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from model_checker import Explored, Violation, explore
from protocol_model import KEEP, Bounds, Edges, Protocol, Rules

from holdfast.engine.files.filenames import data_file
from holdfast.engine.files.manifest import SegmentRef
from holdfast.engine.versions import commit, retention
from holdfast.engine.versions.commit import Swap, Verdict

MERGING = Bounds(versions=4, start=2, pauses=1, cleans=1, merges=(1, 0), commits=(2, 1), restarts=1)
FOREIGN = replace(MERGING, commits=(2, 0), restarts=0, spared=False)
TAGGING = Bounds(versions=3, start=2, pauses=1, cleans=2, tags=1, crashes=1, commits=(1, 0))
SLEEPING = Bounds(versions=4, pauses=1, cleans=1, commits=(3, 2))
UNANSWERED = Bounds(versions=3, pauses=1, cleans=1, faults=2, commits=(3, 0))

EXPLORED: dict[str, tuple[Bounds, int, int]] = {
    # name: (bounds, at least so many states, at least so deep)
    "two writers race for each of three versions": (
        Bounds(versions=3, pauses=1, cleans=1), 29_000, 36,
    ),
    "a process crashes anywhere and starts again": (
        Bounds(versions=3, pauses=1, cleans=1, crashes=1, restarts=1, commits=(3, 1)), 100_000, 38,
    ),
    "a reply is lost or a call fails": (
        Bounds(versions=3, pauses=1, cleans=1, faults=1, restarts=1, commits=(3, 1)), 50_000, 40,
    ),
    "a commit without an answer is tried again": (UNANSWERED, 15_000, 30),
    "a writer sleeps while the other goes three versions ahead": (SLEEPING, 34_000, 41),
    "merges wait and are swapped in beside a second writer": (MERGING, 80_000, 39),
    "a clean-up in another process knows of no merge": (FOREIGN, 70_000, 30),
    "a version is tagged while it may be retired": (TAGGING, 50_000, 31),
    "two partitions, one of them packed": (
        Bounds(versions=3, pauses=1, cleans=1, packed=(True, False), commits=(3, 2)), 30_000, 38,
    ),
}  # fmt: skip

EXPLORED_LONGER: dict[str, tuple[Bounds, int, int]] = {
    "two writers, a crash, a restart, a clean-up": (
        Bounds(versions=3, pauses=1, cleans=1, crashes=1, restarts=1), 390_000, 41,
    ),
    "two faults beside a restart": (
        Bounds(versions=3, pauses=1, cleans=1, faults=2, restarts=1, commits=(3, 1)), 300_000, 44,
    ),
    "a crash and a lost reply": (
        Bounds(versions=3, pauses=1, cleans=1, faults=1, crashes=1, restarts=1, commits=(3, 1)),
        280_000, 40,
    ),
    "two pauses and two clean-ups": (
        Bounds(versions=4, pauses=2, cleans=2, commits=(3, 2)), 330_000, 52,
    ),
    "merges of merges, cleaned up by another process": (
        replace(FOREIGN, versions=5, merges=(2, 0), commits=(3, 0)), 1_000_000, 39,
    ),
    "a version is tagged while a writer sleeps": (
        Bounds(versions=4, pauses=1, cleans=1, tags=1, commits=(3, 1)), 380_000, 42,
    ),
    "two tags, two crashes": (
        replace(TAGGING, tags=2, crashes=2), 450_000, 36,
    ),
}  # fmt: skip


def run(bounds: Bounds, rules: Rules | None = None, edges: Edges | None = None) -> Explored:
    protocol = Protocol(bounds, rules or Rules(), edges or Edges())
    return explore(protocol.initial(), protocol.successors, protocol.check)


@pytest.mark.parametrize("name", EXPLORED)
def test_every_order_of_events_keeps_the_promises(name: str) -> None:
    bounds, states, depth = EXPLORED[name]
    explored = run(bounds)
    print(f"\n{name}: {explored}")
    assert explored.states >= states
    assert explored.depth >= depth


@pytest.mark.soak
@pytest.mark.parametrize("name", EXPLORED_LONGER)
def test_every_order_of_more_events_keeps_the_promises(name: str) -> None:
    bounds, states, depth = EXPLORED_LONGER[name]
    explored = run(bounds)
    print(f"\n{name}: {explored}")
    assert explored.states >= states
    assert explored.depth >= depth


def test_exploration_visits_each_state_once() -> None:
    def successors(state: int) -> list[tuple[str, int]]:
        return [("double", state * 2 % 7), ("add", (state + 1) % 7)]

    explored = explore(0, successors, lambda before, after: None)
    assert (explored.states, explored.transitions, explored.depth) == (7, 14, 4)


# The rules, each with a mistake in it


def any_manifest_is_mine(created: bool | None, existing: str | None, mine: str) -> Verdict:
    return commit.judge_create(created, existing and mine, mine)


def no_answer_is_success(created: bool | None, existing: str | None, mine: str) -> Verdict:
    return commit.judge_create(created is not False, existing, mine)


def created_is_committed(verdict: Verdict, *facts: Any) -> Verdict:
    return verdict


def newer_is_conflict(
    verdict: Verdict, version: int, commit_id: str, newest: int | None, next_parent: str | None
) -> Verdict:
    return commit.still_newest(verdict, version, commit_id, newest, None)


def retires_the_second(times: Any, tagged: Any, keep: int, now: int, grace: int) -> list[int]:
    return [v for v in times if v < max(times) and v not in tagged and now - times[v + 1] >= grace]


def retires_at_once(times: Any, tagged: Any, keep: int, now: int, grace: int) -> list[int]:
    return retention.retired_versions(times, tagged, keep, now, 0)


def retires_tagged(times: Any, tagged: Any, keep: int, now: int, grace: int) -> list[int]:
    return retention.retired_versions(times, (), keep, now, grace)


def retires_nothing(*facts: Any) -> list[int]:
    return []


def spares_nothing(listed: Any, kept: Any, spared: Any, now: int, grace: int) -> list[str]:
    return retention.dead_files(listed, kept, (), now, grace)


def keeps_the_newest_only(listed: Any, kept: Any, spared: Any, now: int, grace: int) -> list[str]:
    newest = {version: manifest for version, manifest in kept.items() if version == max(kept)}
    return retention.dead_files(listed, newest, spared, now, grace)


def takes_what_comes_next(listed: Any, kept: Any, spared: Any, now: int, grace: int) -> list[str]:
    dead = retention.dead_files(listed, kept, spared, now, grace)
    above = [path for path in listed if (name := data_file(path)) and name.version > max(kept)]
    return dead + above


def keeps_every_loser(listed: Any, kept: Any, spared: Any, now: int, grace: int) -> list[str]:
    newest = {version: manifest for version, manifest in kept.items() if version == max(kept)}
    dead = retention.dead_files(listed, kept, spared, now, grace)
    return [path for path in dead if (name := data_file(path)) and name.version not in newest]


RULE_MUTATIONS: dict[str, tuple[str, Callable[..., Any], Bounds, str]] = {
    "the commit id is not compared": (
        "judge_create", any_manifest_is_mine, Bounds(versions=1), "told versions are history",
    ),
    "no answer counts as success": (
        "judge_create", no_answer_is_success, Bounds(versions=1, faults=1),
        "told versions are history",
    ),
    "a version created late is not looked at again": (
        "still_newest", created_is_committed, SLEEPING, "told versions are history",
    ),
    "nobody ever looks again": (
        "may_have_aged", lambda waited, grace: False, SLEEPING, "told versions are history",
    ),
    "only one version is kept": (
        "retired_versions", retires_the_second, Bounds(versions=3, pauses=1, cleans=1),
        "promised versions are readable",
    ),
    "versions retire without grace": (
        "retired_versions", retires_at_once, Bounds(versions=3, pauses=1, cleans=1),
        "promised versions are readable",
    ),
    "nothing retires": (
        "retired_versions", retires_nothing, Bounds(versions=3),
        "clean-up leaves nothing for ever",
    ),
    "waiting merges are not spared": (
        "dead_files", spares_nothing, MERGING, "waiting merges are spared",
    ),
    "only the newest version's files are needed": (
        "dead_files", keeps_the_newest_only,
        Bounds(versions=5, start=2, pauses=1, cleans=1, merges=(2, 0), commits=(3, 0)),
        "promised versions are readable",
    ),
    "files above the newest version are removed": (
        "dead_files", takes_what_comes_next, Bounds(versions=3, pauses=1, cleans=1),
        "promised versions are readable",
    ),
    "files of losers stay": (
        "dead_files", keeps_every_loser, Bounds(versions=1), "clean-up leaves nothing for ever",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RULE_MUTATIONS)
def test_a_wrong_rule_is_caught(name: str) -> None:
    rule, mutation, bounds, broken = RULE_MUTATIONS[name]
    with pytest.raises(Violation) as caught:
        run(bounds, replace(Rules(), **{rule: mutation}))
    assert caught.value.rule == broken, str(caught.value)


def test_taking_back_a_version_others_built_on_is_caught() -> None:
    rules = replace(Rules(), still_newest=newer_is_conflict, is_stray=lambda mine, parent: True)
    with pytest.raises(Violation) as caught:
        run(Bounds(versions=2, commits=(1, 1)), rules)
    assert caught.value.rule == "promised versions are readable"


def test_tags_that_nobody_reads_are_caught() -> None:
    rules = replace(Rules(), retired_versions=retires_tagged)
    with pytest.raises(Violation) as caught:
        run(replace(TAGGING, crashes=0), rules, Edges(tags_unmarked=True))
    assert caught.value.rule == "clean-up leaves nothing for ever"


@pytest.mark.soak
def test_taking_back_a_version_that_nobody_can_place_is_caught() -> None:
    rules = replace(Rules(), is_stray=lambda mine, parent: parent != mine)
    with pytest.raises(Violation) as caught:
        run(Bounds(versions=4, pauses=1, cleans=1, tags=1, commits=(1, 3), spared=False), rules)
    assert caught.value.rule == "promised versions are readable"


def swap_in_what_is_left(segments: tuple[SegmentRef, ...], swap: Swap) -> tuple[SegmentRef, ...]:
    rest = tuple(ref for ref in segments if ref.name not in swap.inputs)
    return segments if swap.output in rest else (swap.output, *rest)


def swap_in_alone(segments: tuple[SegmentRef, ...], swap: Swap) -> tuple[SegmentRef, ...]:
    swapped = REAL_SWAP_IN(segments, swap)
    return tuple(ref.without_inputs() for ref in swapped)


REAL_SWAP_IN = commit.swap_in
MERGED_TWICE = replace(MERGING, merges=(1, 1), pauses=0, cleans=0)


def test_swapping_in_where_the_inputs_do_not_stand_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "swap_in", swap_in_what_is_left)
    with pytest.raises(Violation) as caught:
        run(replace(MERGED_TWICE, spared=False))
    assert caught.value.rule == "versions never change"


def test_a_merge_without_anything_to_fall_back_on_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit, "swap_in", swap_in_alone)
    with pytest.raises(Violation) as caught:
        run(FOREIGN)
    assert caught.value.rule == "promised versions are readable"


# The orders of storage calls, each with a mistake in it

EDGE_MUTATIONS: dict[str, tuple[Edges, Bounds, str]] = {
    "what was opened counts as the newest": (
        Edges(trusts_what_it_opened=True), Bounds(versions=3, pauses=1, cleans=1, commits=(3, 1)),
        "told versions are history",
    ),
    "the clock is read after the create": (
        Edges(clock_after_create=True), SLEEPING, "told versions are history",
    ),
    "the writer goes on with what it sent": (
        Edges(keeps_own_manifest=True), UNANSWERED, "promised versions are readable",
    ),
    "an abort removes files a manifest may name": (
        Edges(discards="always"), replace(UNANSWERED, packed=(False,)),
        "promised versions are readable",
    ),
    "a late conflict removes files of the history": (
        Edges(discards="on conflict"),
        Bounds(versions=4, pauses=1, cleans=1, commits=(3, 1), packed=(False,)),
        "promised versions are readable",
    ),
    "merges are asked for before files are listed": (
        Edges(spares_before_listing=True), MERGING, "waiting merges are spared",
    ),
    "versions retire without a mark": (
        Edges(tags_unmarked=True), TAGGING, "promised versions are readable",
    ),
    "a tag looks for marks last": (
        Edges(marks_looked_for_last=True), TAGGING, "promised versions are readable",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGE_MUTATIONS)
def test_a_wrong_order_of_calls_is_caught(name: str) -> None:
    edges, bounds, broken = EDGE_MUTATIONS[name]
    with pytest.raises(Violation) as caught:
        run(bounds, edges=edges)
    assert caught.value.rule == broken, str(caught.value)


def test_a_violation_tells_the_way_there() -> None:
    rules = replace(Rules(), judge_create=any_manifest_is_mine)
    with pytest.raises(Violation) as caught:
        run(Bounds(versions=1), rules)
    assert caught.value.trace[0] == "a lists: nothing"
    assert "is told that 1 is committed" in caught.value.trace[-1]
    assert KEEP == 2
