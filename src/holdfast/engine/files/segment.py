"""Segments: sorted rows as an Arrow IPC file that any Arrow reader can open.

The file is a sequence of record batches (chunks) sorted by `_hash`, then one batch without rows
whose metadata describes the others: checksums of all bytes before it in blocks, and for each
chunk its rows, hash range and zone map. That batch and Arrow's footer are the file's *tail*; the
manifest holds the tail's length and checksum, so it vouches for every byte. docs/format.md has
the details.

Arrow writes the metadata of the schema first, before any checksum is known; a batch without rows
comes last, and is nothing to other Arrow readers. With a checksum for each block instead of one for
the file, opening reads only the tail and a lookup checks only the blocks it touches, so a large
snapshot opens in milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from holdfast.engine.files.blocks import BadSegment, Blocks, TailFile, read_part
from holdfast.engine.files.extent import BufferExtent, Extent
from holdfast.engine.files.hash_filter import HashFilter
from holdfast.engine.partition.chunk_cache import ChunkShare
from holdfast.engine.partition.rows import NEVER, Rows, index_numbers
from holdfast.errors import InvalidArgument
from holdfast.reserved import DEAD, EXPIRES, HASH

SEGMENT_FORMAT = 1
_VERIFY_STEP = 16 << 20
META_KEY = b"holdfast"
_MAGIC_BYTES = 8
_FILTER_RATIO = 16
_LOWEST = np.iinfo(np.int64).min


class Zone(NamedTuple):
    """The smallest and largest index and expiry of some rows; reads use it to skip chunks."""

    index_min: int = _LOWEST
    index_max: int = NEVER
    expires_min: int = NEVER
    expires_max: int = NEVER

    def joined(self, other: Zone) -> Zone:
        """The zone of both."""
        return Zone(
            min(self.index_min, other.index_min),
            max(self.index_max, other.index_max),
            min(self.expires_min, other.expires_min),
            max(self.expires_max, other.expires_max),
        )


NO_ROWS = Zone(NEVER, _LOWEST, NEVER, _LOWEST)
"""The zone without rows: joined with another zone, it gives that zone."""


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What a manifest records about a segment: its rows, tombstones, bytes, tail and zone."""

    rows: int
    dead: int
    size: int
    tail: int
    checksum: str
    zone: Zone


@dataclass(frozen=True, slots=True)
class ChunkInfo:
    """What the tail says about a chunk: its rows, hashes, bytes and zone."""

    rows: int
    dead: int
    first: int
    last: int
    start: int
    stop: int
    zone: Zone


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a store's segments."""

    keys: pa.Schema
    values: pa.Schema
    index: int | None = None

    def schema(self, expires: bool) -> pa.Schema:
        """The Arrow schema of a segment file."""
        fields = [pa.field(HASH, pa.int64(), nullable=False), *self.keys]
        fields += [field.with_nullable(True) for field in self.values]
        fields.append(pa.field(DEAD, pa.bool_(), nullable=False))
        if expires:
            fields.append(pa.field(EXPIRES, pa.int64(), nullable=False))
        return pa.schema(fields)

    def zone(self, rows: Rows) -> Zone:
        """The zone of `rows`."""
        if len(rows) == 0:
            return NO_ROWS
        index_min, index_max = _LOWEST, NEVER
        numbers = None if self.index is None else index_numbers(rows.keys[self.index])
        if numbers is not None:
            index_min, index_max = int(numbers.min()), int(numbers.max())
        if rows.expires is None:
            return Zone(index_min, index_max)
        return Zone(index_min, index_max, int(rows.expires.min()), int(rows.expires.max()))


def _chunk_info(
    rows: int, dead: int, first: int, last: int, start: int, stop: int, *zone: int
) -> ChunkInfo:
    return ChunkInfo(rows, dead, first, last, start, stop, Zone(*zone))


