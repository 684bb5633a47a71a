"""Merging beside the stream: the driver decides by the manifest, executors do the work."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from holdfast.conf import StateStoreConf
from holdfast.coordinator import StateStoreCoordinatorRef
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.commit import PreparedPartition, StorePartition, Swap
from holdfast.engine.versions.compaction import plan
from holdfast.engine.versions.requests import MergeRequests
from holdfast.ids import StateStoreId, StateStoreProviderId
from holdfast.spark.pipeline.stages import StageRun
from holdfast.spark.versions.home import RunHome

log = logging.getLogger(__name__)
_ALARMING = 2
"""Times the lag at which a snapshot is due: then maintenance does not get to its work."""


@dataclass(frozen=True)
class MaintenanceReport:
    """What maintenance did for one operator in one version."""

    snapshots: int = 0
    merges: int = 0
    size_bytes: int = 0
    job_ms: int = 0

    def figures(self) -> dict[str, int]:
        """Its names among an operator's figures."""
        return {
            "numSnapshotsWritten": self.snapshots,
            "numMergesWritten": self.merges,
            "mergedSizeBytes": self.size_bytes,
            "maintenanceTimeMs": self.job_ms,
        }


class Maintenance:
    """The merges of one run of a query. Each is a job of one task; its result waits for a commit.

    Calls come one at a time.
    """

    def __init__(
        self, home: RunHome, conf: StateStoreConf, coordinator: StateStoreCoordinatorRef | None
    ) -> None:
        self._root, self._run_id, self._conf = home.root, home.run_id, conf
        self._coordinator = coordinator
        self._waiting: dict[StorePartition, tuple[Swap, ...]] = {}
        self._job_ms: Counter[int] = Counter()
        self._has_warned = False
        self._requests = MergeRequests(home.storage)
        self._asked: set[StorePartition] = set()
        """Partitions that somebody has asked to be merged, as of the last look."""

    def tell_snapshots(self, manifest: Manifest) -> None:
        """Tell the coordinator of the snapshots that earlier runs wrote."""
        if self._coordinator is None:
            return
        for operator, name, entry in manifest.partitions():
            for ref in entry.segments:
                if ref.kind == "snapshot":
                    place = operator, name, entry.index
                    self._coordinator.report_snapshot_uploaded(self._provider(place), ref.high)

    def due(self, manifest: Manifest, stages: Sequence[StageRun]) -> list[StorePartition]:
        """Every partition that has something to merge, those whose snapshots lag most first.

        Among them are those that somebody has asked for.
        """
        asked = self._requests.places(manifest)
        self._asked = {
            place
            for place in asked
            if place[0] < len(stages) and place[1] in stages[place[0]].stores
        }
        wanted = self._asked.union(self._due(manifest, stages)) - set(self._waiting)
        lagging = [place for place in self._lagging(manifest.version) if place in wanted]
        if lagging and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%d stores of %s have no snapshot of the last %d versions, the one of operator %d, "
                "partition %d first: maintenance comes too late. Shorten "
                "spark.sql.streaming.stateStore.maintenanceInterval or add a core.",
                len(lagging),
                self._root,
                _ALARMING * self._conf.snapshot_lag,
                lagging[0][0],
                lagging[0][2],
            )
        return [*lagging, *sorted(wanted.difference(lagging))]

    def _due(self, manifest: Manifest, stages: Sequence[StageRun]) -> Iterator[StorePartition]:
        for operator, run in enumerate(stages):
            for name, store in run.stores.items():
                if store.is_foreign:  # who keeps the state knows what is due
                    yield from ((operator, name, number) for number in range(store.partitions))
        for operator, name, entry in manifest.partitions():
            is_ours = operator < len(stages) and name in stages[operator].stores
            if is_ours and plan(entry.segments, self._conf) is not None:
                yield operator, name, entry.index

    def _lagging(self, newest: int) -> list[StorePartition]:
        if self._coordinator is None or self._conf.snapshot_lag == 0:
            return []
        found = self._coordinator.get_lagging_stores(
            self._run_id, newest, _ALARMING * self._conf.snapshot_lag
        )
        ids = [each.store_id for each in found]
        return [(each.operator_id, each.store_name, each.partition_id) for each in ids]

    def merge(self, place: StorePartition, run: StageRun, manifest: Manifest) -> None:
        """Merge what is due of one partition, where an executor holds it.

        All of it is merged where somebody has asked for that. `manifest` is the newest version.
        """
        operator, name, partition = place
        work = partial(run.stores[name].maintain, force=place in self._asked)
        started = time.monotonic()
        swaps = run.rdd.run_one(partition, work)
        self._job_ms[operator] += int((time.monotonic() - started) * 1000)
        if swaps:
            self._waiting[place] = swaps
        if place in self._asked:
            self._requests.note_merged(place, manifest.entry(*place).segments, swaps)

    def with_waiting(self, prepared: Iterable[PreparedPartition]) -> list[PreparedPartition]:
        """What a version is made of, with what was merged meanwhile.

        The worker that merged may be the one whose task made the version: it told of it by itself.
        """
        return [replace(part, swaps=(*part.swaps, *self._untold(part))) for part in prepared]

    def _untold(self, part: PreparedPartition) -> list[Swap]:
        waiting = self._waiting.get(part.place, ())
        return [swap for swap in waiting if swap not in part.swaps]

    def note_committed(
        self, manifest: Manifest, prepared: Iterable[PreparedPartition]
    ) -> Mapping[int, MaintenanceReport]:
        """Nothing waits any more: a version took in what fitted. Says what, by operator."""
        self._waiting = {}
        self._requests.note_committed(manifest)
        job_ms, self._job_ms = self._job_ms, Counter()
        taken = {
            (operator, name, entry.index, ref.name)
            for operator, name, entry in manifest.partitions()
            for ref in entry.segments
        }
        done: dict[int, list[Swap]] = {}
        for part in prepared:
            swaps = [swap for swap in part.swaps if (*part.place, swap.output.name) in taken]
            done.setdefault(part.operator, []).extend(swaps)
        return {
            operator: MaintenanceReport(
                snapshots=sum(swap.output.kind == "snapshot" for swap in swaps),
                merges=sum(swap.output.kind == "merge" for swap in swaps),
                size_bytes=sum(swap.output.info.size for swap in swaps),
                job_ms=job_ms[operator],
            )
            for operator, swaps in done.items()
        }

    def waiting_files(self, manifest: Manifest) -> set[str]:
        """Files that no version names yet, and the next one may."""
        return {
            swap.output.path(manifest.directory(*place))
            for place, swaps in self._waiting.items()
            for swap in swaps
        }

    def _provider(self, place: StorePartition) -> StateStoreProviderId:
        operator, name, partition = place
        return StateStoreProviderId(
            StateStoreId(self._root, operator, partition, name), self._run_id
        )
