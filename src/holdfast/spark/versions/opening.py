"""The way to an opened loop: the root is claimed, checked, and made to fit the query."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from pyspark.sql import SparkSession

from holdfast.admin.rewind import finish
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.claims import Claims
from holdfast.engine.versions.numbering import Numbering, lost_numbers
from holdfast.engine.versions.retention import Cleaner
from holdfast.engine.versions.rewrite import empty_stores
from holdfast.errors import Conflict, IllegalState, InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.pipeline.flow import Stage
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.pipeline.stages import QueryOutput, StageFrames, StageRun
from holdfast.spark.sinks.sink import Sink
from holdfast.spark.state.locality import Locality, StateStoreRDD
from holdfast.spark.state.location import marked_place
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
from holdfast.spark.versions.computation import Computation
from holdfast.spark.versions.delivery import Delivery, DeliveryLog, stored_before
from holdfast.spark.versions.home import RunHome
from holdfast.spark.versions.loop import LoopParts, VersionLoop
from holdfast.spark.versions.maintenance import Maintenance
from holdfast.spark.view import StreamView
from holdfast.store import load_provider_class
from holdfast.streams.processors.handle import QueryInfo
from holdfast.streams.tasks.task import StoreSpec
from holdfast.streams.version import initial_facts, rewrite_facts
from holdfast.streams.watermark import Watermarks


@dataclass(frozen=True)
class _ClaimedRoot:
    """The version that a run starts from, and the frames of the query's stages."""

    claims: Claims
    manifest: Manifest
    own: SparkSession
    """The session that tasks' rows are made in."""
    frames: Sequence[StageFrames]