class Segment:
    """An open segment. Opening checks its length and tail; a block is checked when first touched.

    `trusted` skips the block checks, for bytes that this process has just written itself. Chunks
    that are copies, because they are compressed or the file is not mapped, are kept in
    `private_chunks` until others need the room.
    """

    def __init__(
        self,
        name: str,
        extent: Extent,
        info: SegmentInfo,
        layout: Layout,
        *,
        trusted: bool = False,
        private_chunks: ChunkShare | None = None,
    ) -> None:
        self.name = name
        self.info = info
        meta, self._schema = _read_tail(name, extent, info)
        self._chunk_infos = [_chunk_info(*chunk) for chunk in meta["chunks"]]
        self._body = info.size - info.tail
        self._blocks = Blocks(
            name, extent, self._body, meta["block"], meta["sums"], trusted=trusted
        )
        self._private_chunks = private_chunks or ChunkShare()
        self._owner = self._private_chunks.cache.new_owner(self)
        self._layout = layout
        self._expires: bool = self._schema.names[-1] == EXPIRES
        if self._schema.names != layout.schema(self._expires).names:
            raise BadSegment(name, "its columns are not those of this store")
        self.firsts = np.array([chunk.first for chunk in self._chunk_infos], np.int64)
        self.starts = [chunk.first for chunk in self._chunk_infos]
        self._lasts = [chunk.last for chunk in self._chunk_infos]
        self._filter: HashFilter | None = None
        self._chunks: list[Rows | None] = [None] * len(self._chunk_infos)

    def __len__(self) -> int:
        return self.info.rows

    @property
    def num_chunks(self) -> int:
        """How many chunks the segment has."""
        return len(self._chunk_infos)

    @property
    def private_bytes(self) -> int:
        """Memory that its filter takes; maps and `private_chunks` are not included."""
        return 0 if self._filter is None else self._filter.nbytes

    @property
    def has_expiry(self) -> bool:
        """Whether its rows carry an expiry."""
        return self._expires

    def last(self, number: int) -> int:
        """The largest hash of a chunk."""
        return self._lasts[number]

    def zone(self, number: int) -> Zone:
        """The zone of a chunk."""
        return self._chunk_infos[number].zone

    def chunk(self, number: int) -> Rows:
        """A chunk's rows; value columns are checked when first asked for."""
        chunk = self._chunks[number]
        return self._open_chunk(number) if chunk is None else chunk

    def filter(self, wanted: int) -> HashFilter | None:
        """A filter for looking up `wanted` keys; None for so few that it is not worth building."""
        if self._filter is None and wanted * _FILTER_RATIO >= len(self):
            chunks = (self.chunk(number).hashes for number in range(self.num_chunks))
            self._filter = HashFilter(len(self), chunks)
        return self._filter

    def check(self) -> None:
        """Check every block that was not checked before."""
        self._blocks.check(0, self._body)

    def verify(self, progress: Callable[[int], None] | None = None) -> int:
        """Check every block, even if it was checked before; return the segment's size in bytes.

        `progress` is called with the number of bytes checked so far.
        """
        self._blocks.forget()
        for start in range(0, self._body, _VERIFY_STEP):
            stop = min(start + _VERIFY_STEP, self._body)
            self._blocks.check(start, stop)
            if progress is not None:
                progress(stop)
        return self.info.size

    def _open_chunk(self, number: int) -> Rows:
        chunk = self._private_chunks.cache.get(self._owner, number)
        if chunk is not None:
            return chunk
        info, blocks = self._chunk_infos[number], self._blocks
        try:
            batch = self._batch(info)
        except (pa.ArrowInvalid, OSError) as error:
            blocks.check(info.start, info.stop)
            raise BadSegment(self.name, f"chunk {number} cannot be read ({error})") from error
        except MemoryError:
            blocks.check(info.start, info.stop)  # a damaged length may ask for any amount
            raise
        if all(blocks.holds(buffer) for buffer in _buffers(batch.columns)):
            chunk = self._chunks[number] = _Chunk(blocks, batch, info, self._layout)
            return chunk
        if blocks.is_mapped:
            blocks.check(info.start, info.stop)
        chunk = _Chunk(blocks, batch, info, self._layout)
        chunk.is_private = True
        self._private_chunks.put(self._owner, number, chunk, batch.nbytes)
        return chunk

    def _batch(self, info: ChunkInfo) -> pa.RecordBatch:
        data = self._blocks.message(info.start, info.stop)
        if info.start > 0:
            return ipc.read_record_batch(data, self._schema)
        # The first chunk comes with what the file starts with: a magic word and the schema.
        messages = ipc.MessageReader.open_stream(data[_MAGIC_BYTES:])
        messages.read_next_message()
        return ipc.read_record_batch(messages.read_next_message(), self._schema)


