"""The outbox: rows that tasks emit, to the next stage of the batch or to the sink.

Output that follows from state, such as an aggregation's, is read from the version that was
committed. What a processor or a deduplication emits does not, so it has to be stored until it is
delivered: the manifest names it, and a delivery that crashed is repeated with the same rows. A file
for each task of a small batch would cost more than the batch. So small output travels in the
task's result, and the driver writes that of all tasks as one file before the commit. Only larger
output becomes a file of the task.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import outbox_path
from holdfast.engine.storage import BlobWriter, Runtime, Storage
from holdfast.errors import Corruption

_INLINE_BYTES = 256 << 10
MOST_INLINE_BYTES = 64 << 20
"""How many bytes of small deltas, and of emitted rows, the results of a version's tasks carry."""
_CHUNK_BYTES = 4 << 20
_AT_HAND_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Emission:
    """The rows that one task emitted: in `inline`, or in `size` bytes of a file from `offset`."""

    partition: int
    rows: int = 0
    path: str | None = None
    offset: int = 0
    size: int = 0
    checksum: str = ""
    inline: bytes | None = None

    def json(self) -> dict[str, Any]:
        """The emission as a manifest stores it. Requires: it is in a file."""
        body = asdict(self)
        del body["inline"]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Emission:
        """What `json` wrote."""
        return cls(**body)


NOTHING = Emission(partition=-1)


