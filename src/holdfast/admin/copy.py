"""Copying a root's versions to another root, of any kind.

    copying = plan_copy(open_storage("totals"), open_storage("s3://bucket/totals"))
    copying.plan.size_bytes                 # nothing is written yet
    copying.run().versions

The target carries a mark from before its first file until after its last one, and no root with
the mark can be opened. So a copy is either complete or cannot be mistaken for one. Running it again
resumes it. If the run before is still alive, that one stops before it commits, and removes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.admin.copy_ends import (
    End,
    Mark,
    check_places,
    choose_versions,
    is_same_history,
    versions_in,
    way_out,
)
from holdfast.admin.copy_files import needed_files
from holdfast.admin.copy_transfer import CopyProgress, Transfer
from holdfast.admin.turn import Turn
from holdfast.engine.files.filenames import (
    delivered_path,
    manifest_path,
    operation_version,
    tag_path,
)
from holdfast.engine.files.manifest import delivered_notes
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Conflict, InvalidArgument, VersionNotFound

_THREADS = 4


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy will do. `present` files are at the target already, in the right size."""

    source: str
    target: str
    versions: tuple[int, ...]
    tags: Mapping[str, int]
    files: int
    size_bytes: int
    present_files: int
    present_bytes: int
    resumes: bool
    is_done: bool


@dataclass(frozen=True, slots=True)
class CopyResult:
    """What a copy did. Retention removed the `vanished` versions before they were copied."""

    source: str
    target: str
    versions: tuple[int, ...]
    vanished: tuple[int, ...]
    tags: Mapping[str, int]
    written_files: int
    written_bytes: int
    kept_files: int
    kept_bytes: int


def plan_copy(
    source: Storage, target: Storage, wanted: Sequence[str] = (), *, threads: int = _THREADS
) -> CopyJob:
    """Read both roots and plan a copy. Nothing is written.

    `wanted` are versions, tags, "newest" and ranges such as "3..7", "3.." and "..7"; without any
    it is every retained version. Returns a job to be run. Raises InvalidArgument for a target that
    is the source or inside it, that can only be read, or that holds anything but an unfinished copy
    or an older state of the same history.
    """
    check_places(source.source, target.source)
    return CopyJob(source.source, target.source, wanted, threads)


