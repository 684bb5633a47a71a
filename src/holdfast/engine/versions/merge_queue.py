"""Merges that a process has made of a partition, until a commit includes them."""

from __future__ import annotations

from holdfast.conf import StateStoreConf
from holdfast.engine.counters import Counters
from holdfast.engine.files import copies
from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.files.manifest import PartitionEntry, SegmentRef
from holdfast.engine.partition.chain import Chain, SegmentCache
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions import compaction
from holdfast.engine.versions.commit import Swap, fits, is_within


class MergeQueue:
    """The merges of one partition; `directory` has its files."""

    def __init__(
        self,
        storage: Storage,
        directory: str,
        shape: StoreShape,
        conf: StateStoreConf,
        runtime: Runtime,
        counters: Counters,
    ) -> None:
        self._storage, self._directory, self._shape = storage, directory, shape
        self._conf, self._runtime, self._counters = conf, runtime, counters
        self._swaps: list[Swap] = []
        self._merging: set[str] = set()
        """Files of merges that are under way."""

    @property
    def finished(self) -> tuple[Swap, ...]:
        """Merges that wait for the next commit."""
        return tuple(self._swaps)

    def keep_fitting(self, entry: PartitionEntry, *, check_files: bool = False) -> None:
        """Forget merges that do not fit a version of the partition.

        They are of other segments, or made with a higher bound. With `check_files` those that were
        removed are forgotten as well.
        """
        self._swaps = [
            swap
            for swap in self._swaps
            if fits(entry.segments, swap)
            and is_within(swap, entry.evict, entry.expire)
            and not (check_files and self._is_gone(swap))
        ]

    def _is_gone(self, swap: Swap) -> bool:
        return self._storage.size(swap.output.path(self._directory)) is None

    def files(self) -> set[str]:
        """Files of merges that wait for the next commit, or are under way."""
        under_way = set(self._merging)
        return under_way.union(swap.output.path(self._directory) for swap in self.finished)

    def merge(self, chain: Chain, *, force: bool = False) -> SegmentRef | None:
        """Merge what is due in a chain, or with `force` everything; return the segment made.

        The next commit includes it. None if nothing was due, or if it was removed meanwhile.
        """
        todo = compaction.plan(chain.entry.segments, self._conf, force=force)
        if todo is None:
            return None
        attempt = self._runtime.new_id()
        path = compaction.output_path(chain.entry, todo, self._directory, attempt)
        self._merging.add(path)
        try:
            swap = compaction.merge(
                chain,
                todo,
                self._shape,
                self._storage,
                self._directory,
                attempt,
                self._conf.compression,
            )
            if not self._can_be_read_back(swap.output):
                return None
            self._swaps.append(swap)
        finally:
            self._merging.discard(path)
        self._counters.add_merge(swap.output)
        return swap.output

    def _can_be_read_back(self, merged: SegmentRef) -> bool:
        """Check that a merge reads as it was written: second copies are removed because of it.

        False where it is gone, because a clean-up of others took this process for dead.
        """
        if not copies.keeps_copies(self._conf, self._storage):
            return True
        source, path = self._storage.source, merged.path(self._directory)
        source.cool(path)
        try:
            SegmentCache(source, self._directory, self._shape.layout).open(merged).verify()
        except BadSegment as bad:
            if source.size(path) is None:
                return False
            self._storage.delete(path)
            raise copies.not_as_written(source, path) from bad
        return True
