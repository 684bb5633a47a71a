"""Decides which files may be removed. The rules are pure; a `Cleaner` lists and deletes.

`Cleaner.survey` reads what there is, `Survey.plan` says what the rules make of it, and
`Cleaner.remove` does that.
"""

from __future__ import annotations

import logging
import sys
from bisect import bisect_left
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
    done_path,
    is_copy,
)
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, VersionNotFound

log = logging.getLogger(__name__)
LEAST_SWEEP_AGE_S = 60.0
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
    operation: str | None = None
    """The id of the operation that made it, if one did."""
    tops: frozenset[tuple[str, int]] = frozenset()
    """Of the newest version: where its segments are, and up to which version each goes."""

    @classmethod
    def of(cls, manifest: Manifest, *, is_newest: bool) -> KeptVersion:
        """What a version needs, including its output for as long as that may be undelivered."""
        waiting = {part["path"] for part in manifest.outbox} if is_newest else set()
        made_by = manifest.operation
        # Versions share most of their files, and so their names.
        files = frozenset(sys.intern(path) for path in manifest.files() | waiting)
        return cls(
            manifest.committed_at_ms,
            files,
            frozenset(manifest.directories()),
            frozenset(sys.intern(path) for path in manifest.unmerged_files()),
            manifest.counts,
            frozenset((manifest.operation or {}).get("detail", {}).get("damaged", ())),
            None if made_by is None else str(made_by.get("id")),
            _tops(manifest) if is_newest else frozenset(),
        )


def _tops(manifest: Manifest) -> frozenset[tuple[str, int]]:
    return frozenset(
        (manifest.directory(operator, name, entry.index), ref.high)
        for operator, name, entry in manifest.partitions()
        for ref in entry.segments
    )


@dataclass(frozen=True, slots=True)
class CleanUp:
    """What to delete, manifests before files; and what stays although no kept version needs it."""

    versions: list[int] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    waiting_versions: Mapping[int, int] = field(default_factory=dict)
    """Versions that stay for their grace period only, with its end."""
    waiting_files: Mapping[str, int] = field(default_factory=dict)
    """Files that stay for a grace period only, with its end."""
    spared_files: list[str] = field(default_factory=list)
    """Files that may be merges which somebody is about to commit."""


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
    ends = unneeded_files(listed, kept, grace_ms)
    return [path for path, end_ms in ends.items() if now_ms >= end_ms and path not in spared]


def unneeded_files(
    listed: Sequence[str], kept: Mapping[int, KeptVersion], grace_ms: int
) -> dict[str, int]:
    """The files that `dead_files` speaks of, spared ones included, and until when each waits."""
    if not kept:
        return {}
    needed = frozenset().union(*(manifest.files for manifest in kept.values()))
    needed |= needed_copies(listed, kept, needed)
    ordered = sorted(kept)
    found = {}
    for path in listed:
        name = data_file(path)
        if name is None or path in needed or name.version > ordered[-1]:
            continue
        decided = ordered[bisect_left(ordered, name.version)]
        found[path] = kept[decided].committed_at_ms + grace_ms
    return found


def possible_merges(listed: Sequence[str], kept: Mapping[int, KeptVersion]) -> set[str]:
    """Merges and snapshots that somebody may be about to commit, as far as their names tell.

    A merge ends where the newest of its inputs does, and takes their place as long as they stand
    side by side in the newest version. Where no segment there ends with that version any more, none
    ever will again: what versions add ends with themselves, or where another segment ended.
    """
    if not kept:
        return set()
    tops = kept[max(kept)].tops
    return {
        path
        for path in listed
        if (name := data_file(path)) is not None
        and name.kind in ("merge", "snapshot")
        and (path.rpartition("/")[0], name.version) in tops
    }


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


@dataclass(frozen=True, slots=True)
class Survey:
    """What a clean-up has found in a root."""

    listed: Sequence[str]
    """The data files of the root, read first."""
    spared: Collection[str]
    """Merges that wait to be swapped in, as far as the cleaner knows."""
    tagged: Collection[int]
    kept: Mapping[int, KeptVersion]
    """Every version that was there."""
    sizes: Mapping[str, int]
    now_ms: int
    keep: int
    grace_ms: int

    def plan(self) -> CleanUp:
        """What is to be removed, if nobody tags a version before that."""
        ends = self._ends(self.tagged)
        retired = [version for version, end_ms in ends.items() if self.now_ms >= end_ms]
        left = {version: end_ms for version, end_ms in ends.items() if self.now_ms < end_ms}
        files = unneeded_files(self.listed, self._without(retired), self.grace_ms)
        free = {path: end_ms for path, end_ms in files.items() if path not in self.spared}
        return CleanUp(
            retired,
            [path for path, end_ms in free.items() if self.now_ms >= end_ms],
            left,
            {path: end_ms for path, end_ms in free.items() if self.now_ms < end_ms},
            [path for path in files if path in self.spared],
        )

    def kept_by_tags(self) -> set[int]:
        """The versions that are there because of their tags alone, whatever is waited for."""
        return set(self._ends(())) & set(self.tagged)

    def dead_files(self, retired: Collection[int]) -> list[str]:
        """The files to remove once these versions are gone."""
        kept = self._without(retired)
        return dead_files(self.listed, kept, self.spared, self.now_ms, self.grace_ms)

    def _without(self, retired: Collection[int]) -> dict[int, KeptVersion]:
        gone = set(retired)
        return {version: each for version, each in self.kept.items() if version not in gone}

    def _ends(self, tagged: Collection[int]) -> dict[int, int]:
        return grace_ends_ms(
            {version: each.committed_at_ms for version, each in self.kept.items()},
            tagged,
            self.keep,
            self.grace_ms,
            {version for version, each in self.kept.items() if not each.counts},
        )


