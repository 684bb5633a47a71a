"""Merging partitions into one segment each: here, as one version, or by whoever writes the root.

    holdfast.admin.compact("checkpoint").run()                  # where no driver runs
    holdfast.admin.compact("checkpoint", request=True).run()    # beside one, which does it

Reads of a merged partition open one file. The state stays the same, so the version has no changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.admin.plan import Lines, OperationPlan, OperationResult, driver_line
from holdfast.admin.repair_commit import check_delivered, is_of_query
from holdfast.admin.site import Location, Site, open_site
from holdfast.engine.counters import Counters
from holdfast.engine.files.manifest import Manifest, PartitionEntry
from holdfast.engine.partition.chain import Chain, SegmentCache
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.versions.commit import PreparedPartition, StorePartition
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.journal import OperationEntry
from holdfast.engine.versions.merge_queue import MergeQueue
from holdfast.engine.versions.numbering import Numbering, lost_numbers
from holdfast.engine.versions.requests import is_mergeable, leave_request
from holdfast.engine.versions.rewrite import prepare_unchanged
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody
from holdfast.reading.words import amount, size_text


@dataclass(frozen=True)
class PartitionToMerge:
    """A partition that is to become one segment."""

    operator: int
    store: str
    partition: int
    segments: int
    size_bytes: int

    @property
    def place(self) -> StorePartition:
        """Where it is."""
        return self.operator, self.store, self.partition


@dataclass(frozen=True)
class CompactPlan(OperationPlan):
    """Which partitions are to be merged, and by whom."""

    kind: str
    """"compact"."""
    root: str
    base: int
    """The newest version now."""
    partitions: tuple[PartitionToMerge, ...]
    merged: int
    """How many of the chosen partitions are one segment already, or empty."""
    foreign: int
    """How many of them are kept by a provider that is not Holdfast's own."""
    age_ms: int
    request: bool = False
    reason: str | None = None
    fences: bool = True
    job: _Compaction = field(repr=False, compare=False, kw_only=True)

    @property
    def is_void(self) -> bool:
        """Whether there is nothing to merge."""
        return not self.partitions

    @property
    def size_bytes(self) -> int:
        """How many bytes are read, and about as many written at most."""
        return sum(each.size_bytes for each in self.partitions)

    def lines(self) -> Lines:
        segments = sum(each.segments for each in self.partitions)
        lines = (
            []
            if self.is_void
            else [
                (
                    "compact",
                    f"{amount(len(self.partitions), 'partition')} of version {self.base}: "
                    f"{amount(segments, 'segment')}, {size_text(self.size_bytes)}",
                )
            ]
        )
        if self.merged:
            lines.append(("merged", f"{amount(self.merged, 'partition')} already"))
        if self.foreign:
            what = amount(self.foreign, "partition")
            lines.append(("foreign", f"{what}: their provider merges them by itself"))
        if self.is_void:
            return [*lines, ("version", "none: there is nothing to merge")]
        if self.request:
            lines.append(("version", "none: whoever writes the root merges at its maintenance"))
            lines.append(("driver", "one that runs continues; without one, the next start does it"))
            return lines
        lines.append(("version", f"{self.base + 1}, with the same state"))
        return [*lines, driver_line(self.age_ms)]

    def json(self) -> JsonBody:
        return {
            "kind": self.kind,
            "root": self.root,
            "reason": self.reason,
            "request": self.request,
            "base": self.base,
            "size_bytes": self.size_bytes,
            "merged": self.merged,
            "foreign": self.foreign,
            "partitions": [
                {
                    "operator": each.operator,
                    "store": each.store,
                    "partition": each.partition,
                    "segments": each.segments,
                    "size_bytes": each.size_bytes,
                }
                for each in self.partitions
            ],
        }

    def run(self, progress: Progress | None = None) -> OperationResult:
        """Merge, and commit the version; or leave the request.

        Raises Conflict where a driver or another operation was faster: no version was made then.
        """
        if self.is_void:
            return self._result(None, "there was nothing to merge", {"merged": 0})
        if self.request:
            request_id = self.job.leave(self)
            count = amount(len(self.partitions), "partition")
            what = f"{count} will be merged by whoever writes {self.root}"
            return self._result(None, what, {"request": request_id})
        made, merged = self.job.commit(self, progress or (lambda done, total, path: None))
        left, count = len(self.partitions) - merged, amount(merged, "partition")
        what = f"{count} merged into one segment each, as version {made.version}"
        if left:
            what += f"; the files of {left} were removed by a clean-up: run it again"
        return self._result(made.version, what, {"merged": merged, "left": left})

    def _result(self, version: int | None, summary: str, detail: JsonBody) -> OperationResult:
        return OperationResult(self.kind, self.root, version, summary, detail)


