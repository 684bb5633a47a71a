"""Which files may go. The rules are pure; `clean` lists, decides and deletes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.conf import StateStoreConf
from holdfast.engine.filenames import OUTBOXES, PACKS, VERSIONS, data_file
from holdfast.engine.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions import VersionLog

log = logging.getLogger(__name__)
_LEAST_SWEEP_AGE_S = 60.0
"""A temporary file younger than this may belong to a writer at work."""


@dataclass(frozen=True, slots=True)
class Kept:
    """A manifest that stays: when it was committed and the files it needs."""

    committed_at_ms: int
    files: frozenset[str]


@dataclass(frozen=True, slots=True)
class CleanUp:
    """What to delete, manifests before files."""

    versions: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)


def retired_versions(
    committed_at_ms: Mapping[int, int],
    tagged: Collection[int],
    keep: int,
    now_ms: int,
    grace_ms: int,
) -> list[int]:
    """Versions that may go: beyond the newest `keep`, without a tag, and the grace period over.

    The grace period counts from the commit that pushed a version out of the newest `keep`.
    """
    ordered = sorted(committed_at_ms)
    retired = []
    for place, version in enumerate(ordered):
        successor = place + max(keep, 2)
        if successor >= len(ordered) or version in tagged:
            continue
        if now_ms - committed_at_ms[ordered[successor]] >= grace_ms:
            retired.append(version)
    return retired


def dead_files(
    listed: Sequence[str],
    kept: Mapping[int, Kept],
    spared: Collection[str],
    now_ms: int,
    grace_ms: int,
) -> list[str]:
    """Listed data files that no kept version needs and that nobody can be about to commit.

    Requires: `listed` was read first, then `spared`, then `kept`. A file of a version above the
    newest is never touched; one of a version up to it has lost once that version was committed
    with other files, and goes when that is longer ago than the grace period. `spared` are merges,
    finished or under way, that wait to be swapped in.
    """
    if not kept:
        return []
    needed = frozenset().union(*(manifest.files for manifest in kept.values()))
    newest = max(kept)
    dead = []
    for path in listed:
        name = data_file(path)
        if name is None or path in needed or path in spared or name.version > newest:
            continue
        decided = min(version for version in kept if version >= name.version)
        if now_ms - kept[decided].committed_at_ms >= grace_ms:
            dead.append(path)
    return dead


def clean(
    versions: VersionLog,
    runtime: Runtime,
    conf: StateStoreConf,
    waiting: Callable[[], Collection[str]] = frozenset,
) -> CleanUp:
    """Delete what the rules say: manifests first, so that none ever lacks a file.

    `waiting` gives the files of merges that wait to be swapped in, those under way included.
    """
    storage = versions.storage
    found = [blob.path for blob in storage.list("")]
    spared = waiting()
    tagged = set(versions.tags().values())
    now_ms = runtime.clock_ms()
    manifests = {v: versions.load(v) for v in versions.versions()}
    # Other stores of this partition may keep their files, with manifests of their own, below.
    own = {PACKS, OUTBOXES}.union(*(manifest.directories() for manifest in manifests.values()))
    listed = [path for path in found if path.rpartition("/")[0] in own]
    retired = versions.retire(
        retired_versions(
            {v: manifest.committed_at_ms for v, manifest in manifests.items()},
            tagged,
            conf.min_versions_to_retain,
            now_ms,
            conf.grace_period_ms,
        )
    )
    kept = {
        v: Kept(manifest.committed_at_ms, _needed(manifest, v == max(manifests)))
        for v, manifest in manifests.items()
        if v not in set(retired)
    }
    files = dead_files(listed, kept, spared, now_ms, conf.grace_period_ms)
    for path in files:
        storage.delete(path)
    storage.sweep(max(conf.grace_period_ms / 1000, _LEAST_SWEEP_AGE_S))
    if retired or files:
        log.info(
            "Removed %d versions and %d files from %s/%s",
            len(retired), len(files), storage.location, VERSIONS,
        )  # fmt: skip
    return CleanUp(retired, files)


def _needed(manifest: Manifest, is_newest: bool) -> frozenset[str]:
    """The files of a version; its output, too, as long as it may not have been delivered."""
    waiting = {part["path"] for part in manifest.outbox} if is_newest else set()
    return frozenset(manifest.files() | waiting)
