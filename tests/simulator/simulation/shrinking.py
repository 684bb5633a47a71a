"""Finds seeds that fail, and makes what they decided small enough to be kept and understood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from simulation.decisions import Decisions
from simulation.scenario import Scenario, Theme

Choices = Mapping[int, int]
_MOST_RUNS = 400


def failure_of(choices: Choices) -> str | None:
    """What a run with these decisions breaks, None if it breaks nothing."""
    return Scenario(Decisions(kept=choices)).run()


def first_failure(seeds: Iterable[int], theme: Theme | None = None) -> int | None:
    """The first of some seeds whose run breaks something."""
    failed = (seed for seed in seeds if Scenario(Decisions(seed), theme).run() is not None)
    return next(failed, None)


def shrunk(
    choices: Choices, fails: Callable[[Choices], bool], most_runs: int = _MOST_RUNS
) -> Choices:
    """Fewer of some decisions that still fail: none of them, or no block of them, is left out for
    nothing. It ends after `most_runs` tries with what it has by then.
    """
    kept, runs = dict(choices), 0
    size = max(len(kept) // 2, 1)
    while True:
        names, has_shrunk = sorted(kept), False
        for start in range(0, len(names), size):
            if runs >= most_runs:
                return kept
            fewer = {name: kept[name] for name in kept if name not in names[start : start + size]}
            runs += 1
            if len(fewer) < len(kept) and fails(fewer):
                kept, has_shrunk = fewer, True
        if not has_shrunk and size == 1:
            return kept
        if not has_shrunk:
            size = max(size // 2, 1)


def report(seed: int) -> str:
    """How a failing seed fails, as a case that can be committed, with the last steps of its run."""
    first = Scenario(Decisions(seed))
    reason = first.run()
    choices = shrunk(first.world.decisions.kept, lambda each: failure_of(each) is not None)
    scenario = Scenario(Decisions(kept=choices))
    why = scenario.run()
    steps = "\n".join(scenario.world.scheduler.log[-60:])
    return (
        f"Seed {seed}: {reason}\n\n{steps}\n\nAdd it to CASES in tests/simulator/cases.py:\n\n"
        f"    # {' '.join((why or '').split())[-90:]}\n    {dict(sorted(choices.items()))},\n"
    )