def compact(
    location: Location,
    *,
    operator: int | None = None,
    store: str | None = None,
    partition: int | None = None,
    request: bool = False,
    checkpoint: Location | None = None,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
) -> CompactPlan:
    """Plan to merge partitions into one segment each. Nothing is changed before `run`.

    `location` is a query's checkpoint, its stateLocation, or a store's folder. `operator`, `store`
    and `partition` choose some; without them it is all. With `request` a request is left, and
    whoever writes the root merges; without, a driver that runs stops with Conflict. `checkpoint`
    names Spark's checkpoint where the state is elsewhere.

    Raises InvalidArgument where nothing is chosen, and IllegalState where the newest version of a
    query is not known to have reached its sink.
    """
    site = open_site(location, checkpoint, options)
    site.root.version(None, operator, store, partition)  # refuses a choice of nothing
    base = site.versions.load(site.versions.versions()[-1])
    chosen = [
        (op, name, entry)
        for op, name, entry in base.partitions()
        if operator in (None, op) and store in (None, name) and partition in (None, entry.index)
    ]
    due = [each for each in chosen if is_mergeable(each[2].segments)]
    foreign = sum(not entry.segments and entry.num_keys > 0 for _, _, entry in chosen)
    if due and not request and is_of_query(base):
        check_delivered(site, base)
    return CompactPlan(
        "compact",
        site.location,
        base.version,
        tuple(_to_merge(*each) for each in due),
        len(chosen) - len(due) - foreign,
        foreign,
        site.age_ms(base),
        request,
        reason,
        fences=not request,
        job=_Compaction(site, base),
    )


def _to_merge(operator: int, store: str, entry: PartitionEntry) -> PartitionToMerge:
    size = sum(ref.info.size for ref in entry.segments)
    return PartitionToMerge(operator, store, entry.index, len(entry.segments), size)


@dataclass(frozen=True)
class _Compaction:
    """One compaction of a version, from its plan to its end."""

    site: Site
    base: Manifest

    def leave(self, plan: CompactPlan) -> str:
        """Leave a request; its id."""
        site, places = self.site, [each.place for each in plan.partitions]
        entry = self._entry(plan, {"partitions": len(places), "request": True}, makes_version=False)
        site.journal.begin(entry)
        leave_request(site.storage, entry.id, places, entry.at_ms)
        return entry.id

    def commit(self, plan: CompactPlan, progress: Progress) -> tuple[Manifest, int]:
        """Merge and commit; the version, and how many merges are in it."""
        entry = self._entry(plan, {"partitions": len(plan.partitions)}, makes_version=True)
        wanted: list[PreparedPartition] = []

        def publish() -> Manifest:
            wanted.extend(self._merged(plan.partitions, progress))
            return self._publish(entry, wanted)

        made = self.site.carry_out(entry, self.base, publish)
        there = {
            (operator, name, part.index, ref.name)
            for operator, name, part in made.partitions()
            for ref in part.segments
        }
        swaps = [(*part.place, swap.output.name) for part in wanted for swap in part.swaps]
        return made, sum(swap in there for swap in swaps)

    def _entry(
        self, plan: CompactPlan, detail: Mapping[str, Any], *, makes_version: bool
    ) -> OperationEntry:
        version = self.base.version + makes_version
        return self.site.entry("compact", version, plan.reason, detail, makes_version=makes_version)

    def _merged(
        self, todo: Sequence[PartitionToMerge], progress: Progress
    ) -> list[PreparedPartition]:
        """Merge partition after partition; what the version is committed with."""
        places, total = {each.place: each for each in todo}, sum(each.size_bytes for each in todo)
        prepared, done = [], 0
        for operator, name, entry in self.base.partitions():
            part = prepare_unchanged(self.base, operator, name, entry)
            if (found := places.get(part.place)) is not None:
                directory = self.base.directory(operator, name, entry.index)
                progress(done, total, directory)
                part = self._merge(part, directory, entry)
                done += found.size_bytes
            prepared.append(part)
        progress(total, total, "")
        return prepared

    def _merge(
        self, part: PreparedPartition, directory: str, entry: PartitionEntry
    ) -> PreparedPartition:
        site, base = self.site, self.base
        shape = StoreShape.of_entry(base.operators[part.operator][part.store])
        queue = MergeQueue(
            site.storage, directory, shape, site.conf_of(base), site.runtime, Counters()
        )
        cache = SegmentCache(site.storage, directory, shape.layout)
        queue.merge(Chain(entry, base.version, cache), force=True)
        return replace(part, swaps=queue.finished)

    def _publish(self, entry: OperationEntry, prepared: Sequence[PreparedPartition]) -> Manifest:
        site, base = self.site, self.base
        facts: dict[str, Any] = {
            "operation": entry.json(),
            "outbox": (),
            "delivered_through": entry.version,
        }
        if base.numbering is not None or base.batch is not None:
            lost = lost_numbers(site.storage, base)
            facts["numbering"] = Numbering.of(base).skipping(lost).json()
        committer = Committer(site.versions, site.runtime, site.conf_of(base))
        # After a Conflict the files stay for a clean-up: nobody knows that no version has them.
        return committer.commit(base, None, prepared, site.runtime.new_id(), **facts)
