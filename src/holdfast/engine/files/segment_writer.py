"""Writes segments: chunks of rows, then the tail that describes them, as `segment` reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from holdfast.engine.files.segment import (
    META_KEY,
    NO_ROWS,
    SEGMENT_FORMAT,
    ChunkInfo,
    Layout,
    SegmentInfo,
)
from holdfast.engine.partition.rows import NEVER, Rows
from holdfast.engine.storage import ByteSink

BLOCK_BYTES = 256 << 10
CHUNK_ROWS = 512 << 10
CHUNK_BYTES = 16 << 20


class SegmentWriter:
    """Writes rows, given in hash order, as one segment to a sink."""

    def __init__(
        self, sink: ByteSink, layout: Layout, *, expires: bool = False, compression: str = "none"
    ) -> None:
        self._layout = layout
        self._expires = expires
        self._schema = layout.schema(expires)
        self._sink = _ChecksumSink(sink)
        codec = None if compression == "none" else compression
        options = ipc.IpcWriteOptions(compression=codec)
        self._writer = ipc.new_file(pa.PythonFile(self._sink, "w"), self._schema, options=options)
        self._chunks: list[ChunkInfo] = []

    def add(self, rows: Rows) -> None:
        """Append rows. Requires: their hashes lie above those of all rows added before."""
        for chunk in _chunks_of(rows):
            start = self._sink.position
            self._writer.write_batch(self._batch(chunk))
            self._chunks.append(
                ChunkInfo(
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
            "format": SEGMENT_FORMAT,
            "block": BLOCK_BYTES,
            "sums": "".join(sums),
            "chunks": [
                [c.rows, c.dead, c.first, c.last, c.start, c.stop, *c.zone] for c in self._chunks
            ],
        }
        empty = pa.RecordBatch.from_pylist([], schema=self._schema)
        self._writer.write_batch(empty, custom_metadata={META_KEY: json.dumps(meta).encode()})
        self._writer.close()
        zone = NO_ROWS
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
    """A file object for Arrow that computes checksums while bytes pass: of blocks, then the tail.

    Computed on the way, they vouch for what the writer meant, not for what a disk made of it.
    """

    closed = False

    def __init__(self, sink: ByteSink) -> None:
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
    """Slices of bounded size that never separate rows of one hash.

    A lookup searches a single chunk for each hash, so all rows of a hash must be in it.
    """
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
