"""Delivery: a committed version reaches the view, if there is one, and then the sink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from holdfast.checkpoint import SparkCheckpoint
from holdfast.engine.files.filenames import DELIVERED, delivered_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Storage
from holdfast.engine.versions.delivered import (
    PreviousVersion,
    is_known_delivered,
    is_noted,
    is_tick,
)
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import VersionNotFound
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.pipeline.stage_marks import stage_marks
from holdfast.spark.pipeline.stages import QueryOutput
from holdfast.spark.sinks.sink import Sink
from holdfast.spark.versions.numbering import output_batch
from holdfast.spark.view import StreamView
from holdfast.streams.outbox import Emission, OutboxReader
from holdfast.streams.output import StoredOutput
from holdfast.streams.tasks.task import StoreSpec
from holdfast.streams.watermark import Watermarks


def stored_before(versions: VersionLog, manifest: Manifest) -> Manifest | None:
    """The version before one, as it is stored; None where a copy left it behind."""
    try:
        return versions.load(manifest.version - 1)
    except VersionNotFound:
        return None


class DeliveryLog:
    """What is known of the versions that one run's sink has."""

    def __init__(self, checkpoint: SparkCheckpoint, storage: Storage) -> None:
        self._checkpoint, self._storage = checkpoint, storage
        self._planned = max(checkpoint.planned(), default=-1)
        """The newest batch that a run before this one has planned: it may have delivered it, in a
        version that went when the checkpoint was put back from a copy."""
        self._new: int | None = None
        """The version that this run has committed last, if nobody can have delivered its rows."""
        self._settled: int | None = None
        """The newest version that the sink is known to have, or that has nothing to deliver."""

    def is_lacking(self, manifest: Manifest, before: PreviousVersion) -> bool:
        """Whether the sink is not known to have a version: none may be committed over it."""
        if self._settled != manifest.version and self.is_delivered(manifest, before):
            self.note_settled(manifest.version)
        return self._settled != manifest.version

    def note_committed(self, version: int, facts: Mapping[str, Any] | None) -> None:
        """Take note of a version that this run has committed, and delivers next."""
        was_planned = facts is not None and facts["id"] <= self._planned
        self._new = None if was_planned else version

    def is_new(self, version: int) -> bool:
        """Whether this run has committed a version as its last, and nobody can have its rows."""
        return self._new == version

    def note_settled(self, version: int) -> None:
        """Take note of a version that the sink has, or that has nothing to deliver."""
        self._settled = version

    def is_leftover(self, manifest: Manifest, before: PreviousVersion) -> bool:
        """Whether a version is one that Spark does not bring again and the sink may lack.

        That is a tick, or one whose predecessor is not there to tell it from a tick.
        """
        is_settled = self._settled == manifest.version
        if manifest.version < 2 or is_settled or self.is_noted(manifest):
            return False
        return is_tick(manifest, before)

    def is_delivered(self, manifest: Manifest, before: PreviousVersion) -> bool:
        """Whether a version has surely reached the sink."""
        if self._settled == manifest.version:
            return True
        return is_known_delivered(self._storage, manifest, before, self._checkpoint)

    def is_noted(self, manifest: Manifest) -> bool:
        """Whether it is written down that a version was delivered, or has nothing to deliver."""
        return is_noted(self._storage, manifest)

    def note(self, manifest: Manifest) -> None:
        """Spare the next start a second delivery; earlier notes have served.

        A delivery that was interrupted does not count.
        """
        if self._settled != manifest.version:
            return
        own = delivered_path(manifest.version, manifest.commit_id)
        self._storage.create_if_absent(own, b"")
        for blob in self._storage.list(DELIVERED):
            if blob.path != own:
                self._storage.delete(blob.path)


class Delivery:
    """Brings the versions of one run to their sink. A version the sink has is in the view, too."""

    def __init__(
        self,
        spec: QuerySpec,
        sink: Sink,
        storage: Storage,
        query_output: QueryOutput,
        view: StreamView | None,
        log: DeliveryLog,
    ) -> None:
        self._spec, self._sink, self._storage = spec, sink, storage
        self._query_output = query_output
        self._session: SparkSession = spec.source.sparkSession
        self._needs_partitions = sink.sees_partitions or not query_output.is_deterministic
        """Whether a version's rows have to come in the same partitions when they come again."""
        self._view = view
        self.log = log

    def show(self, manifest: Manifest, before: PreviousVersion) -> None:
        """Bring the view, if there is one, to a version."""
        if self._view is not None:
            self._view.follow(manifest, before)

    def deliver(
        self, manifest: Manifest, before: PreviousVersion, emitted: Sequence[Emission] = ()
    ) -> None:
        """Hand a version's rows to the sink: as its tasks gave them, or else as stored."""
        self.show(manifest, before)
        output_frames = self._query_output.output_frames
        fresh = output_frames.reader(emitted)
        if emitted and fresh.is_at_hand and not self._needs_partitions:
            rows = output_frames.at_hand(self._session, fresh)
        else:
            rows = output_frames.by_tasks(self._session, self._stored(manifest, before))
        is_new = self.log.is_new(manifest.version)
        batch = output_batch(manifest, before, self._storage, is_new=is_new)
        self._sink.deliver(self._query_output.output.fill(rows), batch)
        self.log.note_settled(manifest.version)

    def _stored(self, manifest: Manifest, before: PreviousVersion) -> OutboxReader | StoredOutput:
        last = self._query_output.last
        if last is None or last.emits:
            parts = [Emission.from_json(part) for part in manifest.outbox]
            return self._query_output.output_frames.reader(parts)
        marks = stage_marks(self._spec.stages, Watermarks.of(manifest.watermark))[last.stage].stage
        above = upto = None
        if self._spec.mode == "append" and last.operator.key_index is not None:
            above = _evicted_before(last.store, before(), marks.late_us)
            upto = marks.evict_us if manifest.operation is None else above  # those evict nothing
        return StoredOutput(
            store=last.store,
            version=manifest.version,
            mode=self._spec.mode,
            above=above,
            upto=upto,
        )


def _evicted_before(store: StoreSpec, earlier: Manifest | None, late_us: int) -> int | None:
    """Up to where the version before had evicted; by the watermark where it is not there."""
    if earlier is None:
        return late_us
    bounds = [part.evict for part in earlier.operators[store.operator][store.name].partitions]
    return None if None in bounds else min(bound for bound in bounds if bound is not None)