def _read_tail(name: str, extent: Extent, info: SegmentInfo) -> tuple[dict[str, Any], pa.Schema]:
    """The tail's description of the chunks, and the columns."""
    if extent.size != info.size:
        raise BadSegment(name, f"it has {extent.size} bytes, not {info.size}")
    tail = read_part(name, extent, info.size - info.tail, info.size)
    if xxhash.xxh3_64_hexdigest(tail) != info.checksum:
        raise BadSegment(name, "its tail does not have the checksum the manifest says")
    try:
        if isinstance(extent, BufferExtent):
            reader = ipc.open_file(extent.buffer)  # much faster than through a Python file
        else:
            reader = ipc.open_file(pa.PythonFile(TailFile(tail, info.size), "r"))
        last = reader.get_batch_with_custom_metadata(reader.num_record_batches - 1)
        meta = json.loads(last.custom_metadata[META_KEY])
    except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
        raise BadSegment(name, f"its tail cannot be read ({error})") from error
    if meta["format"] != SEGMENT_FORMAT:
        raise InvalidArgument(
            f"{name} is in segment format {meta['format']}; this release reads {SEGMENT_FORMAT}.",
            condition="STATE_STORE_UNSUPPORTED_FORMAT",
        )
    return meta, reader.schema


class _Chunk(Rows):
    """A chunk of a segment: key columns checked, value columns on first use."""

    def __init__(
        self, blocks: Blocks, batch: pa.RecordBatch, info: ChunkInfo, layout: Layout
    ) -> None:
        hashes, *columns = batch.columns
        keys, values = len(layout.keys), len(layout.values)
        self._blocks = blocks
        self._check([hashes, *columns[:keys]])
        dead = expires = None
        if info.dead:
            self._check([columns[keys + values]])
            dead = columns[keys + values].to_numpy(zero_copy_only=False)
        if batch.schema.names[-1] == EXPIRES:
            self._check([columns[-1]])
            expires = columns[-1].to_numpy()
        super().__init__(
            hashes.to_numpy(), columns[:keys], columns[keys : keys + values], dead, expires
        )
        self._unchecked = set(range(values))

    def value(self, ordinal: int) -> pa.Array:
        if ordinal in self._unchecked:
            self._check([self._values[ordinal]])
            self._unchecked.discard(ordinal)
        return self._values[ordinal]

    def _check(self, columns: Sequence[pa.Array]) -> None:
        for buffer in _buffers(columns):
            self._blocks.check_under(buffer)


class MemorySegment:
    """Rows in memory under the interface of an open segment."""

    def __init__(self, rows: Rows, layout: Layout) -> None:
        self._rows = rows
        self._zone = layout.zone(rows)
        self.firsts = rows.hashes[:1]
        self.starts = [int(first) for first in self.firsts]

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def num_chunks(self) -> int:
        """One, or none where there are no rows."""
        return len(self.starts)

    def last(self, number: int) -> int:
        """The largest hash."""
        return int(self._rows.hashes[-1])

    def zone(self, number: int) -> Zone:
        """The zone of the rows."""
        return self._zone

    def chunk(self, number: int) -> Rows:
        """The rows."""
        return self._rows

    def filter(self, wanted: int) -> None:
        """None: a run is searched once or twice, less than a filter costs."""
        return


def _buffers(columns: Sequence[pa.Array]) -> Iterator[pa.Buffer]:
    for column in columns:
        for buffer in column.buffers():
            if buffer is not None and buffer.size:
                yield buffer
