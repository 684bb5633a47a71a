"""The choices of a run: drawn from a seed and written down, or read back to repeat the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import TypeVar

T = TypeVar("T")


class Decisions:
    """Answers every question of a run with a number; 0 is always the uneventful answer.

    Only answers other than 0 are kept, by the number of the question, so that leaving one out
    still is a run. With a seed answers are drawn, with `kept` they are read back.
    """

    def __init__(self, seed: int | None = None, kept: Mapping[int, int] | None = None) -> None:
        self._random = None if seed is None else Random(seed)
        self._given = dict(kept or {})
        self.kept: dict[int, int] = {}
        self.asked = 0

    def choose(self, options: int, chance: float) -> int:
        """A number below `options`; one that is not 0 with the given chance."""
        number = self.asked
        self.asked += 1
        if self._random is None:
            found = self._given.get(number, 0) % options
        elif options > 1 and self._random.random() < chance:
            found = self._random.randrange(1, options)
        else:
            found = 0
        if found:
            self.kept[number] = found
        return found

    def pick(self, chances: Mapping[int, float]) -> int:
        """One of some numbers, each with its chance, or else 0."""
        number = self.asked
        self.asked += 1
        found = 0
        if self._random is None:
            given = self._given.get(number, 0)
            found = given if given in chances else 0
        else:
            drawn = self._random.random()
            for each, chance in chances.items():
                drawn -= chance
                if drawn < 0:
                    found = each
                    break
        if found:
            self.kept[number] = int(found)
        return found

    def one_of(self, options: Sequence[T]) -> T:
        """Any of some options, the first one where nothing else was decided."""
        return options[self.choose(len(options), 1 - 1 / len(options))]
