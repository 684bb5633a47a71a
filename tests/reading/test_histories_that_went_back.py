"""A history that went back is read like any other: each version is held to a dict of its own."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import admin
from holdfast.reading import open_root

State = dict[tuple[Any, ...], tuple[Any, ...]]
KEY, VALUE, KEYS = "user string, day int", "total long", 24


@dataclass
class Past:
    """A store with an index, what each of its versions holds, and those that went back."""

    root: Path
    states: dict[int, State]
    returns: dict[int, int]
    """The version each rollback made, and that which it went back to."""


def changed(root: Path, state: State, chance: random.Random, partitions: int) -> State:
    """Commit one version with random changes, the bound of evicted days among them."""
    conf = {"min_versions_to_retain": 100}
    with holdfast.open(
        root, KEY, VALUE, partitions=partitions, key_index_ordinal=1, conf=conf
    ) as db:
        with db.update() as store:
            for _ in range(chance.randrange(8)):
                key = (f"user {chance.randrange(4)}", chance.randrange(KEYS))
                if chance.random() < 0.3:
                    store.remove(key)
                else:
                    store.put(key, (chance.randrange(5),))
            if chance.random() < 0.2:
                store.evict(chance.randrange(KEYS // 3))
        if chance.random() < 0.3:
            db.maintain(snapshot=True)
        return dict(db.at(db.version).iterator())


@pytest.fixture(scope="module", params=[1, 3])
def past(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Past:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = tmp_path_factory.mktemp("past") / "root"
    states: dict[int, State] = {0: {}}
    returns: dict[int, int] = {}
    for version in range(1, 16):
        if version in (6, 10, 11):
            returns[version] = chance.randrange(1, version - 1)
            assert admin.rollback(root, returns[version]).run().version == version
            states[version] = states[returns[version]]
        else:
            states[version] = changed(root, states[version - 1], chance, request.param)
    return Past(root, states, returns)


def test_every_version_reads_as_it_was_and_a_return_as_the_one_it_went_back_to(past: Past) -> None:
    assert open_root(past.root).versions == tuple(past.states)
    live = holdfast.read(past.root)
    for version, state in past.states.items():
        found = live.at(version)
        assert dict(found.iterator()) == state
        assert found.scan().num_rows == len(found) == len(state)
        for day in range(0, KEYS, 5):
            assert found.get(("user 1", day)) == state.get(("user 1", day))


def test_two_versions_differ_by_what_their_dicts_differ_by(past: Past) -> None:
    store = open_root(past.root).store()
    for old, new in itertools.permutations(past.states, 2):
        before, after = past.states[old], past.states[new]
        found = store.diff(old, new)
        expected = {
            key: (before.get(key), after.get(key))
            for key in before.keys() | after.keys()
            if before.get(key) != after.get(key)
        }
        assert {c.key: (c.before, c.after) for c in found.changes} == expected, f"{old}, {new}"
        assert found.total == len(expected)


def test_a_key_tells_of_each_return(past: Past) -> None:
    store = open_root(past.root).store()
    for key in {key for state in past.states.values() for key in state}:
        values = [past.states[version].get(key) for version in past.states]
        expected = [
            (version, value)
            for version, value, before in zip(past.states, values, [None, *values], strict=False)
            if value != before
        ]
        assert [(each.version, each.value) for each in store.key_history(key)] == expected


def test_the_changes_of_a_return_are_those_that_undo(past: Past) -> None:
    store = open_root(past.root).store()
    for version in sorted(past.states)[1:]:
        before, after = past.states[version - 1], dict(past.states[version - 1])
        told: set[tuple[Any, ...]] = set()
        for rows, dead in store.at(version).changes():
            for row, is_dead in zip(rows.to_pylist(), dead.to_pylist(), strict=True):
                key = row["user"], row["day"]
                told.add(key)
                if is_dead:
                    after.pop(key, None)
                else:
                    after[key] = (row["total"],)
        if version in past.returns:
            state = past.states[version]
            assert after == state
            differing = before.keys() | state.keys()
            assert told == {key for key in differing if before.get(key) != state.get(key)}


def test_a_live_state_follows_a_return_when_it_is_refreshed(tmp_path: Path) -> None:
    root, chance = tmp_path / "root", random.Random(5)
    first = changed(root, {}, chance, 2)
    second = changed(root, first, chance, 2)
    live = holdfast.read(root)
    assert (live.version, dict(live.iterator())) == (2, second)
    admin.rollback(root, 1).run()
    assert dict(live.iterator()) == second, "it stays where it is"
    live.refresh()
    assert (live.version, dict(live.iterator())) == (3, first)
    third = changed(root, first, chance, 2)
    live.refresh()
    assert (live.version, dict(live.iterator())) == (4, third)
    assert dict(live.at(2).iterator()) == second
