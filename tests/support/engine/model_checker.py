"""A small explicit-state model checker: breadth first, with the shortest way to a violation."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

State = TypeVar("State", bound=Hashable)


class Broken(AssertionError):
    """An invariant does not hold; `rule` is its name."""

    def __init__(self, rule: str, why: str) -> None:
        super().__init__(f"{rule}: {why}")
        self.rule = rule


class Violation(AssertionError):
    """A broken invariant with the shortest sequence of steps that leads there."""

    def __init__(self, broken: Broken, trace: list[str]) -> None:
        steps = "\n".join(f"  {number}. {step}" for number, step in enumerate(trace, 1))
        super().__init__(f"{broken}\n{steps}")
        self.rule = broken.rule
        self.trace = trace


@dataclass(frozen=True, slots=True)
class Explored:
    """How much was looked at. `depth` is the longest of the shortest ways to a state."""

    states: int
    transitions: int
    depth: int

    def __str__(self) -> str:
        return f"{self.states:,} states, {self.transitions:,} transitions, depth {self.depth}"


def explore(
    initial: State,
    successors: Callable[[State], Iterable[tuple[str, State]]],
    check: Callable[[State, State], None],
) -> Explored:
    """Visit every state reachable from `initial`. `check(before, after)` sees every transition.

    Requires: the reachable states are finite. Raises Violation when `check` raises Broken.
    """
    with _no_collections():
        return _explore(initial, successors, check)


def _explore(
    initial: State,
    successors: Callable[[State], Iterable[tuple[str, State]]],
    check: Callable[[State, State], None],
) -> Explored:
    came_from: dict[State, tuple[State, str] | None] = {initial: None}
    frontier = [initial]
    transitions = depth = 0
    while frontier:
        found: list[State] = []
        for state in frontier:
            for step, after in successors(state):
                transitions += 1
                try:
                    check(state, after)
                except Broken as broken:
                    raise Violation(broken, [*_way_to(state, came_from), step]) from broken
                if after not in came_from:
                    came_from[after] = (state, step)
                    found.append(after)
        frontier = found
        depth += bool(found)
    return Explored(len(came_from), transitions, depth)


@contextmanager
def _no_collections() -> Iterator[None]:
    """States make no cycles, and looking for some among millions takes a third of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _way_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    steps: list[str] = []
    link = came_from[state]
    while link is not None:
        steps.append(link[1])
        link = came_from[link[0]]
    return steps[::-1]
