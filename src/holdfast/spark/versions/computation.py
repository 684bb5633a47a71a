"""What the tasks of a version compute; nothing of it is visible before the commit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import DataFrame, SparkSession

from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.engine.versions.rewrite import prepare_unchanged
from holdfast.errors import IllegalState
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import Observe
from holdfast.spark.operators.frame_limits import frame_limits
from holdfast.spark.operators.operator import TaskSettings
from holdfast.spark.pipeline.event_times import check_counted, observed
from holdfast.spark.pipeline.flow import EventTime, Flow, Stage
from holdfast.spark.pipeline.stage_marks import StageMarks, stage_marks
from holdfast.spark.pipeline.stages import ComputedVersion, QueryOutput, StageRun
from holdfast.spark.state.locality import Locality
from holdfast.spark.versions.home import RunHome
from holdfast.streams.outbox import Outbox
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.tasks.task import Task, TaskResult, run_task
from holdfast.streams.version import VersionStep
from holdfast.streams.watermark import Watermarks


class Computation:
    """Runs the tasks of one run of a query, a version at a time."""

    def __init__(
        self,
        home: RunHome,
        stages: Sequence[StageRun],
        query_output: QueryOutput,
        locality: Locality,
        inline_bytes: int,
    ) -> None:
        self._home, self._spec, self._session = home, home.spec, home.session
        self._stages, self._query_output = stages, query_output
        self._locality, self._inline_bytes = locality, inline_bytes
        # As Spark does: what the session is told later is not for a query that runs.
        self._ansi = str(self._session.conf.get("spark.sql.ansi.enabled")).lower() == "true"
        self._time_zone = str(self._session.conf.get("spark.sql.session.timeZone"))
        self._frame_limits = frame_limits(self._session)

    def compute(
        self,
        step: VersionStep,
        batch: DataFrame | None,
        query: QueryInfo,
        observe: Observe | None,
    ) -> ComputedVersion:
        """Have the tasks of all operators make a version of a batch, or of none in a tick.

        `observe` gives the event times of the batch once its rows were read.
        """
        with self._spec.sources.held(batch) as (sources, input_rows):
            made = self._make(step, sources, query)
        made.input_rows = input_rows
        seen = [] if observe is None else observe()
        check_counted(seen, self._stages, made.results)
        made.step = observed(step, seen, made.event_times)
        every = [*seen, *filter(None, made.event_times.values())]
        made.event_time = next((each for each in every if each.rows), None)
        return made

    def initial(
        self, base: Manifest, marks: Watermarks, query: QueryInfo, own: SparkSession
    ) -> Mapping[int, list[TaskResult]]:
        """What operators start with, by operator; `own` is the session tasks' rows are made in."""
        results: dict[int, list[TaskResult]] = {}
        known = stage_marks(self._spec.stages, marks)
        for number, run in enumerate(self._stages):
            settings = self._settings(run, base, known[run.stage], query, is_last=False)
            start = run.operator.initial(settings, run.store.partitions)
            if start is not None:
                rows = seam.frames.moved(start.rows, own)
                results[number] = self._run_tasks(run, start.task, rows)
        return results

    def prepared(
        self, base: Manifest, results: Mapping[int, Sequence[TaskResult]]
    ) -> list[PreparedPartition]:
        """What the version after `base` is made of: what tasks prepared, the rest as it was."""
        done = [part for found in results.values() for result in found for part in result.prepared]
        done += [
            prepare_unchanged(base, number, name, entry)
            for number, name, entry in base.partitions()
            if number not in results or name not in self._stages[number].stores
        ]
        return done

    def _make(
        self, step: VersionStep, sources: Sequence[DataFrame | None], query: QueryInfo
    ) -> ComputedVersion:
        """Have the tasks of all operators make a version of what each source brings."""
        made = ComputedVersion(step, event_times=dict.fromkeys(self._event_times))
        emitted_rows: dict[Stage, DataFrame | None] = {}

        def rows_for(end: Flow | Stage) -> list[DataFrame | None]:
            return [
                emitted_rows[origin]
                if isinstance(origin, Stage)
                else sources[self._spec.sources.number(origin)]
                for origin in end.origins
            ]

        known = stage_marks(self._spec.stages, step.marks)
        for number, run in enumerate(self._stages):
            is_last = run is self._query_output.last
            settings = self._settings(run, step.base, known[run.stage], query, is_last=is_last)
            task = run.operator.task(settings)
            results, frame = self._run_stage(run, task, rows_for(run.stage), settings.marks)
            made.results[number] = results
            made.emitted = [result.emitted for result in results]
            made.look_at(run.stage, frame)
            if not is_last:
                emitted_rows[run.stage] = run.output_frames.rows(self._session, made.emitted)
        if self._query_output.union is not None:
            rows = rows_for(self._spec.flow)
            made.emitted, frame = self._query_output.emit(
                rows, step.version, self._locality, self._inline_bytes
            )
            made.look_at(self._spec.flow, frame)
        return made

    @property
    def _event_times(self) -> list[EventTime]:
        """What tells event times behind operators, each before its rows are committed."""
        ends: list[Flow | Stage] = [run.stage for run in self._stages]
        if self._query_output.union is not None:
            ends.append(self._spec.flow)
        return [event_time for end in ends for event_time in end.event_times]

    def _settings(
        self,
        run: StageRun,
        base: Manifest,
        marks: StageMarks,
        query: QueryInfo,
        *,
        is_last: bool,
    ) -> TaskSettings:
        emits = run.emits or not is_last
        outbox = Outbox(
            self._home.root,
            base.version + 1,
            run.store.partitions,
            run.store.options,
            self._home.conf,
            self._inline_bytes,
        )
        return TaskSettings(
            run.stores,
            base.version,
            self._spec.mode,
            self._ansi,
            marks.stage,
            outbox if emits else None,
            query,
            self._time_zone,
            self._frame_limits,
            marks.inputs,
        )

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
