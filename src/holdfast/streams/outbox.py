"""Rows a task hands on: to the next operator of the batch, or to the sink.

What an operator's state does not say is kept here until it is delivered. Small output travels in
the task's result; the driver writes it as one file. Larger output is a file of the task's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc
import xxhash

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.filenames import outbox_path
from holdfast.engine.storage import Runtime, Storage
from holdfast.errors import Corruption

_INLINE_BYTES = 256 << 10
_INLINE_BYTES_OF_ALL = 64 << 20
_AT_HAND_BYTES = 2 << 20


@dataclass(frozen=True, slots=True)
class Emitted:
    """The rows one task emitted: in `inline`, or in `size` bytes of a file from `offset` on."""

    partition: int
    rows: int = 0
    path: str | None = None
    offset: int = 0
    size: int = 0
    checksum: str = ""
    inline: bytes | None = None

    def json(self) -> dict[str, Any]:
        """As a manifest names it. Requires: it is in a file."""
        body = asdict(self)
        del body["inline"]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Emitted:
        """What `json` wrote."""
        return cls(**body)


NOTHING = Emitted(partition=-1)


@dataclass(frozen=True)
class Outbox:
    """Where the tasks of one version put the rows they emit."""

    root: str
    version: int
    partitions: int
    options: Mapping[str, str] = field(repr=False)
    conf: StateStoreConf = StateStoreConf.empty

    def emit(self, partition: int, tables: Iterable[pa.Table]) -> Emitted:
        """Put tables of one schema out for a partition. Their order stays."""
        kept = [table for table in tables if table.num_rows]
        if not kept:
            return Emitted(partition)
        emitted = _inline(partition, kept)
        body = emitted.inline
        assert body is not None
        if len(body) <= min(_INLINE_BYTES, _INLINE_BYTES_OF_ALL // self.partitions):
            return emitted
        path = outbox_path(self.version, Runtime.system().new_id())
        with open_storage(self.root, self.options, self.conf).open_writer(path) as blob:
            blob.write(body)
        return replace(emitted, path=path, inline=None)


def emit_if_small(partition: int, partitions: int, tables: Iterable[pa.Table]) -> Emitted:
    """What `Outbox.emit` gives, `NOTHING` where that is too much to travel in a result."""
    kept, size = [], 0
    for table in tables:
        size += table.nbytes
        if size > small_bytes(partitions):
            return NOTHING
        if table.num_rows:
            kept.append(table)
    return _inline(partition, kept) if kept else Emitted(partition)


def small_bytes(partitions: int) -> int:
    """How much one of so many tasks may hand to the driver for it to deliver."""
    return min(_INLINE_BYTES, _AT_HAND_BYTES // partitions)


def filed(storage: Storage, version: int, emitted: Sequence[Emitted]) -> tuple[Emitted, ...]:
    """The same rows, every one of them in a file: what is inline goes into one of its own."""
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
    """Reads what the tasks of a version emitted; travels to the workers."""

    root: str
    options: Mapping[str, str] = field(repr=False)
    parts: tuple[Emitted, ...]
    conf: StateStoreConf = StateStoreConf.empty

    @property
    def is_at_hand(self) -> bool:
        """Whether every row came with the tasks' results, and they are few enough for a plan."""
        size = sum(part.size for part in self.parts)
        return size <= _AT_HAND_BYTES and all(
            part != NOTHING and (part.inline is not None or not part.rows) for part in self.parts
        )

    def table(self) -> pa.Table | None:
        """All rows, None where there are none."""
        batches = [batch for part in self.parts if part.rows for batch in self._batches(part)]
        return pa.Table.from_batches(batches) if batches else None

    def read(self, partition: int) -> Iterator[pa.RecordBatch]:
        """The rows emitted for a partition."""
        for part in self.parts:
            if part.partition == partition and part.rows:
                yield from self._batches(part)

    def _batches(self, part: Emitted) -> Iterator[pa.RecordBatch]:
        with ipc.open_stream(pa.py_buffer(self._body(part))) as reader:
            yield from reader

    def _body(self, part: Emitted) -> bytes:
        if part.inline is not None:
            return part.inline
        assert part.path is not None
        storage = open_storage(self.root, self.options, self.conf)
        body = bytes(storage.read_range(part.path, part.offset, part.offset + part.size))
        if xxhash.xxh3_64_hexdigest(body) != part.checksum:
            raise Corruption(
                f"{part.path} in {self.root} does not hold the output that was written to it. The "
                "version is committed; its output cannot be delivered again."
            )
        return body


def _inline(partition: int, tables: Sequence[pa.Table]) -> Emitted:
    body = _stream(tables)
    return Emitted(
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
