"""A partition's segments at one version, opened on demand, with a way around damaged ones."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar
from weakref import WeakValueDictionary

from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.files.extent import BlobExtent, BufferExtent, Extent
from holdfast.engine.files.filenames import copy_path
from holdfast.engine.files.manifest import PartitionEntry, SegmentRef
from holdfast.engine.files.segment import Layout, Segment
from holdfast.engine.partition.bounds import Bounds
from holdfast.engine.partition.chunk_cache import ChunkShare
from holdfast.engine.partition.stack import SegmentStack, Source
from holdfast.engine.storage import BlobNotFound, Storage, TooLarge
from holdfast.errors import Corruption

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_MOST_TRUSTED = 256
"""More than a chain has; a segment that was written longer ago than this many is checked."""


class SegmentCache:
    """Opens segments of one store directory, each only once while somebody uses it."""

    def __init__(self, storage: Storage, directory: str, layout: Layout) -> None:
        self._storage = storage
        self._directory = directory
        self._layout = layout
        self._open: WeakValueDictionary[str, Segment] = WeakValueDictionary()
        self._trusted: deque[str] = deque(maxlen=_MOST_TRUSTED)
        self._renewed: set[str] = set()
        self._from_copy: set[str] = set()
        self._chunks = ChunkShare()
        self._lock = threading.Lock()
        self.mending = threading.RLock()
        """Held by a chain while it determines what is damaged and what to read instead."""

    def trust(self, name: str) -> None:
        """Skip the block checks of a segment that this process has just written itself."""
        self._trusted.append(name)

    def open(self, ref: SegmentRef) -> Segment:
        """Return the open segment. Raises BadSegment when it is missing or its tail is damaged."""
        while True:
            with self._lock:
                segment, replaced = self._open.get(ref.name), self._replacements(ref)
            if segment is not None:
                return segment
            segment = self._read(ref)
            with self._lock:
                if replaced == self._replacements(ref):  # else we may have read the damaged file
                    return self._open.setdefault(ref.name, segment)

    def _replacements(self, ref: SegmentRef) -> tuple[bool, bool]:
        return ref.name in self._renewed, ref.name in self._from_copy

    def renew(self, ref: SegmentRef) -> bool:
        """Read a damaged segment from its source from now on, without the cache.

        Returns False where that was done already, or the damaged bytes are the source's.
        """
        with self._lock:
            if ref.name in self._renewed:
                return False
            kept = self._storage.distrust(ref.own_path(self._directory))
            if not self._storage.distrust(ref.path(self._directory)) and not kept:
                return False
            self._renewed.add(ref.name)
            self._open.pop(ref.name, None)
            if ref.name in self._trusted:
                self._trusted.remove(ref.name)
        return True

    def use_copy(self, ref: SegmentRef) -> bool:
        """Read a damaged segment from its second copy from now on.

        Returns False where that was done already, or there is no intact copy.
        """
        with self._lock:
            if ref.name in self._from_copy:
                return False
        try:
            self.open_copy(ref).verify()
        except BadSegment:
            return False
        with self._lock:
            self._from_copy.add(ref.name)
            self._open.pop(ref.name, None)
        return True

    def has_replaced(self, ref: SegmentRef, name: str) -> bool:
        """Whether a segment that some readers opened as `name` is now read from elsewhere.

        Requires: what is opened now is intact, or has another name.
        """
        path = f"{self._storage.location}/{ref.path(self._directory)}"
        return path == name and any(self._replacements(ref))

    def open_copy(self, ref: SegmentRef) -> Segment:
        """The second copy of a segment; BadSegment when it is missing or its tail is damaged."""
        return self._segment(ref, copy_path(ref.path(self._directory)), trusted=False)

    def path(self, ref: SegmentRef) -> str:
        """The file that holds a segment, with the root before it."""
        return f"{self._storage.location}/{self._path(ref)}"

    def _path(self, ref: SegmentRef) -> str:
        path = ref.path(self._directory)
        return copy_path(path) if ref.name in self._from_copy else path

    def _read(self, ref: SegmentRef) -> Segment:
        is_copy = ref.name in self._from_copy
        if ref.pack is not None and not is_copy:
            near = self._storage.kept(ref.own_path(self._directory))
            if near is not None and near.size == ref.info.size:
                return self._opened(
                    self.path(ref), BufferExtent(near), ref, ref.name in self._trusted
                )
        trusted = ref.name in self._trusted and not is_copy
        return self._segment(ref, self._path(ref), trusted=trusted)

    def _segment(self, ref: SegmentRef, path: str, *, trusted: bool) -> Segment:
        name = f"{self._storage.location}/{path}"
        return self._opened(name, self._extent(name, path, ref), ref, trusted)

    def _opened(self, name: str, extent: Extent, ref: SegmentRef, trusted: bool) -> Segment:
        return Segment(
            name, extent, ref.info, self._layout, trusted=trusted, private_chunks=self._chunks
        )

    def _extent(self, name: str, path: str, ref: SegmentRef) -> Extent:
        if ref.pack is None:
            return self._file(name, path)
        start, size = ref.pack.offset, ref.info.size
        if self._storage.is_remote:  # the rest of the pack belongs to other partitions
            return self._part(name, path, start, size)
        whole = self._file(name, path)
        if whole.size < start + size:
            raise _ends_early(name, whole.size, start + size)
        return whole.cut(start, size)

    def _part(self, name: str, path: str, start: int, size: int) -> BufferExtent:
        try:
            found = self._storage.read_range(path, start, start + size)
        except BlobNotFound:
            raise BadSegment(name, "the file is missing") from None
        if found.size < size:
            raise _ends_early(name, start + found.size, start + size)
        return BufferExtent(found)

    def _file(self, name: str, path: str) -> Extent:
        try:
            return BufferExtent(self._storage.read(path))
        except TooLarge:
            size = self._storage.size(path)
            if size is not None:
                return BlobExtent(self._storage, path, 0, size)
        except BlobNotFound:
            pass
        raise BadSegment(name, "the file is missing")

    @property
    def chunk_bytes(self) -> int:
        """Memory of chunks that are copies of data in the files."""
        return self._chunks.nbytes


def _ends_early(name: str, size: int, end: int) -> BadSegment:
    return BadSegment(name, f"the pack has {size} bytes, not {end} or more")


class Chain:
    """The segments of one partition at one version. Readers in several threads may share it."""

    def __init__(self, entry: PartitionEntry, version: int, cache: SegmentCache) -> None:
        self.entry = entry
        self.version = version
        self._cache = cache
        self._refs = list(entry.segments)
        self._origins = list(range(len(entry.segments)))
        self._left: set[str] = set()
        self._segments: list[Segment] | None = None
        self._lock = threading.RLock()

    @property
    def bounds(self) -> Bounds:
        """The bounds recorded in the manifest."""
        return Bounds(self.entry.evict, self.entry.expire)

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments that are read, newest first; the inputs of a merge if it was damaged."""
        return tuple(self._refs)

    def run(
        self,
        work: Callable[[SegmentStack], Result],
        layout: Layout,
        newer: Sequence[Source] = (),
        bounds: Bounds | None = None,
    ) -> Result:
        """Return what `work` returns for the state, with the sources `newer` on top of it.

        If a segment turns out to be damaged, other files with its data take its place and `work`
        runs again. Raises Corruption when there are none.
        """
        while True:
            try:
                view = SegmentStack(
                    [*newer, *self.segments()], layout, self.bounds if bounds is None else bounds
                )
                return work(view)
            except BadSegment as bad:
                self.fall_back(bad)

    def segments(self) -> list[Segment]:
        """The open segments, newest first."""
        with self._lock:
            if self._segments is None:
                self._segments = [self._cache.open(ref) for ref in self._refs]
            return self._segments

    @property
    def private_bytes(self) -> int:
        """Private memory of the segments opened so far, and of this store's cached chunks."""
        with self._lock:
            filters = sum(segment.private_bytes for segment in self._segments or ())
            return filters + self._cache.chunk_bytes

    def between(self, start: int, stop: int) -> tuple[tuple[SegmentRef, ...], list[Segment]]:
        """The segments read in place of the manifest's segments start..stop, and open."""
        with self._lock:
            at = [i for i, origin in enumerate(self._origins) if start <= origin < stop]
            segments = self.segments()
            return tuple(self._refs[i] for i in at), [segments[i] for i in at]

    def usable(self) -> None:
        """Check every block of the segments, falling back where one is damaged.

        Called before a long read, which cannot be repeated once it has returned rows.
        """
        while True:
            try:
                for segment in self.segments():
                    segment.check()
                return
            except BadSegment as bad:
                self.fall_back(bad)

    def fall_back(self, bad: BadSegment) -> None:
        """Read around a damaged segment from now on. Raises Corruption where that is impossible.

        What is cheaper is tried first: the same file without the cache, the segments that a merge
        was made from, the second copy. Another reader may have found the damage first; then there
        is nothing to do but to read again.
        """
        with self._lock, self._cache.mending:
            for place, ref in enumerate(self._refs):
                if self._cache.path(ref) == bad.name and _is_bad(self._cache, ref):
                    if self._read_round(place, bad):
                        self._segments = None
                        return
                    break
            else:
                if any(self._cache.has_replaced(ref, bad.name) for ref in self._refs):
                    self._segments = None  # another chain was faster
                    return
                if bad.name in self._left:
                    return  # another reader of this chain was faster
        raise Corruption(
            f"Version {self.version} cannot be read: {bad.name} is damaged ({bad.why}), and there "
            "is no other copy of its data. `holdfast verify` lists the versions that are intact. "
            "`holdfast rollback CHECKPOINT --to intact` continues from the newest of those."
        ) from bad

    def _read_round(self, place: int, bad: BadSegment) -> bool:
        """Choose what to read in place of a damaged segment; False where nothing is left."""
        ref = self._refs[place]
        if self._cache.renew(ref):
            log.warning("%s. Reading it from its source again.", bad)
            return True
        if ref.inputs:
            log.warning("%s. Using the %d segments it was made from.", bad, len(ref.inputs))
            self._refs[place : place + 1] = ref.inputs
            self._origins[place : place + 1] = [self._origins[place]] * len(ref.inputs)
            self._left.add(bad.name)
            return True
        if self._cache.use_copy(ref):
            log.warning("%s. Using its second copy.", bad)
            return True
        return False


def _is_bad(cache: SegmentCache, ref: SegmentRef) -> bool:
    """Whether this very segment is damaged: several may share a pack.

    Every chunk is opened: reads must not fail on a segment that is called intact, or they would be
    repeated for ever.
    """
    try:
        segment = cache.open(ref)
        segment.verify()
        for number in range(segment.num_chunks):
            segment.chunk(number)
    except BadSegment:
        return True
    return False
