"""Segments: sorted rows as an Arrow IPC file that any Arrow reader can open.

The file is a sequence of record batches (chunks) sorted by `_hash`, then one batch without rows
whose metadata describes the others: checksums of all bytes before it in blocks, and for each
chunk its rows, hash range and zone map. That batch and Arrow's footer are the file's *tail*; the
manifest holds the tail's length and checksum, so it vouches for every byte. docs/format.md has
the details.
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

from holdfast.engine.columns import valid_mask, words
from holdfast.engine.filter import HashFilter
from holdfast.engine.rows import NEVER, Hashes, Rows
from holdfast.engine.storage import Sink
from holdfast.errors import InvalidArgument

FORMAT = 1
BLOCK_BYTES = 256 << 10
CHUNK_ROWS = 128 << 10
CHUNK_BYTES = 16 << 20
_VERIFY_STEP = 16 << 20
HASH, DEAD, EXPIRES = "_hash", "_dead", "_expires"
_META_KEY = b"holdfast"
_FILTER_RATIO = 16
_LOWEST = np.iinfo(np.int64).min


class BadSegment(Exception):
    """A segment is missing or not what was written. The chain falls back or gives up."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class Zone(NamedTuple):
    """The smallest and largest index and expiry among some rows; pruning goes by it."""

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


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """What the writer of a segment tells the manifest."""

    rows: int
    dead: int
    size: int
    tail: int
    checksum: str
    zone: Zone


@dataclass(frozen=True, slots=True)
class _ChunkInfo:
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
            return Zone(NEVER, _LOWEST, NEVER, _LOWEST)
        index_min, index_max = _LOWEST, NEVER
        numbers = None if self.index is None else index_numbers(rows.keys[self.index])
        if numbers is not None:
            index_min, index_max = int(numbers.min()), int(numbers.max())
        if rows.expires is None:
            return Zone(index_min, index_max)
        return Zone(index_min, index_max, int(rows.expires.min()), int(rows.expires.max()))


def index_numbers(column: pa.Array) -> Hashes | None:
    """An index column as whole numbers in its own unit, null as NEVER; None for other types."""
    kind = column.type
    if not (pa.types.is_signed_integer(kind) or pa.types.is_temporal(kind)):
        return None
    views = words(column)
    if views is None or len(views) != 1:
        return None
    signed = views[0].view(f"i{views[0].dtype.itemsize}").astype(np.int64, copy=False)
    valid = valid_mask(column)
    return signed if valid is None else np.where(valid, signed, NEVER)