class Cleaner:
    """Cleans one root repeatedly. It reads each version that no longer changes only once.

    `is_driver` says that it belongs to the process that writes the root, which knows the merges
    that wait to be swapped in. Another one leaves everything that may be such a merge.
    """

    def __init__(
        self,
        versions: VersionLog,
        runtime: Runtime,
        conf: StateStoreConf,
        *,
        is_driver: bool = True,
    ) -> None:
        self._versions, self._runtime, self._conf = versions, runtime, conf
        self._is_driver = is_driver
        self._known: dict[int, KeptVersion] = {}

    def clean(
        self,
        waiting: Callable[[], Collection[str]] = frozenset,
        quiet: AbstractContextManager[object] | None = None,
    ) -> CleanUp:
        """Delete what the rules allow: manifests first, so that none ever lacks a file.

        `waiting` and `quiet` are explained in `survey`.
        """
        return self.remove(self.survey(waiting, quiet))

    def survey(
        self,
        waiting: Callable[[], Collection[str]] = frozenset,
        quiet: AbstractContextManager[object] | None = None,
    ) -> Survey:
        """Read what is there. Nothing is changed.

        `waiting` returns the files of merges that wait to be swapped in, including those under way.
        While `quiet` is entered, nobody may work on other merges; it is left before any version is
        read.
        """
        versions, conf, now_ms = self._versions, self._conf, self._runtime.clock_ms()
        with quiet or nullcontext():
            found = versions.storage.list("")
            spared = set(waiting())
        tagged = set(versions.tags().values())
        manifests = self._read(versions.versions())
        # Below may be directories of other stores, whose manifests are elsewhere.
        own = {PACKS, OUTBOXES}.union(*(each.directories for each in manifests.values()))
        sizes = {blob.path: blob.size for blob in found if blob.path.rpartition("/")[0] in own}
        if not self._is_driver:
            spared |= possible_merges(list(sizes), manifests)
        keep, grace_ms = conf.min_versions_to_retain, conf.grace_period_ms
        return Survey(list(sizes), spared, tagged, manifests, sizes, now_ms, keep, grace_ms)

    def remove(self, survey: Survey) -> CleanUp:
        """Delete what the rules allow by a survey, and say what that was."""
        storage = self._versions.storage
        planned = survey.plan().versions
        for version in planned:
            self._note_operation(version, survey.kept[version])
        retired = self._versions.retire(planned)
        files = survey.dead_files(retired)
        for path in files:
            storage.delete(path)
        storage.sweep(max(survey.grace_ms / 1000, LEAST_SWEEP_AGE_S))
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

    def _note_operation(self, version: int, kept: KeptVersion) -> None:
        """Note that an operation has made a version, for the journal: the manifest says it no more.

        The operation did that by itself, unless it crashed before.
        """
        if kept.operation is not None:
            self._versions.storage.create_if_absent(done_path(version, kept.operation), b"")

    def _read(self, there: Sequence[int]) -> dict[int, KeptVersion]:
        """What the rules need to know about the versions that exist."""
        newest = max(there, default=0)
        read: dict[int, KeptVersion] = {}
        undone: dict[int, int] = {}
        """Damaged versions that a rollback went back past, with when it was committed."""
        for version in sorted(there, reverse=True):
            try:
                found = self._found(version, undone, is_newest=version == newest)
            except VersionNotFound:
                # Another clean-up has removed it. Nobody removes the newest one in this way.
                if version == newest:
                    raise
                continue
            read[version] = found
            undone |= dict.fromkeys(found.undone, found.committed_at_ms)
        # A version with a successor is final; the newest may still turn out to be a stray.
        self._known = {version: each for version, each in read.items() if version < newest}
        return read

    def _found(self, version: int, undone: Mapping[int, int], *, is_newest: bool) -> KeptVersion:
        if version in self._known:
            return self._known[version]
        if version in undone and not self._is_readable(version):
            return KeptVersion(undone[version], frozenset())
        return KeptVersion.of(self._versions.load(version), is_newest=is_newest)