class CopyJob:
    """One copy, to be inspected and then run. Made by `plan_copy`."""

    def __init__(
        self, source: Storage, target: Storage, wanted: Sequence[str], threads: int
    ) -> None:
        self._source, self._target = source, target
        history = VersionLog(source, Runtime.system())
        self._listed, tags = history.versions(), history.tags()
        if not self._listed:
            raise InvalidArgument(
                f"{source.location} holds no Holdfast state. Check the path. For a query, "
                "name its checkpoint or its stateLocation.",
                condition="STATE_STORE_NOT_A_STORE",
            )
        chosen = choose_versions(self._listed, tags, wanted, source.location)
        self._newest = chosen[-1]
        self._tags = {name: version for name, version in tags.items() if version in chosen}
        self._from, self._to = End.of(source, chosen), End.of(target)
        self._turn = Turn(target, "copy")
        self._check_target()
        waiting = self._newest if self._newest == self._listed[-1] else None
        self._files = needed_files(self._from.manifests, waiting, self._from.sizes)
        self._has_created = False
        self._transfer = Transfer(
            source,
            target,
            self._from.sizes,
            set(chosen) - set(self._from.manifests),
            threads=threads,
            check=self._turn.check,
            has_moved_on=self._has_moved_on,
        )

    def _small_files(self) -> dict[str, int]:
        """The manifests, tags and journal entries to copy, with their sizes."""
        tags = {path: self._from.sizes.get(path, 0) for path in map(tag_path, self._tags)}
        journal = {path: self._from.sizes[path] for path in self._journal}
        return (
            tags
            | journal
            | {manifest_path(version): len(raw) for version, raw in self._from.raw.items()}
        )

    @property
    def _journal(self) -> list[str]:
        """The journal of the source, up to the newest version that is copied."""
        listed = sorted(self._from.sizes)
        versions = {path: operation_version(path) for path in listed}
        return [path for path, at in versions.items() if at is not None and at <= self._newest]

    @property
    def plan(self) -> CopyPlan:
        """What the copy will do."""
        sizes = {file.path: self._transfer.size(file) for file in self._files}
        sizes |= self._small_files()
        there = [path for path, size in sizes.items() if self._to.sizes.get(path) == size]
        return CopyPlan(
            source=self._source.location,
            target=self._target.location,
            versions=tuple(self._from.manifests),
            tags=dict(self._tags),
            files=len(sizes),
            size_bytes=sum(sizes.values()),
            present_files=len(there),
            present_bytes=sum(sizes[path] for path in there),
            resumes=self._turn.resumes,
            is_done=len(there) == len(sizes) and self._is_whole(),
        )

    def run(self, progress: CopyProgress | None = None) -> CopyResult:
        """Copy, verify every byte at the target, and only then allow it to be opened.

        `progress` is called after each piece. Raises Corruption for a damaged file of the source,
        Conflict if another writer uses the target, and VersionNotFound if retention was faster. In
        each case the target cannot be opened, and the copy can be run again.
        """
        if not self.plan.is_done:
            told, total = progress or (lambda done, total, path: None), self.plan.size_bytes
            self._take_turn()
            self._transfer.bring(self._files, told, total)
            self._check_newest()
            self._commit()
            told(total, total, "")
        return self._outcome()

    # -- before anything is written ------------------------------------------------------------

    def _check_target(self) -> None:
        """Reject a target that holds anything but this history."""
        theirs, mark = self._to.manifests, self._turn.mark
        if mark is not None and mark.fork is not None:
            raise self._refusal(
                "holds an unfinished fork. Run the same `holdfast fork` again to finish it, or "
                f"start afresh. {way_out(self._target.location)}"
            )
        if mark is None and not theirs:
            if self._to.sizes:
                raise self._refusal("is not empty. Name an empty place.")
            return
        known = End(dict(self._from.manifests))
        begun = {} if mark is None else mark.versions
        wanted = {*theirs, *begun} & set(self._listed)
        known.load(self._source, wanted - set(known.manifests))
        ours = known.manifests
        if mark is not None:
            common = ours.keys() & begun.keys()
            if not common or any(begun[v] != ours[v].commit_id for v in common):
                raise self._refusal(
                    "holds an unfinished copy of another root, or of versions that are gone there. "
                    f"{way_out(self._target.location)}"
                )
        elif max(theirs) not in ours:
            raise self._refusal(
                f"ends with version {max(theirs)}, which {self._source.location} does not have: it "
                "holds other state, or continued on its own. Name another place."
            )
        if not is_same_history(ours, theirs):
            raise self._refusal("holds other state. Name an empty place.")
        self._check_tags()

    def _check_tags(self) -> None:
        if self._turn.mark is not None:
            return
        theirs = VersionLog(self._target, Runtime.system()).tags()
        for name, version in self._tags.items():
            if theirs.get(name, version) != version:
                raise self._refusal(
                    f"has the tag {name!r} on version {theirs[name]}, {self._source.location} on "
                    f"{version}. Remove one of them."
                )

    def _is_whole(self) -> bool:
        """Whether the target is already complete, with all versions and tags."""
        versions = self._from.manifests.keys() <= self._to.manifests.keys()
        tags = all(tag_path(name) in self._to.sizes for name in self._tags)
        return self._turn.mark is None and versions and tags

    def _refusal(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"Nothing was copied: {self._target.location} {what}")

    # -- the mark of a copy under way ----------------------------------------------------------

    def _take_turn(self) -> None:
        if self._turn.resumes:
            self._turn.resume()
            return
        versions = {version: found.commit_id for version, found in self._from.manifests.items()}
        self._turn.begin(self._source.location, Mark(Runtime.system().new_id(), versions))

    # -- making it a root ----------------------------------------------------------------------

    def _check_newest(self) -> None:
        if self._newest in self._transfer.vanished:
            raise VersionNotFound(
                f"Retention removed version {self._newest} of {self._source.location} while it was "
                "copied. Run the same copy again: it takes the newest version, and keeps the files "
                "copied so far. If that repeats, stop the stream meanwhile."
            )

    def _commit(self) -> None:
        """Create the manifests, oldest first; check that no file is missing; remove the mark."""
        self._turn.check()
        for version in self._taken:
            self._create(version)
        self._check_whole()
        self._bring_tags()
        self._bring_journal()
        if self._is_delivered():
            commit_id = self._from.manifests[self._newest].commit_id
            self._target.create_if_absent(delivered_path(self._newest, commit_id), b"")
        self._turn.end()

    @property
    def _taken(self) -> list[int]:
        return sorted(set(self._from.manifests) - self._transfer.vanished)

    def _create(self, version: int) -> None:
        path, raw = manifest_path(version), self._from.raw[version]
        if self._target.create_if_absent(path, raw):
            self._has_created = True
            self._transfer.written.add(len(raw))
            return
        if bytes(self._target.read(path)) == raw:
            self._transfer.kept.add(len(raw))
            return
        if not self._turn.resumes and not self._has_created:
            self._turn.end()  # another history: nothing of this copy is in it
        raise Conflict(
            f"Version {version} of {self._target.location} was committed by another writer while "
            "it was copied to. Name another place, or one that nobody writes to."
        )

    def _check_whole(self) -> None:
        """Check that every version at the target has all its files, in full length."""
        found = End.of(self._target)
        has_output = any(file.parts for file in self._files)
        waiting = self._newest if has_output and not self._has_moved_on() else None
        for file in needed_files(found.manifests, waiting):
            if found.sizes.get(file.path, -1) < file.least_bytes:
                raise Conflict(
                    f"{file.path} disappeared from {self._target.location} during the copy: "
                    "another process writes there. Stop it, then run the copy again."
                )

    def _bring_tags(self) -> None:
        for name, version in self._tags.items():
            if version not in self._transfer.vanished:
                self._bring(tag_path(name))

    def _bring_journal(self) -> None:
        for path in self._journal:
            self._bring(path)

    def _bring(self, path: str) -> None:
        """Bring a small file that never changes, unless it is gone at the source."""
        try:
            raw = bytes(self._source.read(path))
        except BlobNotFound:
            return  # untagged meanwhile, or an attempt that was given up
        is_new = self._target.create_if_absent(path, raw)
        if not is_new and bytes(self._target.read(path)) != raw:
            self._target.delete(path)
            is_new = self._target.create_if_absent(path, raw)
        (self._transfer.written if is_new else self._transfer.kept).add(len(raw))

    def _is_delivered(self) -> bool:
        """Whether the source records that the newest version's rows have reached the sink."""
        manifest = self._from.manifests[self._newest]
        is_query = manifest.scope.get("kind") == "query"
        noted = any(path in self._from.sizes for path in delivered_notes(manifest))
        return is_query and (noted or self._has_moved_on())

    def _has_moved_on(self) -> bool:
        """Whether the source has a later version, which is committed only after a delivery."""
        return max(versions_in(self._source), default=0) > self._newest

    def _outcome(self) -> CopyResult:
        taken, written, kept = self._taken, self._transfer.written, self._transfer.kept
        return CopyResult(
            source=self._source.location,
            target=self._target.location,
            versions=tuple(taken),
            vanished=tuple(sorted(self._transfer.vanished)),
            tags={name: version for name, version in self._tags.items() if version in taken},
            written_files=written.files,
            written_bytes=written.size_bytes,
            kept_files=kept.files,
            kept_bytes=kept.size_bytes,
        )
