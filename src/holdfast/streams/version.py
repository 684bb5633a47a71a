"""One step of a query, by rules alone: what the next version is made with, and what it commits.

A stream's loop and the test driver both go by these rules, so they make the same versions. Nothing
here reads a clock or a storage:

    step = schedule.step(base, batch, now_ms)     # which watermarks the tasks get
    schedule = schedule.after(results)            # when the clock asks for the next version
    if not step.is_void(results):
        step = step.observed(seen, behind)        # where the event times of the batch bring them
        committer.commit(base, ..., **step.facts(outbox))
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.numbering import Numbering
from holdfast.streams.outbox import Emission
from holdfast.streams.tasks.task import TaskResult
from holdfast.streams.watermark import Watermarks

MOST_TICKS = 100
"""Versions without data in a row: a timer that always registers one for the past has no last."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one withWatermark saw of a batch: the largest event time, None if it saw no row."""

    largest_ms: int | None
    delay_ms: int


@dataclass(frozen=True)
class Schedule:
    """When one run of a query makes versions without data.

    As in Spark, the watermark moves no sooner than the run's first batch: what Spark is about to
    bring may not be late by a watermark that it was not late by before.
    """

    by_clock: bool
    """Whether an operator ever waits for a moment by the clock."""
    follows_watermark: bool
    """Whether an operator ever waits for the watermark."""
    due_ms: int | None = None
    """The next moment by the clock that some operator waits for; 0 where it is to be asked."""
    has_run: bool = False
    """Whether the run has had a batch."""

    @classmethod
    def starting(cls, *, by_clock: bool, follows_watermark: bool) -> Schedule:
        """The schedule of a run that starts."""
        return cls(by_clock, follows_watermark).asked()

    @property
    def has_ticks(self) -> bool:
        """Whether a version without data can ever change something."""
        return self.by_clock or self.follows_watermark

    def asked(self) -> Schedule:
        """The schedule of a run that does not know yet what operators wait for."""
        return replace(self, due_ms=0 if self.by_clock else None)

    def begun(self) -> Schedule:
        """The schedule once the run has had a batch."""
        return replace(self, has_run=True)

    def after(self, results: Iterable[TaskResult]) -> Schedule:
        """The schedule once tasks have said what they wait for."""
        moments = (result.due_ms for result in results)
        return replace(self, due_ms=min((at for at in moments if at is not None), default=None))

    def is_due(self, base: Manifest, until_ms: int) -> bool:
        """Whether a version without data would change something, as far as is known.

        Of what waits for the clock, only what waits for a moment up to `until_ms` counts.
        """
        return self._is_due_by_clock(until_ms) or self._is_due_by_watermark(base)

    def _is_due_by_clock(self, until_ms: int) -> bool:
        return self.due_ms is not None and self.due_ms <= until_ms

    def _is_due_by_watermark(self, base: Manifest) -> bool:
        moves = self.has_run and self.follows_watermark
        return moves and Watermarks.of(base.watermark).is_tick_due

    def step(
        self, base: Manifest, batch: Mapping[str, Any] | None, now_ms: int, lost: int = 0
    ) -> VersionStep:
        """The version after `base`, at a time by the clock; without a `batch` it is a tick.

        `lost` numbers of versions that were given up are left out.
        """
        marks = Watermarks.of(base.watermark)
        if batch is not None and not self.has_run:
            marks = marks.restarted()
        moves = batch is not None or self.has_run
        return VersionStep(
            base,
            batch,
            marks.following(now_ms) if moves else marks.waiting(now_ms),
            Numbering.of(base).following(lost),
            is_by_clock=batch is None and not self._is_due_by_watermark(base),
        )


@dataclass(frozen=True)
class VersionStep:
    """How one version follows on its base."""

    base: Manifest
    batch: Mapping[str, Any] | None
    """The facts of the batch, None for a tick."""
    marks: Watermarks
    """The watermarks: those that the tasks get, and then those that are committed."""
    numbers: Numbering
    is_by_clock: bool
    """Whether it is a tick that only the clock may ask for."""

    @property
    def version(self) -> int:
        """The number of the version."""
        return self.base.version + 1

    def is_void(self, results: Iterable[TaskResult]) -> bool:
        """Whether it becomes no version: the clock asked for it, and it changes nothing."""
        return self.is_by_clock and all(result.is_idle for result in results)

    def observed(
        self, seen: Sequence[Observation], behind: Sequence[Observation] = ()
    ) -> VersionStep:
        """The step with the watermarks that follow from the event times of its rows.

        `seen` has an entry for each withWatermark before the first operator, `behind` for each
        behind one. Where `seen` is empty, as in a tick, those before the first operator stay
        where they are.
        """
        if not seen:
            idle = max(len(self.marks.inputs) - len(behind), 0)
            seen = [Observation(None, 0)] * idle
        every = [*seen, *behind]
        marks = self.marks.observed([o.largest_ms for o in every], [o.delay_ms for o in every])
        return replace(self, marks=marks)

    def facts(self, outbox: Iterable[Emission] = ()) -> dict[str, Any]:
        """The fields of the manifest that the version is committed with.

        Nothing is committed over a version that the sink lacks, so the base is delivered.
        """
        return {
            "batch": self.base.batch if self.batch is None else self.batch,
            "watermark": self.marks.json(),
            "outbox": tuple(part.json() for part in outbox),
            "delivered_through": self.base.version,
            "numbering": self.numbers.json(),
        }


def initial_facts(base: Manifest, marks: Watermarks, lost: int = 0) -> dict[str, Any]:
    """The fields of a version that holds what operators start with."""
    scope = {**base.scope, "filled": True}
    return {"watermark": marks.json(), "scope": scope, **_undelivered(base, lost)}


def rewrite_facts(
    base: Manifest, definitions: Sequence[Mapping[str, str]], lost: int = 0
) -> dict[str, Any]:
    """The fields of a version in which the state was rewritten for a changed query."""
    scope = {**base.scope, "operators": definitions}
    return {"scope": scope, "outbox": (), **_undelivered(base, lost)}


def edited_facts(base: Manifest, marks: Watermarks) -> dict[str, Any]:
    """The fields of a version in which state was changed from outside of the query."""
    return {"watermark": marks.json(), "outbox": (), **_undelivered(base, 0)}


def _undelivered(base: Manifest, lost: int) -> dict[str, Any]:
    """The fields of a version that brings the sink nothing, and takes no number."""
    numbers = Numbering.of(base).skipping(lost)
    return {"delivered_through": base.version + 1, "numbering": numbers.json()}