@dataclass(frozen=True)
class Outbox:
    """Stores the rows that the tasks of one version emit."""

    root: str
    version: int
    partitions: int
    options: Mapping[str, str] = field(repr=False)
    conf: StateStoreConf = StateStoreConf.empty
    inline_bytes: int = MOST_INLINE_BYTES
    """How many bytes of rows the results of all tasks together may carry."""

    def emit(self, partition: int, tables: Iterable[pa.Table]) -> Emission:
        """Emit tables of one schema for a partition, in their order.

        Each table is written as soon as `tables` yields it, so a processor may emit more rows than
        fit into memory. Returns where the rows are. Raises Unavailable if the storage does not
        answer.
        """
        most = min(_INLINE_BYTES, self.inline_bytes // self.partitions)
        with _Spool(most, self._open) as spool:
            rows = _write_stream(spool, tables)
        if not rows:
            return Emission(partition)
        return Emission(
            partition,
            rows,
            spool.path,
            0,
            spool.size,
            spool.checksum,
            None if spool.path is not None else spool.held,
        )

    def _open(self) -> tuple[str, BlobWriter]:
        path = outbox_path(self.version, Runtime.system().new_id())
        return path, open_storage(self.root, self.options, self.conf).open_writer(path)


class _Spool:
    """A file to write to, kept in memory up to `most` bytes and in a blob of the storage beyond."""

    def __init__(self, most: int, open_blob: Callable[[], tuple[str, BlobWriter]]) -> None:
        self._most = most
        self._open_blob = open_blob
        self._held = bytearray()
        self._blob: BlobWriter | None = None
        self._hash = xxhash.xxh3_64()
        self.path: str | None = None
        """The blob's path; None while everything is in memory."""
        self.size = 0
        self.closed = False

    @property
    def held(self) -> bytes:
        """What was written. Requires: there is no blob."""
        return bytes(self._held)

    @property
    def checksum(self) -> str:
        """The checksum of everything written."""
        return self._hash.hexdigest()

    def write(self, data: bytes | memoryview | pa.Buffer) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.size += len(view)
        self._held += view
        if self._blob is None and len(self._held) > self._most:
            self.path, self._blob = self._open_blob()
        if self._blob is not None and len(self._held) >= _CHUNK_BYTES:
            self._write_held()
        return len(view)

    def _write_held(self) -> None:
        assert self._blob is not None
        held, self._held = self._held, bytearray()
        self._blob.write(bytes(held))

    def flush(self) -> None:
        """Do nothing: `__exit__` writes what is left."""

    def close(self) -> None:
        """Do nothing: `__exit__` closes the blob."""

    def __enter__(self) -> _Spool:
        return self

    def __exit__(self, *failure: Any) -> None:
        if self._blob is None:
            return
        if failure[0] is None:
            self._write_held()
        self._blob.__exit__(*failure)


def _write_stream(spool: _Spool, tables: Iterable[pa.Table]) -> int:
    """Write tables as an Arrow stream, large ones in pieces; return how many rows they have."""
    rows = 0
    writer: ipc.RecordBatchStreamWriter | None = None
    for table in tables:
        if not table.num_rows:
            continue
        if writer is None:
            writer = ipc.new_stream(pa.PythonFile(spool, "w"), table.schema)
        rows += table.num_rows
        pieces = max(1, -(-table.nbytes // _CHUNK_BYTES))
        writer.write_table(table, max_chunksize=-(-table.num_rows // pieces))
    if writer is not None:
        writer.close()
    return rows


def emit_if_small(partition: int, most_bytes: int, tables: Iterable[pa.Table]) -> Emission:
    """Like `Outbox.emit`, but only in the result: `NOTHING` if it is more than `most_bytes`."""
    kept, size = [], 0
    for table in tables:
        size += table.nbytes
        if size > most_bytes:
            return NOTHING
        if table.num_rows:
            kept.append(table)
    return _inline(partition, kept) if kept else Emission(partition)


def small_bytes(partitions: int, inline_bytes: int) -> int:
    """How many bytes of rows each of `partitions` tasks may return for the driver to deliver.

    `inline_bytes` is how many bytes of rows the results of all tasks may carry.
    """
    return min(_INLINE_BYTES, min(_AT_HAND_BYTES, inline_bytes) // partitions)


def write_emissions(
    storage: Storage, version: int, emitted: Sequence[Emission]
) -> tuple[Emission, ...]:
    """Write inline rows to one file, and return the emissions with all rows in files."""
    if not any(part.inline for part in emitted):
        return tuple(part for part in emitted if part.rows)
    path = outbox_path(version, Runtime.system().new_id())
    placed, offset = [], 0
    with storage.open_writer(path) as blob:
        for part in emitted:
            if part.inline is not None:
                blob.write(part.inline)
                placed.append(replace(part, path=path, offset=offset, inline=None))
                offset += part.size
            elif part.rows:
                placed.append(part)
    return tuple(placed)


@dataclass(frozen=True)
class OutboxReader:
    """Reads what the tasks of a version emitted. It is pickled to the workers."""

    root: str
    options: Mapping[str, str] = field(repr=False)
    parts: tuple[Emission, ...]
    conf: StateStoreConf = StateStoreConf.empty

    @property
    def is_at_hand(self) -> bool:
        """Whether all rows are inline, and few enough to be put into a plan of Spark."""
        size = sum(part.size for part in self.parts)
        return size <= _AT_HAND_BYTES and all(
            part != NOTHING and (part.inline is not None or not part.rows) for part in self.parts
        )

    def table(self) -> pa.Table | None:
        """All rows; None if there are none."""
        batches = [batch for part in self.parts if part.rows for batch in self._batches(part)]
        return pa.Table.from_batches(batches) if batches else None

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """The rows emitted for a partition."""
        for part in self.parts:
            if part.partition == partition and part.rows:
                yield from self._batches(part)

    def _batches(self, part: Emission) -> Iterator[pa.RecordBatch]:
        """Yield one batch at a time, so that reading needs no more memory than writing did."""
        if part.inline is not None:
            source: Any = pa.py_buffer(part.inline)
        else:
            source = self._source(open_storage(self.root, self.options, self.conf), part)
        with ipc.open_stream(source) as reader:
            yield from reader

    def _source(self, storage: Storage, part: Emission) -> Any:
        """Open a part for reading, after its checksum was verified.

        A damaged part must fail before its first row is delivered. A small part is fetched once. A
        larger one is fetched twice, to be checked and to be read, so that only a chunk of it is in
        memory.
        """
        assert part.path is not None
        end = part.offset + part.size
        if part.size <= _CHUNK_BYTES:
            body = storage.read_range(part.path, part.offset, end)
            self._check(part, [body])
            return body
        starts = range(part.offset, end, _CHUNK_BYTES)
        self._check(
            part,
            (storage.read_range(part.path, at, min(at + _CHUNK_BYTES, end)) for at in starts),
        )
        blob = _BlobFile(storage, part.path, part.offset, end)
        return pa.PythonFile(io.BufferedReader(blob, _CHUNK_BYTES), "r")

    def _check(self, part: Emission, pieces: Iterable[pa.Buffer]) -> None:
        found = xxhash.xxh3_64()
        for piece in pieces:
            found.update(piece)
        if found.hexdigest() != part.checksum:
            raise Corruption(
                f"{part.path} in {self.root} is damaged: its checksum is wrong. The version is "
                "committed, but its output cannot be delivered again. `holdfast rollback "
                "CHECKPOINT --to VERSION` goes back to the one before it; its input comes again."
            )


class _BlobFile(io.RawIOBase):
    """Bytes `start` to `stop` of a blob, as a readable file."""

    def __init__(self, storage: Storage, path: str, start: int, stop: int) -> None:
        self._storage, self._path = storage, path
        self._next, self._stop = start, stop

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        stop = min(self._next + len(into), self._stop)
        found = memoryview(self._storage.read_range(self._path, self._next, stop)).cast("B")
        into[: len(found)] = found
        self._next += len(found)
        return len(found)


def _inline(partition: int, tables: Sequence[pa.Table]) -> Emission:
    body = _stream(tables)
    return Emission(
        partition,
        rows=sum(table.num_rows for table in tables),
        size=len(body),
        checksum=xxhash.xxh3_64_hexdigest(body),
        inline=body,
    )


def _stream(tables: Sequence[pa.Table]) -> bytes:
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body