class LoopOpening:
    """Opens the state of one query, or makes it where there is none."""

    def __init__(self, spec: QuerySpec, sink: Sink, conf: StateStoreConf) -> None:
        self.home = RunHome.of(spec, conf)
        self._spec, self._sink, self._conf = spec, sink, conf
        self._session = self.home.session
        self._inline_bytes = inline_bytes_of(self._session)

    def open(self) -> VersionLoop:
        """Claim the root and bring it to where the first version can follow."""
        load_provider_class(self._conf.provider_class)
        home, claimed = self.home, self._claim()
        lost = lost_numbers(home.storage, claimed.manifest)
        home.checkpoint.note_state(claimed.manifest.scope.get("id", ""))
        place = marked_place(self._session, home.storage, home.runtime)
        locality = Locality.of(self._session, self._conf)
        try:
            stages = self._stages(claimed, place, locality)
            locality.begun(home.run_id, sum(run.store.partitions for run in stages))
            return self._open(claimed, lost, stages, locality)
        except BaseException:
            locality.ended(home.run_id)
            raise

    def _open(
        self, claimed: _ClaimedRoot, lost: int, stages: Sequence[StageRun], locality: Locality
    ) -> VersionLoop:
        home, manifest = self.home, claimed.manifest
        maintenance = Maintenance(home, self._conf, locality.coordinator)
        maintenance.tell_snapshots(manifest)
        cleaner = Cleaner(home.versions, home.runtime, self._conf)
        runs = {run.stage: run for run in stages}
        query_output = QueryOutput.of(self._spec.flow, runs, claimed.own, self._session)
        deliveries = DeliveryLog(home.checkpoint, home.storage)
        if lost:  # what was given up was made after this one had reached the sink
            deliveries.note_settled(manifest.version)
        _check_provider(stages)
        computation = Computation(home, stages, query_output, locality, self._inline_bytes)
        manifest, lost = self._fitted(manifest, lost, stages, deliveries)
        if manifest.batch is None and not manifest.scope.get("filled"):
            manifest, lost = self._filled(manifest, lost, computation, claimed.own)
        view = None
        if self._spec.view is not None:
            view = StreamView(
                self._spec.view,
                stages,
                self._session,
                manifest,
                home.versions,
                home.root,
                self._conf,
            )
        delivery = Delivery(self._spec, self._sink, home.storage, query_output, view, deliveries)
        delivery.show(manifest, partial(stored_before, home.versions, manifest))
        parts = LoopParts(
            claimed.claims,
            stages,
            query_output,
            locality,
            computation,
            delivery,
            maintenance,
            cleaner,
        )
        return VersionLoop(home, parts, manifest, lost)

    # -- the claim -----------------------------------------------------------------------------

    def _claim(self) -> _ClaimedRoot:
        """Claim the root and read the version to start from.

        A start that is refused must not stop the driver that runs, so whatever can be refused is
        checked before the claim. What that driver committed meanwhile is read after it.
        """
        # In this order: another driver may just be making the state, and then its note.
        versions, runtime = self.home.versions, self.home.runtime
        has_state = self.home.checkpoint.is_noted()
        found = versions.newest_intact()
        if has_state or found is not None:
            self.home.checkpoint.check_pair(self.home.root, found)
        partitions, own, frames = self._checked(found)
        claims = Claims(versions.storage, runtime)
        claims.take()
        again = versions.newest_intact()
        if again is not None:
            # An operation that took the state back may have left Spark's logs where they were.
            finish(versions, again, self.home.checkpoint)
        if again is None:
            first = first_manifest(self._session, frames, partitions, runtime)
            try:
                made = versions.publish(self._with_sources(first), 1, None)
                return _ClaimedRoot(claims, made, own, frames)
            except Conflict:  # the older driver was about to make the same one
                again = versions.newest_intact()
                if again is None:
                    raise
        if found is None or again.commit_id != found.commit_id:
            self.home.checkpoint.check_pair(self.home.root, again)
            _, own, frames = self._checked(again)
        fitting = self._with_columns(again, frames)
        return _ClaimedRoot(claims, self._with_sources(fitting), own, frames)

    def _checked(self, found: Manifest | None) -> tuple[int, SparkSession, list[StageFrames]]:
        """Refuse stored state that is not this query's: the partitions and frames if it is."""
        partitions = partitions_of(self._session, found, self.home.root)
        own = seam.sessions.own_session(self._session, partitions)
        made: dict[Stage, StageFrames] = {}
        for stage in self._spec.stages:
            made[stage] = StageFrames.of(stage, own, partitions, made)
        frames = list(made.values())
        if found is not None:
            check_stored(found, frames, self.home.root, may_add=self._spec.adds_aggregates)
            self._with_columns(found, frames)
        return partitions, own, frames

    def _with_columns(self, manifest: Manifest, frames: Sequence[StageFrames]) -> Manifest:
        return with_columns(
            self._session,
            manifest,
            frames,
            self.home.root,
            may_change=self._spec.takes_changed_columns,
        )

    def _with_sources(self, manifest: Manifest) -> Manifest:
        """A version that says what the query reads, for those who open its state without Spark."""
        names = seam.queries.source_names(self._spec.source)
        if manifest.scope.get("sources") == names:
            return manifest
        return replace(manifest, scope={**manifest.scope, "sources": names})

    # -- the stages ----------------------------------------------------------------------------

    def _stages(
        self, claimed: _ClaimedRoot, place: str | None, locality: Locality
    ) -> list[StageRun]:
        """The stages, their state open. A version's deltas may all come with tasks' results."""
        places = sum(1 for _ in claimed.manifest.partitions())
        conf = replace(
            self._conf,
            pack_threshold_bytes=min(
                self._conf.pack_threshold_bytes, self._inline_bytes // max(places, 1)
            ),
        )
        return [
            self._stage_run(number, frames, claimed.manifest, conf, place, locality)
            for number, frames in enumerate(claimed.frames)
        ]

    def _stage_run(
        self,
        number: int,
        frames: StageFrames,
        manifest: Manifest,
        conf: StateStoreConf,
        place: str | None,
        locality: Locality,
    ) -> StageRun:
        home = self.home
        count = len(any_store(manifest, number).partitions)
        stores = {
            name: StoreSpec.of(
                shape,
                root=home.root,
                operator=number,
                partitions=count,
                conf=conf,
                run_id=str(home.run_id),
                options=home.options,
                name=name,
                place=place,
                coordinator=locality.address,
                inline_bytes=self._inline_bytes,
            )
            for name, shape in frames.stores.items()
        }
        schema = seam.tasks.arrow_schema(frames.batch.made).serialize().to_pybytes()
        some = next(iter(stores))
        rdd = StateStoreRDD(home.root, number, home.run_id, count, some, locality)
        return StageRun(frames, stores, schema, rdd)

    # -- what the state lacks ------------------------------------------------------------------

    def _fitted(
        self, manifest: Manifest, lost: int, stages: Sequence[StageRun], deliveries: DeliveryLog
    ) -> tuple[Manifest, int]:
        """Give the state the stores and columns the query has and the state has not, if any.

        The version to continue from, and how many numbers that were lost are still to be left out.
        """
        todo, dropped = stores_to_rewrite(manifest, stages), dropped_stores(manifest, stages)
        if not todo and not dropped:
            return manifest, lost
        before = partial(stored_before, self.home.versions, manifest)
        if not deliveries.is_delivered(manifest, before):
            raise IllegalState(
                f"Version {manifest.version} in {self.home.root} was not delivered yet. Run the "
                "query as it was once more, by the Holdfast that ran it and with "
                "trigger(availableNow=True) for instance, and then as it is now."
            )
        base = empty_stores(manifest, todo, dropped)
        prepared = rewrite_stores(self._session, base, stages, todo)
        facts = rewrite_facts(base, definitions(part.frames for part in stages), lost)
        new_id = self.home.runtime.new_id()
        fitted = self.home.committer.commit(base, None, prepared, new_id, **facts)
        deliveries.note_settled(fitted.version)
        deliveries.note(fitted)
        return fitted, 0

    def _filled(
        self, manifest: Manifest, lost: int, computation: Computation, own: SparkSession
    ) -> tuple[Manifest, int]:
        """Commit what operators start with, as a version of its own that delivers nothing."""
        marks = Watermarks.of(manifest.watermark).following(self.home.runtime.clock_ms())
        query = QueryInfo("", "", Numbering.of(manifest).following(lost).epoch)
        results = computation.initial(manifest, marks, query, own)
        if not results:
            return manifest, lost
        prepared = computation.prepared(manifest, results)
        facts = initial_facts(manifest, marks, lost)
        new_id = self.home.runtime.new_id()
        return self.home.committer.commit(manifest, None, prepared, new_id, **facts), 0


def _check_provider(stages: Sequence[StageRun]) -> None:
    for run in stages:
        if run.store.is_foreign and run.operator.needs_engine:
            raise InvalidArgument(
                f"{run.store.conf.provider_class} keeps the state, and {run.operator.title} "
                "asks it for time or initial state. Use the time mode None without initial "
                "state there, or Holdfast's own provider."
            )
