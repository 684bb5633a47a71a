"""The version loop: one version for each batch, computed, committed, delivered, in this order."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from holdfast.backends.locations import open_storage
from holdfast.checkpoint import moment_of
from holdfast.conf import BESIDE_CHECKPOINT, StateStoreConf
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.claims import Claims
from holdfast.engine.versions.commit import PreparedPartition, StorePartition
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.retention import Cleaner
from holdfast.engine.versions.rewrite import empty_stores, prepare_unchanged
from holdfast.errors import (
    Conflict,
    HoldfastError,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import Observe
from holdfast.spark.monitoring.progress import VersionReport
from holdfast.spark.operators.operator import TaskSettings
from holdfast.spark.pipeline.event_times import check_counted, marks_after
from holdfast.spark.pipeline.flow import EventTime, Flow, Stage
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.pipeline.stage_marks import StageMarks, stage_marks
from holdfast.spark.pipeline.stages import ComputedVersion, QueryOutput, StageFrames, StageRun
from holdfast.spark.running.delivery import Delivery
from holdfast.spark.running.failures import fenced
from holdfast.spark.running.maintenance import Maintenance, MaintenanceReport
from holdfast.spark.running.numbering import Numbering, lost_numbers, note_jump
from holdfast.spark.sinks.sink import Sink
from holdfast.spark.state.locality import Locality, StateStoreRDD
from holdfast.spark.state.location import marked_place, state_root, storage_options
from holdfast.spark.state.pairing import spark_checkpoint
from holdfast.spark.state.result_size import inline_bytes_of
from holdfast.spark.state.stored import (
    any_store,
    check_stored,
    definitions,
    dropped_stores,
    first_manifest,
    partitions_of,
    rewrite_stores,
    stores_to_rewrite,
    with_columns,
)
from holdfast.spark.view import StreamView
from holdfast.store import load_provider_class
from holdfast.streams.outbox import Emission, Outbox, write_emissions
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.tasks.task import StoreSpec, Task, TaskResult, run_task
from holdfast.streams.watermark import Watermarks

log = logging.getLogger(__name__)
_MOST_ADOPTED = 3
"""An older driver commits at most one version after it was overtaken; there may be several."""


class VersionLoop:
    """Makes the versions of one query. Calls come one at a time."""

    def __init__(self, spec: QuerySpec, sink: Sink, conf: StateStoreConf) -> None:
        self.spec = spec
        self._sink = sink
        self._conf = conf
        self._session: SparkSession = spec.source.sparkSession
        self.checkpoint = spark_checkpoint(self._session, spec.checkpoint)
        self._runtime = Runtime.system()
        wanted = None if conf.state_location == BESIDE_CHECKPOINT else conf.state_location
        self.root = state_root(self._session, spec.checkpoint, wanted)
        self.options = storage_options(self._session, self.root, spec.settings)
        """How the root is reached; never to be shown or kept."""
        self.versions = VersionLog(open_storage(self.root, self.options, conf), self._runtime)
        self._committer = Committer(self.versions, self._runtime, conf)
        self._run_id = uuid4()
        self.query_id = self.run_id = ""
        """What Spark calls the query and this run of it, once it does."""
        self._due_ms: int | None = 0 if self._has_clock else None
        """The next moment by the clock that some operator waits for; 0 where it is to be asked."""
        self._newest_at_ms: int | None = None
        """A time by the monotonic clock at which no version after the newest existed, if known."""
        self._base: Manifest | None = None
        """The version that the newest one of this run was made from."""
        self._has_run = False
        """Whether Spark has brought this run a batch: the watermark moves no sooner."""
        self._lost = 0
        """Numbers of versions that were given up, which no other version may have."""
        self._claims = Claims(self.versions.storage, self._runtime)
        self._place: str | None = None
        # As Spark does: what the session is told later is not for a query that runs.
        self._ansi = str(self._session.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        self._time_zone = str(self._session.conf.get("spark.sql.session.timeZone"))
        self._locality = Locality(self._session)
        self._inline_bytes = inline_bytes_of(self._session)
        self._maintenance: Maintenance
        self._cleaner: Cleaner
        self._delivery: Delivery
        self.manifest: Manifest
        self._stages: list[StageRun]
        self._query_output: QueryOutput

    # -- opening -------------------------------------------------------------------------------

    def open(self) -> None:
        """Open the state, or make it where there is none."""
        load_provider_class(self._conf.provider_class)
        own, frames = self._claim()
        self._lost = lost_numbers(self.versions.storage, self.manifest)
        self.checkpoint.note_state(self.manifest.scope.get("id", ""))
        self._place = marked_place(self._session, self.versions.storage, self._runtime)
        self._locality = Locality.of(self._session, self._conf)
        places = sum(1 for _ in self.manifest.partitions())
        conf = replace(self._conf, pack_threshold_bytes=min(
            self._conf.pack_threshold_bytes, self._inline_bytes // max(places, 1)
        ))  # fmt: skip
        self._stages = [self._stage_run(number, part, conf) for number, part in enumerate(frames)]
        self._locality.begun(self._run_id, sum(run.store.partitions for run in self._stages))
        self._maintenance = Maintenance(
            self.root, self._run_id, self._conf, self._locality.coordinator
        )
        self._maintenance.tell_snapshots(self.manifest)
        self._cleaner = Cleaner(self.versions, self._runtime, self._conf)
        runs = {run.stage: run for run in self._stages}
        self._query_output = QueryOutput.of(self.spec.flow, runs, own, self._session)
        self._delivery = Delivery(
            self.spec, self.checkpoint, self._sink, self.versions.storage, self._query_output
        )
        if self._lost:  # what was given up was made after this one had reached the sink
            self._delivery.note_settled(self.manifest.version)
        self._check_provider()
        self._fit()
        if self.manifest.batch is None and not self.manifest.scope.get("filled"):
            self._fill(own)
        if self.spec.view is not None:
            self._delivery.view = StreamView(
                self.spec.view, self._stages, self._session, self.manifest, self.versions,
                self.root, self._conf,
            )  # fmt: skip
        self._delivery.show(self.manifest, self._before)

    def _claim(self) -> tuple[SparkSession, list[StageFrames]]:
        """Claim the root and read the version to start from; the frames of the query's stages.

        A start that is refused must not stop the driver that runs, so whatever can be refused is
        checked before the claim. What that driver committed meanwhile is read after it.
        """
        # In this order: another driver may just be making the state, and then its note.
        has_state = self.checkpoint.is_noted()
        found = self.versions.newest_intact()
        if has_state or found is not None:
            self.checkpoint.check_pair(self.root, found)
        partitions, own, frames = self._checked(found)
        self._claims = Claims(self.versions.storage, self._runtime)
        self._claims.take()
        again = self.versions.newest_intact()
        if again is None:
            first = first_manifest(self._session, frames, partitions, self._runtime)
            try:
                self.manifest = self.versions.publish(first, 1, None)
                return own, frames
            except Conflict:  # the older driver was about to make the same one
                again = self.versions.newest_intact()
                if again is None:
                    raise
        if found is None or again.commit_id != found.commit_id:
            self.checkpoint.check_pair(self.root, again)
            _, own, frames = self._checked(again)
        self.manifest = self._with_columns(again, frames)
        return own, frames

    def _checked(self, found: Manifest | None) -> tuple[int, SparkSession, list[StageFrames]]:
        """Refuse stored state that is not this query's: the partitions and frames if it is."""
        partitions = partitions_of(self._session, found, self.root)
        own = seam.sessions.own_session(self._session, partitions)
        made: dict[Stage, StageFrames] = {}
        for stage in self.spec.stages:
            made[stage] = StageFrames.of(stage, own, partitions, made)
        frames = list(made.values())
        if found is not None:
            check_stored(found, frames, self.root, may_add=self.spec.adds_aggregates)
            self._with_columns(found, frames)
        return partitions, own, frames

    def _with_columns(self, manifest: Manifest, frames: Sequence[StageFrames]) -> Manifest:
        return with_columns(
            self._session, manifest, frames, self.root, may_change=self.spec.takes_changed_columns
        )

    def _stage_run(self, number: int, frames: StageFrames, conf: StateStoreConf) -> StageRun:
        count = len(any_store(self.manifest, number).partitions)
        stores = {
            name: StoreSpec.of(
                shape,
                root=self.root,
                operator=number,
                partitions=count,
                conf=conf,
                run_id=str(self._run_id),
                options=self.options,
                name=name,
                place=self._place,
                coordinator=self._locality.address,
                inline_bytes=self._inline_bytes,
            )
            for name, shape in frames.stores.items()
        }
        schema = seam.tasks.arrow_schema(frames.batch.made).serialize().to_pybytes()
        some = next(iter(stores))
        rdd = StateStoreRDD(self.root, number, self._run_id, count, some, self._locality)
        return StageRun(frames, stores, schema, rdd)

    def close(self) -> None:
        """Tell whoever asks that nobody holds the stores of this run any more."""
        self._locality.ended(self._run_id)

    def _fit(self) -> None:
        """Give the state the stores and columns the query has and the state has not, if any."""
        todo = stores_to_rewrite(self.manifest, self._stages)
        dropped = dropped_stores(self.manifest, self._stages)
        if not todo and not dropped:
            return
        if not self._delivery.is_delivered(self.manifest, self._before):
            raise IllegalState(
                f"Version {self.manifest.version} in {self.root} was not delivered yet. Run the "
                "query as it was once more, by the Holdfast that ran it and with "
                "trigger(availableNow=True) for instance, and then as it is now."
            )
        base = empty_stores(self.manifest, todo, dropped)
        prepared = rewrite_stores(self._session, base, self._stages, todo)
        self.manifest = self._committer.commit(
            base, None, prepared, self._runtime.new_id(),
            scope={**base.scope, "operators": definitions(part.frames for part in self._stages)},
            outbox=(), delivered_through=base.version + 1,
            numbering=Numbering.of(base).skipping(self._lost).json(),
        )  # fmt: skip
        self._lost = 0
        self._delivery.note_settled(self.manifest.version)
        self.note_delivered()

    def _check_provider(self) -> None:
        for run in self._stages:
            if run.store.is_foreign and run.operator.needs_engine:
                raise InvalidArgument(
                    f"{run.store.conf.provider_class} keeps the state, and {run.operator.title} "
                    "asks it for time or initial state. Use the time mode None without initial "
                    "state there, or Holdfast's own provider."
                )

    def _fill(self, own: SparkSession) -> None:
        """Commit what operators start with, as a version of its own that delivers nothing."""
        marks = self.marks.following(self._runtime.clock_ms())
        results: dict[int, list[TaskResult]] = {}
        known = stage_marks(self.spec.stages, marks)
        for number, run in enumerate(self._stages):
            settings = self._settings(run, known[run.stage], is_last=False)
            start = run.operator.initial(settings, run.store.partitions)
            if start is not None:
                rows = seam.frames.moved(start.rows, own)
                results[number] = self._run_tasks(run, start.task, rows)
        if results:
            self.manifest = self._committer.commit(
                self.manifest, None, self._prepared(results), self._runtime.new_id(),
                watermark=marks.json(), scope={**self.manifest.scope, "filled": True},
                delivered_through=self.manifest.version + 1,
                numbering=Numbering.of(self.manifest).skipping(self._lost).json(),
            )  # fmt: skip
            self._lost = 0

    def _before(self) -> Manifest | None:
        """The version before the newest; None where a copy left it behind."""
        wanted = self.manifest.version - 1
        if self._base is not None and self._base.version == wanted:
            return self._base
        try:
            return self.versions.load(wanted)
        except VersionNotFound:
            return None

    # -- making a version ----------------------------------------------------------------------

    @property
    def marks(self) -> Watermarks:
        """The watermarks of the newest version."""
        return Watermarks.of(self.manifest.watermark)

    @property
    def has_ticks(self) -> bool:
        """Whether a version without data can ever change something."""
        return self._has_clock or self._follows_watermark

    @property
    def _has_clock(self) -> bool:
        return any(stage.operator.by_clock for stage in self.spec.stages)

    @property
    def _follows_watermark(self) -> bool:
        return any(stage.operator.ticks(self.spec.mode) for stage in self.spec.stages)

    def is_tick_due(self, until_ms: int) -> bool:
        """Whether a version without data would change something, as far as is known.

        Of what waits for the clock, only what waits for a moment up to `until_ms` counts. As in
        Spark, nothing is due by the watermark before the run has had a batch: what
        Spark is about to bring may not be late by a watermark that it was not late by before.
        """
        if self._has_run:
            by_clock = self._due_ms is not None and self._due_ms <= until_ms
            return by_clock or self._is_due_by_watermark
        if self._due_ms is None or self._due_ms > until_ms:
            return False
        return not self._delivery.is_lacking(self.manifest, self._before)

    @property
    def _is_due_by_watermark(self) -> bool:
        return self._has_run and self._follows_watermark and self.marks.is_tick_due

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
        if not self._has_run and self._claims.is_newest:
            self._adopt()

    def _adopt(self) -> bool:
        """Continue from a version that an older driver committed last; whether there is one."""
        newest = self.versions.newest_intact()
        if newest is None or newest.version <= self.manifest.version:
            return False
        log.warning(
            "Version %d of %s was committed by the driver that this one has replaced; continuing "
            "from it", newest.version, self.root,
        )  # fmt: skip
        self.manifest = self._with_columns(newest, [run.frames for run in self._stages])
        self._base = self._newest_at_ms = None
        self._due_ms = 0 if self._has_clock else None
        return True

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
        if self._delivery.is_lacking(self.manifest, self._before):
            self._deliver([])
        started = time.monotonic()
        is_by_clock = batch is None and not self._is_due_by_watermark
        now_ms = moment_of(facts) or self._runtime.clock_ms()
        moves = batch is not None or self._has_run
        marks = self.marks.following(now_ms) if moves else self.marks.waiting(now_ms)
        with self.spec.sources.held(batch) as (sources, input_rows):
            made = self._make(sources, marks)
        results, emitted = made.results, made.emitted
        self._due_ms = _earliest([result.due_ms for found in results.values() for result in found])
        if is_by_clock and all(result.is_idle for found in results.values() for result in found):
            return None
        seen = [] if observe is None else observe()
        check_counted(seen, self._stages, results)
        marks = marks_after(marks, seen, made.event_times)
        computed = time.monotonic()
        merged = self._commit(results, emitted, marks, facts)
        self._has_run = self._has_run or batch is not None
        committed = time.monotonic()
        self._deliver(emitted)
        seconds = {
            "compute": computed - started,
            "commit": committed - computed,
            "deliver": time.monotonic() - committed,
        }
        return VersionReport(
            self.manifest.version, facts, marks, seconds, results, made.late_rows, merged,
            input_rows, Numbering.of(self.manifest).epoch,
        )  # fmt: skip

    def _make(self, sources: Sequence[DataFrame | None], marks: Watermarks) -> ComputedVersion:
        """Have the tasks of all operators make a version of what each source brings."""
        made = ComputedVersion(event_times=dict.fromkeys(self._event_times))
        emitted_rows: dict[Stage, DataFrame | None] = {}

        def rows_for(end: Flow | Stage) -> list[DataFrame | None]:
            return [
                emitted_rows[origin] if isinstance(origin, Stage)
                else sources[self.spec.sources.number(origin)]
                for origin in end.origins
            ]  # fmt: skip

        known = stage_marks(self.spec.stages, marks)

        for number, run in enumerate(self._stages):
            is_last = run is self._query_output.last
            settings = self._settings(run, known[run.stage], is_last=is_last)
            task = run.operator.task(settings)
            results, frame = self._run_stage(run, task, rows_for(run.stage), settings.marks)
            made.results[number] = results
            made.emitted = [result.emitted for result in results]
            made.look_at(run.stage, frame)
            if not is_last:
                emitted_rows[run.stage] = run.output_frames.rows(self._session, made.emitted)
        if self._query_output.union is not None:
            version = self.manifest.version + 1
            rows = rows_for(self.spec.flow)
            made.emitted, frame = self._query_output.emit(
                rows, version, self._locality, self._inline_bytes
            )
            made.look_at(self.spec.flow, frame)
        return made

    @property
    def _event_times(self) -> list[EventTime]:
        """What tells event times behind operators, each before its rows are committed."""
        ends: list[Flow | Stage] = [run.stage for run in self._stages]
        if self._query_output.union is not None:
            ends.append(self.spec.flow)
        return [event_time for end in ends for event_time in end.event_times]

    @property
    def _next_numbers(self) -> Numbering:
        return Numbering.of(self.manifest).following(self._lost)

    def _settings(
        self,
        run: StageRun,
        marks: StageMarks,
        *,
        is_last: bool,
    ) -> TaskSettings:
        emits = run.emits or not is_last
        outbox = Outbox(
            self.root, self.manifest.version + 1, run.store.partitions, run.store.options,
            self._conf, self._inline_bytes,
        )  # fmt: skip
        return TaskSettings(
            run.stores, self.manifest.version, self.spec.mode, self._ansi, marks.stage,
            outbox if emits else None,
            QueryInfo(self.query_id, self.run_id, self._next_numbers.epoch),
            self._time_zone, marks.inputs,
        )  # fmt: skip

    def _run_stage(
        self, run: StageRun, task: Task, rows: Sequence[DataFrame | None], marks: Watermarks
    ) -> tuple[list[TaskResult], DataFrame | None]:
        """The results of one operator's tasks, and the frame of their rows, if they had any."""
        if any(each is not None for each in rows):
            prepared = run.frames.of_rows(rows, run.store.partitions, marks)
            return self._run_tasks(run, task, prepared), prepared
        if run.operator.is_global:
            nothing = run.frames.batch.made  # of no rows: the one group that is there anyway
            return self._run_tasks(run, task, nothing), None
        schema = run.schema
        return run.rdd.run(lambda p, raw: run_task(task, p, schema, raw)), None

    def _run_tasks(self, run: StageRun, task: Task, rows: DataFrame) -> list[TaskResult]:
        """A task for each partition of some rows, of which there have to be as many."""
        schema = seam.tasks.arrow_schema(rows).serialize().to_pybytes()
        results = run.rdd.run(lambda p, raw: run_task(task, p, schema, raw), rows)
        if len(results) != run.store.partitions:
            raise IllegalState(
                f"Spark ran {len(results)} tasks for {run.store.partitions} partitions."
            )
        return results

    def _commit(
        self,
        results: Mapping[int, list[TaskResult]],
        emitted: Sequence[Emission],
        marks: Watermarks,
        facts: Mapping[str, Any] | None,
    ) -> Mapping[int, MaintenanceReport]:
        last = self._query_output.last
        outbox: tuple[Emission, ...] = ()
        if last is None or last.emits:
            outbox = write_emissions(self.versions.storage, self.manifest.version + 1, emitted)
        self._claims.check()
        before_ms = self._runtime.monotonic_ms()
        base, prepared = self.manifest, self._prepared(results)
        if self._lost:
            note_jump(self.versions.storage, base.version + 1, self._next_numbers.last)
        self.manifest = self._committer.commit(
            base,
            self._newest_at_ms,
            prepared,
            self._runtime.new_id(),
            batch=facts if facts is not None else base.batch,
            watermark=marks.json(),
            outbox=tuple(part.json() for part in outbox),
            delivered_through=base.version,
            numbering=self._next_numbers.json(),
        )
        self._lost = 0
        self._newest_at_ms, self._base = before_ms, base
        self._delivery.note_committed(self.manifest.version, facts)
        between = (result.emitted.path for found in results.values() for result in found)
        old = {part["path"] for part in base.outbox}.union(filter(None, between))
        for path in old.difference(part.path for part in emitted):
            with suppress(Unavailable):  # the clean-up removes it, too
                self.versions.storage.delete(path)
        return self._maintenance.note_committed(self.manifest, prepared)

    # -- delivering ----------------------------------------------------------------------------

    @fenced
    def deliver(self) -> None:
        """Hand the newest version's rows, as the storage has them, to the sink: Spark brings its
        batch again.
        """
        self._claims.check()
        self._deliver_again()
        self._has_run = True

    @fenced
    def _deliver_again(self) -> None:
        self._deliver([])

    def _deliver(self, emitted: list[Emission]) -> None:
        self._delivery.deliver(self.manifest, self._before, emitted)

    def deliver_leftover(self) -> None:
        """A tick that was committed before a crash may not have been delivered.

        Where the driver before this one has delivered it after all, and built on it, its rows may
        be gone: what that driver committed is adopted, and delivered if it needs to be.
        """
        adopted = 0
        while self._delivery.is_leftover(self.manifest, self._before):
            try:
                self._deliver_again()
            except Conflict:
                adopted += 1
                if adopted > _MOST_ADOPTED or not (self._claims.is_newest and self._adopt()):
                    raise

    def note_delivered(self) -> None:
        """Spare the next start a second delivery, if the newest version had its own."""
        self._delivery.note(self.manifest)

    # -- maintenance ---------------------------------------------------------------------------

    def due_merges(self) -> list[StorePartition]:
        """Every partition that has something to merge, the most urgent first."""
        return self._maintenance.due(self.manifest, self._stages)

    def merge(self, place: StorePartition) -> None:
        """Merge what is due of one partition, as a job of one task."""
        self._maintenance.merge(place, self._stages[place[0]])

    def clean(self, quiet: AbstractContextManager[object] | None = None) -> None:
        """Remove what no version needs any more. While `quiet` is entered no version is made."""
        self._cleaner.clean(lambda: self._maintenance.waiting_files(self.manifest), quiet)

    def _prepared(self, results: Mapping[int, Sequence[TaskResult]]) -> list[PreparedPartition]:
        """What the next version is made of, with what maintenance merged meanwhile."""
        done = [part for found in results.values() for result in found for part in result.prepared]
        done += [
            prepare_unchanged(self.manifest, number, name, entry)
            for number, name, entry in self.manifest.partitions()
            if number not in results or name not in self._stages[number].stores
        ]
        return self._maintenance.with_waiting(done)


def _earliest(moments: Sequence[int | None]) -> int | None:
    return min((moment for moment in moments if moment is not None), default=None)
