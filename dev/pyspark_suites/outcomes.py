"""What came of the tests, held against the committed list of expected differences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Outcome:
    """What came of one test: passed, failed, skipped, or unfinished where its process ended."""

    test: str
    status: str
    detail: str = ""
    """The failure, or why the test is skipped."""


@dataclass(frozen=True)
class Difference:
    """A line of the list: tests that may fail, what their failure has to say, and why it is so."""

    tests: str
    failure: str
    reason: str

    def covers(self, outcome: Outcome) -> bool:
        """Whether this is the failure that the line expects."""
        return fnmatchcase(outcome.test, self.tests) and self.failure in outcome.detail


@dataclass(frozen=True)
class Verdict:
    """An outcome, and the line of the list that expects it."""

    outcome: Outcome
    expected: Difference | None = None

    @property
    def word(self) -> str:
        """passed, skipped, expected or unexpected."""
        if self.outcome.status in ("passed", "skipped"):
            return self.outcome.status
        return "unexpected" if self.expected is None else "expected"


def read_differences(text: str) -> list[Difference]:
    """The list: `tests | part of the failure | reason` a line; empty lines and `#` are skipped."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [_difference(line) for line in lines]


def _difference(line: str) -> Difference:
    parts = [part.strip() for part in line.split("|")]
    if len(parts) != 3 or not all(parts):
        raise ValueError(f"Not 'tests | part of the failure | reason': {line!r}")
    return Difference(*parts)


def judge(outcomes: Iterable[Outcome], differences: Sequence[Difference]) -> list[Verdict]:
    """Each outcome with the line that expects it."""
    verdicts = []
    for outcome in outcomes:
        may_differ = outcome.status not in ("passed", "skipped")
        found = (each for each in differences if may_differ and each.covers(outcome))
        verdicts.append(Verdict(outcome, next(found, None)))
    return verdicts


def stale(verdicts: Sequence[Verdict], differences: Iterable[Difference]) -> list[Difference]:
    """The lines that expected nothing, although tests that they name were run."""
    used = {verdict.expected for verdict in verdicts}
    names = [verdict.outcome.test for verdict in verdicts]
    return [
        each
        for each in differences
        if each not in used and any(fnmatchcase(name, each.tests) for name in names)
    ]
