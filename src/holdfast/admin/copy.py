"""Copying a root's versions to another root, of any kind.

    copying = plan_copy(open_storage("totals"), open_storage("s3://bucket/totals"))
    copying.plan.size_bytes                 # nothing is written yet
    copying.run().versions

The target carries a mark from before its first file until after its last one, and no root with
the mark can be opened. So a copy is either complete or cannot be mistaken for one. Running it again
resumes it. If the run before is still alive, that one stops before it commits, and removes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.admin.copy_ends import (
    End,
    Mark,
    check_places,
    choose_versions,
    is_same_history,
    last_turn,
    read_mark,
    remove_mark,
    take_turn,
    versions_in,
    way_out,
    write_mark,
)
from holdfast.admin.copy_files import NeededFile, needed_files, problem_of
from holdfast.engine.files.filenames import (
    copy_path,
    delivered_path,
    manifest_path,
    tag_path,
    turn_path,
)
from holdfast.engine.files.manifest import delivered_notes
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Conflict, Corruption, InvalidArgument, Unavailable, VersionNotFound

log = logging.getLogger(__name__)
CopyProgress = Callable[[int, int, str], None]
"""Called with the bytes done so far, the bytes in total, and the current file."""
_PIECE_BYTES = 8 << 20
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
        self._source, self._target, self._threads = source, target, threads
        history = VersionLog(source, Runtime.system())
        self._listed, tags = history.versions(), history.tags()
        if not self._listed:
            raise InvalidArgument(
                f"{source.location} holds no Holdfast state. Check the path; for a query it is "
                "`<checkpointLocation>/holdfast`.",
                condition="STATE_STORE_NOT_A_STORE",
            )
        chosen = choose_versions(self._listed, tags, wanted, source.location)
        self._newest = chosen[-1]
        self._tags = {name: version for name, version in tags.items() if version in chosen}
        self._from, self._to = End.of(source, chosen), End.of(target)
        self._mark = read_mark(target)
        self._resumes, self._turn = self._mark is not None, 0
        self._check_target()
        waiting = self._newest if self._newest == self._listed[-1] else None
        self._files = needed_files(self._from.manifests, waiting, self._from.sizes)
        self._vanished = set(chosen) - set(self._from.manifests)
        self._written, self._kept = [0, 0], [0, 0]
        self._has_created = False
        self._lock = threading.Lock()

    @property
    def plan(self) -> CopyPlan:
        """What the copy will do."""
        sizes = {file.path: self._size(file) for file in self._files}
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
            resumes=self._resumes,
            is_done=len(there) == len(sizes) and self._is_whole(),
        )

    def run(self, progress: CopyProgress | None = None) -> CopyResult:
        """Copy, verify every byte at the target, and only then allow it to be opened.

        `progress` is called after each piece. Raises Corruption for a damaged file of the source,
        Conflict if another writer uses the target, and VersionNotFound if retention was faster. In
        each case the target cannot be opened, and the copy can be run again.
        """
        if not self.plan.is_done:
            self._set_mark()
            self._bring_files(progress or (lambda done, total, path: None))
            self._check_newest()
            self._commit()
        return self._outcome()

    # -- before anything is written ------------------------------------------------------------

    def _check_target(self) -> None:
        """Reject a target that holds anything but this history."""
        theirs = self._to.manifests
        if self._mark is None and not theirs:
            if self._to.sizes:
                raise self._refusal("is not empty. Name an empty place.")
            return
        known = End(dict(self._from.manifests))
        begun = {} if self._mark is None else self._mark.versions
        wanted = {*theirs, *begun} & set(self._listed)
        known.load(self._source, wanted - set(known.manifests))
        ours = known.manifests
        if self._mark is not None:
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
        if self._mark is not None:
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
        return self._mark is None and versions and tags

    def _refusal(self, what: str) -> InvalidArgument:
        return InvalidArgument(f"Nothing was copied: {self._target.location} {what}")

    # -- files ---------------------------------------------------------------------------------

    def _set_mark(self) -> None:
        if self._mark is None:
            versions = {version: found.commit_id for version, found in self._from.manifests.items()}
            mark = Mark(Runtime.system().new_id(), versions)
            if not write_mark(self._target, self._source.location, mark):
                raise self._just_begun()
            self._mark = mark
            return
        turn = take_turn(self._target, self._mark)
        if turn is None:
            raise self._just_begun()
        self._turn = turn
        self._check_turn(self._mark)

    def _just_begun(self) -> Conflict:
        return Conflict(
            f"Another copy to {self._target.location} has just begun. Let it end, then run this "
            "one again."
        )

    def _check_turn(self, mark: Mark) -> None:
        """Stop if another run has finished this copy, or has resumed it."""
        if read_mark(self._target) != mark:
            if self._turn:
                self._target.delete(turn_path(mark.copy_id, self._turn))
            raise Conflict(
                f"Another copy to {self._target.location} has ended meanwhile. Run this one again."
            )
        if last_turn(self._target, mark) != self._turn:
            raise Conflict(
                f"Another run has resumed the copy to {self._target.location}. Let that one end."
            )

    def _bring_files(self, progress: CopyProgress) -> None:
        total, done = sum(map(self._size, self._files)), 0

        def bring(file: NeededFile) -> None:
            left = self._size(file)

            def advance(count: int) -> None:
                nonlocal left, done
                left -= count
                with self._lock:
                    done += count
                    progress(done, total, file.path)

            advance(0)
            self._bring(file, advance)
            advance(left)

        _each(self._threads, bring, self._files)

    def _bring(self, file: NeededFile, advance: Callable[[int], None]) -> None:
        """Bring a file to the target and verify it there; note versions removed meanwhile."""
        if file.versions <= self._vanished:
            return
        # the listing is old: another run may have brought the file since
        size, there = self._size(file), self._target.size(file.path)
        if there == size and problem_of(self._target, file) is None:
            self._count(self._kept, size)
            return
        if there is not None:
            self._drop(file)
        try:
            is_intact = self._fetch(file, file.path, size, advance)
        except BlobNotFound:
            if not self._fetch_copy(file):
                self._miss(file)
                return
            is_intact = True
        if not is_intact and not self._fetch_copy(file):
            if not file.is_copy:
                raise self._damaged(file)
            log.warning("%s/%s is damaged: not copied", self._source.location, file.path)
            return
        self._count(self._written, size)

    def _fetch(
        self, file: NeededFile, path: str, size: int, advance: Callable[[int], None]
    ) -> bool:
        """Write a file with the bytes of `path`; False if they are damaged."""
        self._transfer(path, file.path, size, advance)
        if problem_of(self._target, file) is None:
            return True
        self._drop(file)
        return False

    def _fetch_copy(self, file: NeededFile) -> bool:
        """Write a missing or damaged file from its second copy, if that is intact.

        A file that is missing together with all its versions was removed, and is not needed.
        """
        size = self._from.sizes.get(copy_path(file.path))
        if size is None:
            return False
        try:
            found = self._fetch(file, copy_path(file.path), size, lambda count: None)
        except BlobNotFound:
            return False
        if found:
            log.warning(
                "%s/%s is damaged: its second copy was copied", self._source.location, file.path
            )
        return found

    def _drop(self, file: NeededFile) -> None:
        """Remove a damaged file from the target, unless another run has taken over."""
        assert self._mark is not None
        self._check_turn(self._mark)
        self._target.delete(file.path)

    def _transfer(
        self, path: str, target_path: str, size: int, advance: Callable[[int], None]
    ) -> None:
        with self._target.open_writer(target_path) as writer:
            for start in range(0, size, _PIECE_BYTES):
                stop = min(start + _PIECE_BYTES, size)
                writer.write(self._source.read_range(path, start, stop))
                advance(stop - start)

    def _miss(self, file: NeededFile) -> None:
        """Handle a missing file: its versions were removed, or its rows were delivered."""
        left = [v for v in file.versions if self._source.size(manifest_path(v)) is not None]
        if not left:
            with self._lock:
                self._vanished |= file.versions
        elif not file.is_copy and (not file.parts or not self._has_moved_on()):
            raise self._damaged(file)

    def _damaged(self, file: NeededFile) -> Corruption | Unavailable:
        problem = problem_of(self._source, file)
        if problem is None:
            return Unavailable(
                f"{self._target.location} does not give back {file.path} as it was written. Check "
                "it with `holdfast doctor`, then run the copy again."
            )
        oldest, newest = min(file.versions), max(file.versions)
        which = f"version {oldest}" if oldest == newest else f"versions {oldest} to {newest}"
        return Corruption(
            f"{self._source.location}/{file.path} is damaged: {problem}. It is part of {which}; "
            f"{self._target.location} was not finished. `holdfast verify` says which versions are "
            "intact: choose among them by --versions."
        )

    def _size(self, file: NeededFile) -> int:
        return self._from.sizes.get(file.path, file.least_bytes)

    def _count(self, tally: list[int], size: int) -> None:
        with self._lock:
            tally[0] += 1
            tally[1] += size

    # -- making it a root ----------------------------------------------------------------------

    def _check_newest(self) -> None:
        if self._newest in self._vanished:
            raise VersionNotFound(
                f"Retention removed version {self._newest} of {self._source.location} while it was "
                "copied. Run the same copy again: it takes the newest version, and keeps the files "
                "copied so far. If that repeats, stop the stream meanwhile."
            )

    def _commit(self) -> None:
        """Create the manifests, oldest first; check that no file is missing; remove the mark."""
        assert self._mark is not None
        self._check_turn(self._mark)
        for version in self._taken:
            self._create(version)
        self._check_whole()
        self._bring_tags()
        if self._is_delivered():
            commit_id = self._from.manifests[self._newest].commit_id
            self._target.create_if_absent(delivered_path(self._newest, commit_id), b"")
        remove_mark(self._target, self._mark)

    @property
    def _taken(self) -> list[int]:
        return sorted(set(self._from.manifests) - self._vanished)

    def _create(self, version: int) -> None:
        path, raw = manifest_path(version), self._from.raw[version]
        if self._target.create_if_absent(path, raw):
            self._has_created = True
            return
        if bytes(self._target.read(path)) == raw:
            return
        if self._mark is not None and not self._resumes and not self._has_created:
            remove_mark(self._target, self._mark)  # another history: nothing of this copy is in it
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
            path = tag_path(name)
            try:
                raw = bytes(self._source.read(path))
            except BlobNotFound:
                continue  # untagged meanwhile
            if version in self._vanished or self._target.create_if_absent(path, raw):
                continue
            if bytes(self._target.read(path)) != raw:
                self._target.delete(path)
                self._target.create_if_absent(path, raw)

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
        taken = self._taken
        return CopyResult(
            source=self._source.location,
            target=self._target.location,
            versions=tuple(taken),
            vanished=tuple(sorted(self._vanished)),
            tags={name: version for name, version in self._tags.items() if version in taken},
            written_files=self._written[0],
            written_bytes=self._written[1],
            kept_files=self._kept[0],
            kept_bytes=self._kept[1],
        )


def _each(threads: int, work: Callable[[NeededFile], None], files: Sequence[NeededFile]) -> None:
    """Call `work` for every file in `threads` threads; the first failure ends it."""
    if threads == 1:
        for file in files:
            work(file)
        return
    with ThreadPoolExecutor(threads, "holdfast-copy") as pool:
        try:
            for _ in pool.map(work, files):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
