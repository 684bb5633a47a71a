"""The version loop: one version for each batch, computed, committed, delivered, in this order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from holdfast.checkpoint import moment_of
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.claims import Claims
from holdfast.engine.versions.commit import StorePartition
from holdfast.engine.versions.numbering import note_jump
from holdfast.engine.versions.retention import Cleaner
from holdfast.errors import Conflict, HoldfastError, Unavailable
from holdfast.spark.interop.model import Observe
from holdfast.spark.monitoring.progress import VersionReport
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.pipeline.stages import ComputedVersion, QueryOutput, StageRun
from holdfast.spark.running.failures import fenced
from holdfast.spark.state.locality import Locality
from holdfast.spark.state.stored import with_columns
from holdfast.spark.versions.computation import Computation
from holdfast.spark.versions.delivery import Delivery, stored_before
from holdfast.spark.versions.home import RunHome
from holdfast.spark.versions.maintenance import Maintenance, MaintenanceReport
from holdfast.streams.outbox import Emission, write_emissions
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.version import Schedule, VersionStep

log = logging.getLogger(__name__)
_MOST_ADOPTED = 3
"""An older driver commits at most one version after it was overtaken; there may be several."""


@dataclass(frozen=True)
class LoopParts:
    """What a loop works with, from its opening on."""

    claims: Claims
    stages: Sequence[StageRun]
    query_output: QueryOutput
    locality: Locality
    computation: Computation
    delivery: Delivery
    maintenance: Maintenance
    cleaner: Cleaner


@dataclass
class _Stopwatch:
    """How long each phase of a version took."""

    seconds: dict[str, float] = field(default_factory=dict)
    _at: float = field(default_factory=time.monotonic)

    def lap(self, phase: str) -> None:
        """Note the end of a phase."""
        before, self._at = self._at, time.monotonic()
        self.seconds[phase] = self._at - before


class VersionLoop:
    """Makes the versions of one query, whose state is open. Calls come one at a time.

    `open` of a `LoopOpening` gives it. `lost` is the number of versions that were given up, whose
    numbers no other version may have.
    """

    def __init__(self, home: RunHome, parts: LoopParts, manifest: Manifest, lost: int) -> None:
        self.spec: QuerySpec = home.spec
        self.root, self.options, self.versions = home.root, home.options, home.versions
        self.checkpoint = home.checkpoint
        self.manifest = manifest
        """The newest version."""
        self._home, self._runtime, self._committer = home, home.runtime, home.committer
        self._claims, self._stages = parts.claims, parts.stages
        self._query_output = parts.query_output
        self._locality, self._computation = parts.locality, parts.computation
        self._delivery, self._deliveries = parts.delivery, parts.delivery.log
        self._maintenance, self._cleaner = parts.maintenance, parts.cleaner
        self._lost = lost
        self._schedule = Schedule.starting(
            by_clock=any(run.operator.by_clock for run in parts.stages),
            follows_watermark=any(run.operator.ticks(self.spec.mode) for run in parts.stages),
        )
        self._ids = "", ""
        self._newest_at_ms: int | None = None
        """A time by the monotonic clock at which no version after the newest existed, if known."""
        self._base: Manifest | None = None
        """The version that the newest one of this run was made from."""

    def known_as(self, query_id: str, run_id: str) -> None:
        """What Spark calls the query and this run of it, each time its own query has started."""
        self._ids = query_id, run_id

    @property
    def query_id(self) -> str:
        """What Spark calls the query; empty before its own query has started."""
        return self._ids[0]

    def close(self) -> None:
        """Tell whoever asks that nobody holds the stores of this run any more."""
        self._locality.ended(self._home.run_id)

    # -- what is due, and who continues --------------------------------------------------------

    @property
    def has_ticks(self) -> bool:
        """Whether a version without data can ever change something."""
        return self._schedule.has_ticks

    def is_tick_due(self, until_ms: int) -> bool:
        """Whether a version without data would change something, as far as is known.

        Of what waits for the clock, only what waits for a moment up to `until_ms` counts. Before
        the run has had a batch, Spark may be about to bring the newest version's again: until the
        sink is known to have that version, nothing is due.
        """
        if not self._schedule.is_due(self.manifest, until_ms):
            return False
        return self._schedule.has_run or not self._lacks_newest()

    def _lacks_newest(self) -> bool:
        """Whether the sink is not known to have the newest version."""
        return self._deliveries.is_lacking(self.manifest, self._before)

    def is_replay(self, facts: Mapping[str, Any]) -> bool:
        """Whether Spark brings a batch that is committed already."""
        return self.checkpoint.check_next_batch(self.manifest.batch, facts, self.root)

    def overtaken(self) -> Conflict | None:
        """The conflict with a driver that claimed the root or committed a version after this one.

        None where there is none, and where the storage cannot tell.
        """
        with suppress(HoldfastError):
            if (conflict := self._claims.conflict()) is not None:
                return conflict
        return self._committer.conflict_after(self.manifest)

    @property
    def has_newest_claim(self) -> bool:
        """Whether this driver is the one that continues, whatever others still write."""
        return self._claims.is_newest

    def check_claim(self) -> None:
        """Raise Conflict where another driver has claimed the root after this one."""
        self._claims.check()

    def catch_up(self) -> None:
        """Before a run's first batch: adopt what an older driver has committed since `open`."""
        if not self._schedule.has_run and self._claims.is_newest:
            self._adopt()

    def _adopt(self) -> bool:
        """Continue from a version that an older driver committed last; whether there is one."""
        newest = self.versions.newest_intact()
        if newest is None or newest.version <= self.manifest.version:
            return False
        if newest.operation is not None:
            raise self.versions.conflict(newest.version)
        log.warning(
            "Version %d of %s was committed by the driver that this one has replaced; continuing "
            "from it",
            newest.version,
            self.root,
        )
        self.manifest = with_columns(
            self._home.session,
            newest,
            [run.frames for run in self._stages],
            self.root,
            may_change=self.spec.takes_changed_columns,
        )
        self._base = self._newest_at_ms = None
        self._schedule = self._schedule.asked()
        return True

    # -- making a version ----------------------------------------------------------------------

    def run(
        self,
        batch: DataFrame | None,
        facts: Mapping[str, Any] | None,
        observe: Observe | None = None,
    ) -> VersionReport | None:
        """Compute, commit and deliver one version; without a batch it is a tick.

        `observe` gives the event times of the batch once its rows were read. A tick that turns
        out to change nothing becomes no version. Whatever the sink is not known to have of the
        version before, it gets first. Raises Conflict when another driver has claimed the root.
        A version that the driver before this one committed late is adopted: where it is that of
        the same batch it is delivered, and there is nothing to report.
        """
        for _ in range(_MOST_ADOPTED):
            try:
                return self._run(batch, facts, observe)
            except Conflict:
                if not (self._claims.is_newest and self._adopt()):
                    raise
            if facts is None:
                return None  # whether something is due still is asked again
            if self.is_replay(facts):
                self.deliver()
                return None
        return self._run(batch, facts, observe)

    @fenced
    def _run(
        self,
        batch: DataFrame | None,
        facts: Mapping[str, Any] | None,
        observe: Observe | None,
    ) -> VersionReport | None:
        self._claims.check()
        if self._lacks_newest():
            self._deliver([])
        watch = _Stopwatch()
        step = self._next_step(facts)
        made = self._computation.compute(step, batch, self._query_info(step), observe)
        self._schedule = self._schedule.after(made.every_result)
        if step.is_void(made.every_result):
            return None
        watch.lap("compute")
        merged = self._commit(made)
        if batch is not None:
            self._schedule = self._schedule.begun()
        watch.lap("commit")
        self._deliver(made.emitted)
        watch.lap("deliver")
        return self._report(made, merged, watch.seconds)

    def _next_step(self, facts: Mapping[str, Any] | None) -> VersionStep:
        now_ms = moment_of(facts) or self._runtime.clock_ms()
        return self._schedule.step(self.manifest, facts, now_ms, self._lost)

    def _query_info(self, step: VersionStep) -> QueryInfo:
        return QueryInfo(*self._ids, step.numbers.epoch)

    def _commit(self, made: ComputedVersion) -> Mapping[int, MaintenanceReport]:
        """Make a version of what tasks made; what maintenance brought into it, by operator."""
        step, base = made.step, self.manifest
        outbox = self._filed(step, made.emitted)
        self._claims.check()
        before_ms = self._runtime.monotonic_ms()
        prepared = self._maintenance.with_waiting(self._computation.prepared(base, made.results))
        if self._lost:
            note_jump(self.versions.storage, step.version, step.numbers.last)
        self.manifest = self._committer.commit(
            base, self._newest_at_ms, prepared, self._runtime.new_id(), **step.facts(outbox)
        )
        self._lost = 0
        self._newest_at_ms, self._base = before_ms, base
        self._deliveries.note_committed(self.manifest.version, step.batch)
        self._remove_emitted(base, made)
        return self._maintenance.note_committed(self.manifest, prepared)

    def _filed(self, step: VersionStep, emitted: Sequence[Emission]) -> tuple[Emission, ...]:
        """What tasks emitted, where it can be delivered from again."""
        last = self._query_output.last
        if last is None or last.emits:
            return write_emissions(self.versions.storage, step.version, emitted)
        return ()

    def _remove_emitted(self, base: Manifest, made: ComputedVersion) -> None:
        """Remove rows that are delivered, and those that operators gave each other."""
        between = (result.emitted.path for result in made.every_result)
        old = {part["path"] for part in base.outbox}.union(filter(None, between))
        for path in old.difference(part.path for part in made.emitted):
            with suppress(Unavailable):  # the clean-up also removes it
                self.versions.storage.delete(path)

    def _report(
        self,
        made: ComputedVersion,
        merged: Mapping[int, MaintenanceReport],
        seconds: Mapping[str, float],
    ) -> VersionReport:
        step = made.step
        return VersionReport(
            self.manifest.version,
            step.batch,
            step.marks,
            seconds,
            made.results,
            made.late_rows,
            merged,
            made.input_rows,
            step.numbers.epoch,
            made.event_time,
        )

    # -- delivering ----------------------------------------------------------------------------

    @fenced
    def deliver(self) -> None:
        """Deliver the newest version once more, as it is stored: Spark brings its batch again."""
        self._claims.check()
        self._deliver_again()
        self._schedule = self._schedule.begun()

    @fenced
    def _deliver_again(self) -> None:
        # An operation's version has the batch of another, and nothing of its own to deliver.
        if self.manifest.operation is None or not self._deliveries.is_noted(self.manifest):
            self._deliver([])

    def _deliver(self, emitted: Sequence[Emission]) -> None:
        self._delivery.deliver(self.manifest, self._before, emitted)

    def _before(self) -> Manifest | None:
        """The version before the newest; None where a copy left it behind."""
        if self._base is not None and self._base.version == self.manifest.version - 1:
            return self._base
        return stored_before(self.versions, self.manifest)

    def deliver_leftover(self) -> None:
        """A tick that was committed before a crash may not have been delivered.

        Where the driver before this one has delivered it after all, and built on it, its rows may
        be gone: what that driver committed is adopted, and delivered if it needs to be.
        """
        adopted = 0
        while self._deliveries.is_leftover(self.manifest, self._before):
            try:
                self._deliver_again()
            except Conflict:
                adopted += 1
                if adopted > _MOST_ADOPTED or not (self._claims.is_newest and self._adopt()):
                    raise

    def note_delivered(self) -> None:
        """Spare the next start a second delivery, if the newest version had its own."""
        self._deliveries.note(self.manifest)

    # -- maintenance ---------------------------------------------------------------------------

    def due_merges(self) -> list[StorePartition]:
        """Every partition that has something to merge, the most urgent first."""
        return self._maintenance.due(self.manifest, self._stages)

    def merge(self, place: StorePartition) -> None:
        """Merge what is due of one partition, as a job of one task."""
        self._maintenance.merge(place, self._stages[place[0]], self.manifest)

    def clean(self, quiet: AbstractContextManager[object] | None = None) -> None:
        """Remove what no version needs any more. While `quiet` is entered no version is made."""
        self._cleaner.clean(lambda: self._maintenance.waiting_files(self.manifest), quiet)
