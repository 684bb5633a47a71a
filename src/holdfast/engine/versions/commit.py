"""The commit protocol as pure functions over observed facts. No I/O happens here.

A version becomes real by creating its manifest, whole and only if absent. This module decides
whether a manifest may be created, what the outcome of an attempt means, and what the manifest
contains. It has no side effects, so that tests can run every order of events through it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from holdfast.engine.files.manifest import Manifest, PartitionEntry, SegmentRef, StoreEntry
from holdfast.errors import IllegalState

StorePartition = tuple[int, str, int]
"""A partition of a store: operator, store name, partition."""


class Verdict(Enum):
    """The outcome of an attempt to create a manifest."""

    COMMITTED = "committed"
    CONFLICT = "conflict"
    RETRY = "retry"


@dataclass(frozen=True, slots=True)
class Swap:
    """A finished merge or snapshot: `output` holds the same data as `inputs`, in chain order.

    Where an input was damaged, `output.inputs` are the segments that were read instead.
    """

    inputs: tuple[str, ...]
    output: SegmentRef
    evict: int | None = None
    """The bound it was made with: rows at or below may be missing in `output`."""
    expire: int | None = None


@dataclass(frozen=True, slots=True)
class PreparedPartition:
    """What a finished task gives to the committer. The files it names exist already.

    `inline` is the delta itself when it is small; the committer puts it in the pack of the version
    and completes `delta` with its position there.
    """

    operator: int
    store: str
    partition: int
    base_version: int
    schemas: str
    delta: SegmentRef | None
    num_keys: int
    evict: int | None = None
    expire: int | None = None
    inline: bytes | None = None
    swaps: tuple[Swap, ...] = ()
    num_removed: int | None = None
    """How many keys of the version before are removed; None where the store does not count them."""

    @property
    def place(self) -> StorePartition:
        """The partition that it changes."""
        return self.operator, self.store, self.partition


def judge_create(created: bool | None, existing_commit_id: str | None, commit_id: str) -> Verdict:
    """Judge an attempt to create a manifest.

    `created` is the storage's answer, None when it gave none; `existing_commit_id` is what a
    later read of that version showed, None for nothing.

    A reply can get lost after the storage has done the work, and a retry of the same request then
    finds the name taken. Commit ids are random, so finding our own means that we committed. Finding
    nothing, we try again: should the first request still arrive, it carries the same bytes, and it
    does not matter which of the two creates the manifest.
    """
    if created:
        return Verdict.COMMITTED
    if existing_commit_id is None:
        return Verdict.RETRY
    return Verdict.COMMITTED if existing_commit_id == commit_id else Verdict.CONFLICT


def may_have_aged(waited_ms: int | None, grace_ms: int) -> bool:
    """Whether a version after the base may have been committed and removed again since.

    `waited_ms` is the time since no version after the base existed, None when that was never
    known. A version stays for at least the grace period after its commit; half of that period is
    left for clocks that differ.
    """
    return waited_ms is None or waited_ms * 2 >= grace_ms


def still_newest(
    verdict: Verdict, version: int, commit_id: str, newest: int | None, next_parent: str | None
) -> Verdict:
    """Whether a version created after a long time is part of the history.

    Creating is exclusive only while the manifest exists. A writer that slept past the grace period
    may create again a version that another writer committed and retention has removed.
    `next_parent` is the commit id that the manifest of the next version names as its parent, None
    where there is none. Requires: `newest` was listed, and the next version read, after the create.
    """
    if verdict is not Verdict.COMMITTED or newest is None or newest <= version:
        return verdict
    return verdict if next_parent == commit_id else Verdict.CONFLICT


def is_stray(commit_id: str, next_parent: str | None) -> bool:
    """Whether a created version is certainly not part of the history, and may be deleted again.

    Where the next version is gone nobody can tell: the manifest stays until retention removes it.
    """
    return next_parent is not None and next_parent != commit_id


def check_prepared(
    base: Manifest, prepared: Sequence[PreparedPartition], schemas: Mapping[tuple[int, str], str]
) -> None:
    """Raise IllegalState unless each partition of `base` has exactly one fitting result."""
    expected = {(op, name, entry.index) for op, name, entry in base.partitions()}
    seen: set[StorePartition] = set()
    for row in prepared:
        place = row.place
        what = f"operator {row.operator}, store {row.store!r}, partition {row.partition}"
        if place not in expected:
            raise IllegalState(f"Version {base.version} has no {what}: nothing was committed.")
        if place in seen:
            raise IllegalState(f"Two results for {what}: nothing was committed.")
        if row.base_version != base.version:
            raise IllegalState(
                f"The result for {what} is based on version {row.base_version}, not on "
                f"{base.version}: nothing was committed."
            )
        if row.schemas != schemas[row.operator, row.store]:
            raise IllegalState(
                f"The result for {what} has another schema than the store: nothing was committed."
            )
        seen.add(place)
    if missing := sorted(expected - seen):
        op, name, partition = missing[0]
        raise IllegalState(
            f"{len(missing)} partitions have no result; the first is operator {op}, store "
            f"{name!r}, partition {partition}. Nothing was committed."
        )


def next_operators(
    base: Manifest, prepared: Sequence[PreparedPartition], present: Collection[str] | None = None
) -> dict[int, dict[str, StoreEntry]]:
    """The operators of the version after `base`.

    A swap is applied where exactly its inputs still stand side by side, the bounds are not below
    those it was made with, and its file is among `present` (None: all are). Otherwise it is left
    out: the segments it would replace still hold the data, so nothing is lost but the work of
    merging.
    """
    by_place = {row.place: row for row in prepared}
    return {
        operator: {
            name: replace(
                store,
                partitions=tuple(
                    _next_entry(
                        entry,
                        by_place[operator, name, entry.index],
                        base.directory(operator, name, entry.index),
                        present,
                    )
                    for entry in store.partitions
                ),
            )
            for name, store in stores.items()
        }
        for operator, stores in base.operators.items()
    }


def _next_entry(
    entry: PartitionEntry, row: PreparedPartition, directory: str, present: Collection[str] | None
) -> PartitionEntry:
    segments = entry.segments
    evict, expire = higher(entry.evict, row.evict), higher(entry.expire, row.expire)
    for swap in row.swaps:
        is_there = present is None or swap.output.path(directory) in present
        if is_there and is_within(swap, evict, expire):
            segments = swap_in(segments, swap)
    if row.delta is not None:
        segments = (row.delta, *segments)
    return replace(
        entry,
        segments=segments,
        num_keys=row.num_keys,
        evict=evict,
        expire=expire,
    )


def fits(segments: tuple[SegmentRef, ...], swap: Swap) -> bool:
    """Whether the swap's inputs stand side by side in `segments`."""
    return swap_in(segments, swap) is not segments


def is_within(swap: Swap, evict: int | None, expire: int | None) -> bool:
    """Whether a swap has every row that these bounds show.

    A bound steps back where history does: what was merged before that may lack rows that are back.
    """
    return _reaches(evict, swap.evict) and _reaches(expire, swap.expire)


def _reaches(bound: int | None, wanted: int | None) -> bool:
    return wanted is None or (bound is not None and bound >= wanted)


def swap_in(segments: tuple[SegmentRef, ...], swap: Swap) -> tuple[SegmentRef, ...]:
    """`segments` with the swap's inputs replaced; unchanged when these are not all there."""
    names = tuple(ref.name for ref in segments)
    width = len(swap.inputs)
    for start in range(len(names) - width + 1):
        if names[start : start + width] == swap.inputs:
            inputs = swap.output.inputs or segments[start : start + width]
            output = replace(swap.output, inputs=tuple(ref.without_inputs() for ref in inputs))
            return (*segments[:start], output, *segments[start + width :])
    return segments


def higher(left: int | None, right: int | None) -> int | None:
    """The higher of two bounds; a bound never steps back."""
    if left is None or right is None:
        return right if left is None else left
    return max(left, right)
