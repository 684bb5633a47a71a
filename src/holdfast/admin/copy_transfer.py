"""Bringing files from one root to another, each of them verified at the target."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from holdfast.admin.copy_files import NeededFile, problem_of
from holdfast.engine.files.filenames import copy_path, manifest_path
from holdfast.engine.storage import BlobNotFound, Storage
from holdfast.errors import Corruption, Unavailable

log = logging.getLogger(__name__)
CopyProgress = Callable[[int, int, str], None]
"""Called with the bytes done so far, the bytes in total, and the current file."""
_PIECE_BYTES = 8 << 20


@dataclass
class Tally:
    """How many files there were, and their bytes."""

    files: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count one more file."""
        self.files += 1
        self.size_bytes += size_bytes


class Transfer:
    """Brings files of `source`, which have these `sizes`, to `target`.

    `check` raises if another run has taken over; it is called before a file is removed at the
    target. `has_moved_on` says whether the source has delivered the newest version that is copied.
    Versions that retention removes meanwhile are added to `vanished`. With `adopts`, a file whose
    bytes need not pass through here is shared, or copied by the server, and is not verified.
    """

    def __init__(
        self,
        source: Storage,
        target: Storage,
        sizes: Mapping[str, int],
        vanished: set[int],
        *,
        threads: int,
        check: Callable[[], None],
        has_moved_on: Callable[[], bool],
        adopts: bool = False,
    ) -> None:
        self._source, self._target, self._sizes = source, target, sizes
        self._threads, self._check, self._has_moved_on = threads, check, has_moved_on
        self._adopts = adopts
        self.vanished = vanished
        self.written, self.kept, self.adopted = Tally(), Tally(), Tally()
        self._lock = threading.Lock()

    def bring(self, files: Sequence[NeededFile], progress: CopyProgress, total: int) -> None:
        """Bring files to the target; `progress` is called after each piece, with this `total`.

        Raises Corruption for a damaged file of the source, and what `check` raises.
        """
        done = 0

        def bring(file: NeededFile) -> None:
            left = self.size(file)

            def advance(count: int) -> None:
                nonlocal left, done
                left -= count
                with self._lock:
                    done += count
                    progress(done, total, file.path)

            advance(0)
            self._bring(file, advance)
            advance(left)

        _each(self._threads, bring, files)

    def _bring(self, file: NeededFile, advance: Callable[[int], None]) -> None:
        """Bring a file to the target and verify it there; note versions removed meanwhile."""
        if file.versions <= self.vanished:
            return
        # the listing is old: another run may have brought the file since
        size = self.size(file)
        if self._adopts and self._adopt(file, size):
            self._count(self.adopted, size)
            return
        there = self._target.size(file.path)
        if there == size and problem_of(self._target, file) is None:
            self._count(self.kept, size)
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
        self._count(self.written, size)

    def _adopt(self, file: NeededFile, size: int) -> bool:
        """Whether the target has a file without its bytes having been read."""
        if size < file.least_bytes:
            return False  # cut short: the second copy may be intact
        try:
            return self._target.adopt(self._source, file.path)
        except BlobNotFound:
            return False  # what that means is found out where the bytes are read

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
        size = self._sizes.get(copy_path(file.path))
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
        self._check()
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
                self.vanished |= file.versions
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
            "intact: choose among them by --versions, or for a fork by --at."
        )

    def size(self, file: NeededFile) -> int:
        """How many bytes a file of the source has."""
        return self._sizes.get(file.path, file.least_bytes)

    def _count(self, tally: Tally, size: int) -> None:
        with self._lock:
            tally.add(size)


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