class SegmentWriter:
    """Writes rows, given in hash order, as one segment to a sink."""

    def __init__(
        self, sink: Sink, layout: Layout, *, expires: bool = False, compression: str = "none"
    ) -> None:
        self._layout = layout
        self._expires = expires
        self._schema = layout.schema(expires)
        self._sink = _ChecksumSink(sink)
        codec = None if compression == "none" else compression
        options = ipc.IpcWriteOptions(compression=codec)
        self._writer = ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema, options=options)
        self._chunks: list[_ChunkInfo] = []

    def add(self, rows: Rows) -> None:
        """Append rows. Requires: their hashes lie above those of all rows added before."""
        for chunk in _chunks_of(rows):
            start = self._sink.position
            self._writer.write_batch(self._batch(chunk))
            self._chunks.append(
                _ChunkInfo(
                    rows=len(chunk),
                    dead=0 if chunk.dead is None else int(chunk.dead.sum()),
                    first=int(chunk.hashes[0]),
                    last=int(chunk.hashes[-1]),
                    start=start,
                    stop=self._sink.position,
                    zone=self._layout.zone(chunk),
                )
            )

    def finish(self) -> SegmentInfo:
        """Write the tail. The sink holds a whole segment afterwards."""
        sums = self._sink.start_tail()
        tail_start = self._sink.position
        meta = {
            "format": FORMAT,
            "block": BLOCK_BYTES,
            "sums": "".join(sums),
            "chunks": [
                [c.rows, c.dead, c.first, c.last, c.start, c.stop, *c.zone] for c in self._chunks
            ],
        }
        empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        self._writer.write_batch(empty, custom_metadata={_META_KEY: json.dumps(meta).encode()})
        self._writer.close()
        zone = Zone(NEVER, _LOWEST, NEVER, _LOWEST)
        for chunk in self._chunks:
            zone = zone.joined(chunk.zone)
        return SegmentInfo(
            rows=sum(chunk.rows for chunk in self._chunks),
            dead=sum(chunk.dead for chunk in self._chunks),
            size=self._sink.position,
            tail=self._sink.position - tail_start,
            checksum=self._sink.tail_checksum(),
            zone=zone,
        )

    def _batch(self, rows: Rows) -> pa.RecordBatch:
        dead = np.zeros(len(rows), bool) if rows.dead is None else rows.dead
        columns = [
            pa.array(rows.hashes),
            *rows.keys,
            *(rows.value(i) for i in range(rows.num_values)),
            pa.array(dead),
        ]
        if self._expires:
            never = np.full(len(rows), NEVER) if rows.expires is None else rows.expires
            columns.append(pa.array(never))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _ChecksumSink:
    """A file object for Arrow that checksums blocks, then the tail, on their way through."""

    closed = False

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._digest = xxhash.xxh3_64()
        self._filled = 0
        self._sums: list[str] = []
        self._in_tail = False
        self.position = 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.position += len(view)
        self._sink.write(view)
        if self._in_tail:
            self._digest.update(view)
            return len(view)
        rest = view
        while len(rest):
            part = rest[: BLOCK_BYTES - self._filled]
            self._digest.update(part)
            self._filled += len(part)
            rest = rest[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._end_block()
        return len(view)

    def _end_block(self) -> None:
        self._sums.append(self._digest.hexdigest())
        self._digest.reset()
        self._filled = 0

    def start_tail(self) -> list[str]:
        if self._filled:
            self._end_block()
        self._in_tail = True
        return self._sums

    def tail_checksum(self) -> str:
        return str(self._digest.hexdigest())

    def tell(self) -> int:
        return self.position

    def flush(self) -> None:
        return None

    def close(self) -> None:
        self.closed = True

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False


def _chunks_of(rows: Rows) -> Iterator[Rows]:
    """Slices of bounded size that never part rows of one hash."""
    total = len(rows)
    if total == 0:
        return
    per_row = max(1, rows.nbytes // total)
    step = max(1, min(CHUNK_ROWS, CHUNK_BYTES // per_row))
    start = 0
    while start < total:
        stop = min(start + step, total)
        if stop < total:
            stop = int(np.searchsorted(rows.hashes, rows.hashes[stop - 1], "right"))
        yield rows if (start, stop) == (0, total) else rows.slice(start, stop)
        start = stop


def _chunk_info(
    rows: int, dead: int, first: int, last: int, start: int, stop: int, *zone: int
) -> _ChunkInfo:
    return _ChunkInfo(rows, dead, first, last, start, stop, Zone(*zone))


class Segment:
    """An open segment. Opening checks its length and tail; a block is checked when first touched.

    `trusted` skips the block checks: for bytes this process has just written itself.
    """

    def __init__(
        self, name: str, buffer: pa.Buffer, info: SegmentInfo, layout: Layout, *, trusted: bool
    ) -> None:
        self.name = name
        self.info = info
        self._buffer = buffer
        self._base = buffer.address
        if buffer.size != info.size:
            raise BadSegment(name, f"it has {buffer.size} bytes, not {info.size}")
        tail = memoryview(buffer)[info.size - info.tail :]
        if xxhash.xxh3_64_hexdigest(tail) != info.checksum:
            raise BadSegment(name, "its tail does not have the checksum the manifest says")
        try:
            self._reader = ipc.open_file(buffer)
            last = self._reader.num_record_batches - 1
            found = self._reader.get_batch_with_custom_metadata(last).custom_metadata
            meta = json.loads(found[_META_KEY])
        except (pa.ArrowInvalid, KeyError, TypeError, ValueError) as error:
            raise BadSegment(name, f"its tail cannot be read ({error})") from error
        if meta["format"] != FORMAT:
            raise InvalidArgument(
                f"{name} is in segment format {meta['format']}; this release reads {FORMAT}.",
                condition="STATE_STORE_UNSUPPORTED_FORMAT",
            )
        self._chunk_infos = [_chunk_info(*chunk) for chunk in meta["chunks"]]
        self._sums: str = meta["sums"]
        self._block: int = meta["block"]
        blocks = len(self._sums) // 16
        self._checked = bytearray(b"\1" * blocks if trusted else blocks)
        self._layout = layout
        self._expires: bool = self._reader.schema.names[-1] == EXPIRES
        if self._reader.schema.names != layout.schema(self._expires).names:
            raise BadSegment(name, "its columns are not those of this store")
        self.firsts = np.array([chunk.first for chunk in self._chunk_infos], np.int64)
        self.starts = [chunk.first for chunk in self._chunk_infos]
        self._lasts = [chunk.last for chunk in self._chunk_infos]
        self._private_bytes = 0
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
        """Memory of its own that the segment holds; what is mapped is not counted."""
        return self._private_bytes

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
        if chunk is None:
            chunk = self._chunks[number] = self._open_chunk(number)
        return chunk

    def filter(self, wanted: int) -> HashFilter | None:
        """A filter for so many keys, made when they are many enough to be worth it."""
        if self._filter is None and wanted * _FILTER_RATIO >= len(self):
            chunks = (self.chunk(number).hashes for number in range(self.num_chunks))
            self._filter = HashFilter(len(self), chunks)
            self._private_bytes += self._filter.nbytes
        return self._filter

    def check(self) -> None:
        """Check every block that was not checked before."""
        self._check(0, self.info.size - self.info.tail)

    def verify(self, progress: Callable[[int], None] | None = None) -> int:
        """Check every block, remembered or not; return how many bytes that were.

        `progress` is called with the bytes checked so far.
        """
        self._checked = bytearray(len(self._checked))
        body = self.info.size - self.info.tail
        for start in range(0, body, _VERIFY_STEP):
            self._check(start, min(start + _VERIFY_STEP, body))
            if progress is not None:
                progress(min(start + _VERIFY_STEP, body))
        return self.info.size

    def _open_chunk(self, number: int) -> Rows:
        info = self._chunk_infos[number]
        self._check(info.start, min(info.stop, info.start + self._block))
        try:
            batch = self._reader.get_batch(number)
        except (pa.ArrowInvalid, OSError) as error:
            self._check(info.start, info.stop)
            raise BadSegment(self.name, f"chunk {number} cannot be read ({error})") from error
        if not all(self._inside(buffer) for buffer in _buffers(batch.columns)):
            self._check(info.start, info.stop)
            self._private_bytes += batch.nbytes
        return _Chunk(self, batch, info)

    def check_columns(self, columns: Sequence[pa.Array]) -> None:
        """Check the blocks under the data of some columns of mine."""
        for buffer in _buffers(columns):
            if self._inside(buffer):
                start = buffer.address - self._base
                self._check(start, start + buffer.size)

    def _inside(self, buffer: pa.Buffer) -> bool:
        end = self._base + self._buffer.size
        return bool(self._base <= buffer.address and buffer.address + buffer.size <= end)

    def _check(self, start: int, stop: int) -> None:
        block, checked = self._block, self._checked
        body = self.info.size - self.info.tail
        for number in range(start // block, min(-(-stop // block), len(checked))):
            if checked[number]:
                continue
            low = number * block
            data = memoryview(self._buffer)[low : min(low + block, body)]
            if xxhash.xxh3_64_hexdigest(data) != self._sums[16 * number : 16 * number + 16]:
                raise BadSegment(self.name, f"block {number} does not have its checksum")
            checked[number] = 1

    @property
    def layout(self) -> Layout:
        """The columns of the store this segment belongs to."""
        return self._layout


class _Chunk(Rows):
    """A chunk of a segment: key columns checked, value columns on first use."""

    def __init__(self, segment: Segment, batch: pa.RecordBatch, info: _ChunkInfo) -> None:
        columns = batch.columns
        keys = len(segment.layout.keys)
        values = len(segment.layout.values)
        segment.check_columns([columns[0], *columns[1 : 1 + keys]])
        dead = expires = None
        if info.dead:
            segment.check_columns([columns[1 + keys + values]])
            dead = columns[1 + keys + values].to_numpy(zero_copy_only=False)
        if segment.has_expiry:
            segment.check_columns([columns[-1]])
            expires = columns[-1].to_numpy()
        super().__init__(
            columns[0].to_numpy(),
            columns[1 : 1 + keys],
            columns[1 + keys : 1 + keys + values],
            dead,
            expires,
        )
        self._segment = segment
        self._unchecked = set(range(values))

    def value(self, ordinal: int) -> pa.Array:
        if ordinal in self._unchecked:
            self._segment.check_columns([self._values[ordinal]])
            self._unchecked.discard(ordinal)
        return self._values[ordinal]


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
