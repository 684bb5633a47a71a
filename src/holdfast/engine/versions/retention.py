"""Decides which files may be removed. The rules are pure; a `Cleaner` lists and deletes."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import accumulate

from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import (
    OUTBOXES,
    PACKS,
    VERSIONS,
    copied_path,
    copy_path,
    data_file,
    is_copy,
)
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption

log = logging.getLogger(__name__)
_LEAST_SWEEP_AGE_S = 60.0
"""A temporary file younger than this may belong to a writer at work."""
_VERSIONS_WITH_COPIES = 3
"""The two newest, and one more, which is among the two if the newest manifest is damaged."""


def retention_of(conf: StateStoreConf) -> dict[str, int]:
    """How many versions a writer keeps, and for how long one more, as manifests say it."""
    return {"versions": conf.min_versions_to_retain, "grace_ms": conf.grace_period_ms}


USUAL_RETENTION = retention_of(StateStoreConf.empty)
"""That of a manifest that does not say it."""


@dataclass(frozen=True, slots=True)
class KeptVersion:
    """A manifest that stays: when it was committed and the files it needs."""

    committed_at_ms: int
    files: frozenset[str]
    directories: frozenset[str] = frozenset()
    """The directories of its stores."""
    unmerged: frozenset[str] = frozenset()
    """Those of its files whose rows are in no other file."""
    counts: bool = True
    """Whether it is one of the versions that retention counts."""
    undone: frozenset[int] = frozenset()
    """The damaged versions that it went back past."""

    @classmethod
    def of(cls, manifest: Manifest, *, is_newest: bool) -> KeptVersion:
        """What a version needs, including its output for as long as that may be undelivered."""
        waiting = {part["path"] for part in manifest.outbox} if is_newest else set()
        # Versions share most of their files, and so their names.
        files = frozenset(sys.intern(path) for path in manifest.files() | waiting)
        return cls(
            manifest.committed_at_ms,
            files,
            frozenset(manifest.directories()),
            frozenset(sys.intern(path) for path in manifest.unmerged_files()),
            manifest.counts,
            frozenset((manifest.operation or {}).get("detail", {}).get("damaged", ())),
        )


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
    uncounted: Collection[int] = (),
) -> list[int]:
    """Versions to remove: not among the newest `keep`, without a tag, and past the grace period.

    Those of `uncounted` do not count for `keep`; with them, twice as many stay at the most.
    """
    ends = grace_ends_ms(committed_at_ms, tagged, keep, grace_ms, uncounted)
    return [version for version, end_ms in ends.items() if now_ms >= end_ms]


def grace_ends_ms(
    committed_at_ms: Mapping[int, int],
    tagged: Collection[int],
    keep: int,
    grace_ms: int,
    uncounted: Collection[int] = (),
) -> dict[int, int]:
    """Until when each version waits that is not among the newest `keep` and has no tag.

    The grace period counts from the commit that pushed a version out of the newest `keep`, not from
    its own commit: readers get the whole period, however old the version is by then.
    """
    ordered, keep = sorted(committed_at_ms), max(keep, 2)
    counted = list(accumulate(version not in uncounted for version in ordered))
    ends: dict[int, int] = {}
    pushing = 0  # the first version that pushes out the one at `place`; it only moves up
    for place, version in enumerate(ordered):
        while pushing < len(ordered) and not (
            counted[pushing] - counted[place] >= keep or pushing - place >= 2 * keep
        ):
            pushing += 1
        if pushing == len(ordered):
            break
        if version not in tagged:
            ends[version] = committed_at_ms[ordered[pushing]] + grace_ms
    return ends


def dead_files(
    listed: Sequence[str],
    kept: Mapping[int, KeptVersion],
    spared: Collection[str],
    now_ms: int,
    grace_ms: int,
) -> list[str]:
    """Listed data files that no kept version needs and that nobody can be about to commit.

    A file of a version above the newest is never touched: its commit may be under way. A file of an
    earlier version has lost once that version was committed without it, and is removed a grace
    period later. `spared` are merges, finished or under way, that wait to be swapped in.
    Requires: `listed` was read first, then `spared`, then `kept`. In another order a file that is
    committed in between could look unneeded.
    """
    if not kept:
        return []
    needed = frozenset().union(*(manifest.files for manifest in kept.values()))
    needed |= needed_copies(listed, kept, needed)
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


def needed_copies(
    listed: Sequence[str], kept: Mapping[int, KeptVersion], needed: Collection[str]
) -> set[str]:
    """Second copies to keep: those of files with rows that the newest versions have nowhere else.

    A merge is swapped in only after it was read back: from then on the merge and its inputs hold
    the rows twice. A copy also stays while the file itself is missing and some version needs it.
    """
    copies = [path for path in listed if is_copy(path)]
    if not copies:
        return set()
    recent = sorted(kept)[-_VERSIONS_WITH_COPIES:]
    found = {copy_path(path) for version in recent for path in kept[version].unmerged}
    lost = set(map(copied_path, copies)).intersection(needed).difference(listed)
    return found.union(map(copy_path, lost))


class Cleaner:
    """Cleans one root repeatedly. It reads each version that no longer changes only once."""

    def __init__(self, versions: VersionLog, runtime: Runtime, conf: StateStoreConf) -> None:
        self._versions, self._runtime, self._conf = versions, runtime, conf
        self._known: dict[int, KeptVersion] = {}

    def clean(
        self,
        waiting: Callable[[], Collection[str]] = frozenset,
        quiet: AbstractContextManager[object] | None = None,
    ) -> CleanUp:
        """Delete what the rules allow: manifests first, so that none ever lacks a file.

        `waiting` returns the files of merges that wait to be swapped in, including those under way.
        While `quiet` is entered, nobody may work on other merges; it is left before any version is
        read and anything is deleted.
        """
        versions, conf, now_ms = self._versions, self._conf, self._runtime.clock_ms()
        storage = versions.storage
        with quiet or nullcontext():
            found = [blob.path for blob in storage.list("")]
            spared = waiting()
        tagged = set(versions.tags().values())
        manifests = self._read(versions.versions())
        # Below may be directories of other stores, whose manifests are elsewhere.
        own = {PACKS, OUTBOXES}.union(*(each.directories for each in manifests.values()))
        listed = [path for path in found if path.rpartition("/")[0] in own]
        retired = versions.retire(
            retired_versions(
                {version: each.committed_at_ms for version, each in manifests.items()},
                tagged,
                conf.min_versions_to_retain,
                now_ms,
                conf.grace_period_ms,
                {version for version, each in manifests.items() if not each.counts},
            )
        )
        gone = set(retired)
        kept = {version: each for version, each in manifests.items() if version not in gone}
        files = dead_files(listed, kept, spared, now_ms, conf.grace_period_ms)
        for path in files:
            storage.delete(path)
        storage.sweep(max(conf.grace_period_ms / 1000, _LEAST_SWEEP_AGE_S))
        if retired or files:
            log.info(
                "Removed %d versions and %d files from %s/%s",
                len(retired),
                len(files),
                storage.location,
                VERSIONS,
            )
        return CleanUp(retired, files)

    def _is_readable(self, version: int) -> bool:
        try:
            self._versions.load(version)
        except Corruption:
            return False
        return True

    def _read(self, there: Sequence[int]) -> dict[int, KeptVersion]:
        """What the rules need to know about the versions that exist."""
        newest = max(there, default=0)
        known = self._known
        read: dict[int, KeptVersion] = {}
        undone: dict[int, int] = {}
        """Damaged versions that a rollback went back past, with when it was committed."""
        for version in sorted(there, reverse=True):
            if version in known:
                read[version] = known[version]
            elif version in undone and not self._is_readable(version):
                read[version] = KeptVersion(undone[version], frozenset())
            else:
                loaded = self._versions.load(version)
                read[version] = KeptVersion.of(loaded, is_newest=version == newest)
            undone |= dict.fromkeys(read[version].undone, read[version].committed_at_ms)
        # A version with a successor is final; the newest may still turn out to be a stray.
        self._known = {version: each for version, each in read.items() if version < newest}
        return read
