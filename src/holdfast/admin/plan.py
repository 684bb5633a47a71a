"""What every operation has in common for its users: a plan that is data, and what came of it.

plan = holdfast.admin.rollback("checkpoint", to=37)   # nothing is changed yet
plan.lines()                                          # what would happen, in words
plan.run()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields

from holdfast.errors import HoldfastError
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody

Lines = Sequence[tuple[str, str]]
"""Facts for people: what each is about, and the fact."""


@dataclass(frozen=True)
class OperationResult:
    """What an operation did."""

    kind: str
    root: str
    version: int | None
    """The version that it made, None for an operation that makes none."""
    summary: str
    """What was done, in a sentence."""
    detail: JsonBody

    def json(self) -> JsonBody:
        """In the shapes that JSON can hold. Keys are stable."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class OperationPlan(ABC):
    """What an operation will do. Nothing is changed before `run`."""

    kind: str
    root: str
    fences: bool
    """Whether a driver that runs on the root will stop with Conflict."""

    @abstractmethod
    def lines(self) -> Lines:
        """What will happen, in words."""

    @abstractmethod
    def json(self) -> JsonBody:
        """What will happen, in the shapes that JSON can hold. Keys are stable."""

    def refusal(self) -> HoldfastError | None:
        """Why `run` will not do it as it was asked for; None where it will."""
        return None

    @abstractmethod
    def run(self, progress: Progress | None = None) -> OperationResult:
        """Do it. Raises Conflict, and changes nothing, where the root has changed meanwhile."""


def age_in_words(age_ms: int) -> str:
    """A time span as people say it."""
    for unit, size in (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000)):
        if age_ms >= 2 * size:
            return f"{age_ms // size} {unit}s"
    count = age_ms // 1000
    return f"{count} second{'' if count == 1 else 's'}"


def driver_line(age_ms: int) -> tuple[str, str]:
    """What every plan that makes a version says of drivers, which nobody can see from outside."""
    return (
        "driver",
        f"the newest version is {age_in_words(age_ms)} old; a driver that still runs stops with "
        "Conflict",
    )
