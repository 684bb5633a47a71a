"""The one reader: a store at one version over its partitions, behind every door.

`holdfast.read`, `holdfast.open(…)`, the command line and the Spark data source differ in how they
come by the partitions. What is done with them stands here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.engine.arrays import Hashes
from holdfast.engine.files.manifest import Manifest, PartitionEntry
from holdfast.engine.partition.ranges import range_pieces, row_pairs
from holdfast.engine.partition.reader import PartitionReader, hashes_of, rows_table
from holdfast.engine.partition.rows import Rows
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import (
    Closed,
    Corruption,
    HoldfastError,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.reading.evolution import fit_found, fit_row, fit_table
from holdfast.reading.keys import cells_of_key, equal_cells, row_of
from holdfast.reading.meanings import key_meanings
from holdfast.reading.where import check_filter, parse_where
from holdfast.reserved import FOUND, HASH
from holdfast.store import Row, RowPair
from holdfast.types import Schema, StructType, as_table, columns_of

UndoneChanges = Callable[["VersionReader"], Iterator[tuple[pa.Table, pa.Array]]]
"""Gives what a version, with which history went back, has otherwise than the one before it."""


class StorePlace(NamedTuple):
    """Which store is read: the history of its root, its operator and its name."""

    log: VersionLog
    operator: int
    name: str


class VersionReader:
    """One store at one version, over all its partitions or some of them.

    A key is a tuple, a dict by column name, or a plain cell where the key has one column; so is
    a prefix. Values have the columns of `values`, by default those of this version; what it lacks
    of them is null. `is_updated` says that the partitions change between two reads.

    Where retention has removed the version under the reader, reads raise VersionNotFound.
    Requires: at least one partition.
    """

    def __init__(
        self,
        place: StorePlace,
        version: int,
        parts: Sequence[PartitionReader],
        values: Schema | None = None,
        manifest: Manifest | None = None,
        *,
        is_updated: bool = False,
        undone: UndoneChanges | None = None,
    ) -> None:
        self.place = place
        self.version = version
        self._parts = parts
        self._only = parts[0] if len(parts) == 1 else None
        self.shape = parts[0].shape
        self._manifest = manifest
        self._is_updated = is_updated
        self._undone = undone
        stored = self.shape.value_schema
        self._is_evolved = values is not None and values != stored
        self.value_schema = values if values is not None else stored
        self._end: str | None = None

    def close(self, why: str) -> None:
        """End it: every read from now on raises Closed, saying why."""
        self._end, self._only = why, None

    @property
    def parts(self) -> Sequence[PartitionReader]:
        """The partitions that are read."""
        self.check_open()
        return self._parts

    def check_open(self) -> None:
        """Raise Closed where it was closed."""
        if self._end is not None:
            raise Closed(self._end)

    @property
    def manifest(self) -> Manifest:
        """The manifest of the version."""
        if self._manifest is None:
            self._manifest = self.place.log.load(self.version)
        return self._manifest

    @property
    def key_schema(self) -> Schema:
        """The columns of a key."""
        return key_meanings(self.place.name, self.shape.key_schema)

    @property
    def prefix_schema(self) -> Schema:
        """The columns of a prefix. Raises InvalidArgument where the store has none."""
        return self._prefix_shape.key_schema

    @property
    def _prefix_shape(self) -> StoreShape:
        if self.shape.prefix == 0:
            raise InvalidArgument(
                f"The store {self.place.name!r} of {self.place.log.storage.location} was made "
                "without num_cols_prefix_key: it has no prefix. Filter a scan instead."
            )
        return self.shape.prefix_shape

    @property
    def num_keys(self) -> int:
        """How many keys the version has, without reading them."""
        return sum(part.chain.entry.num_keys for part in self._parts)

    # -- rows --------------------------------------------------------------------------------

    def get(self, key: Any) -> Row | None:
        """The value of a key, or None."""
        if type(key) is not tuple:
            key = row_of(key, self.shape.keys)
        try:
            if self._only is not None:
                found = self._only.get(key)
            else:
                key = self.shape.keys.encode(key)
                hashed = self.shape.hasher.hash_row(key)
                found = self.parts[self._holder(hashed >> 32)].get(key, hashed)
        except (Corruption, Unavailable):
            with self._watched():
                raise
        if self._is_evolved:
            return fit_row(found, self.shape.value_schema, self.value_schema)
        return found

    def iterator(self) -> Iterator[RowPair]:
        """All pairs, as of this call."""
        return self._pairs(self._pieces(PartitionReader.pieces, at_once=True))

    def get_range(self, start: Any = None, end: Any = None) -> Iterator[RowPair]:
        """Pairs whose index column lies in start..end, both inclusive, as of this call."""
        return self._pairs(self._pieces(lambda part: range_pieces(part, start, end), at_once=True))

    def prefix_scan(self, prefix: Any) -> Iterator[RowPair]:
        """Pairs whose first key columns equal `prefix`, as of this call."""
        return self._pairs(self._prefix_pieces(prefix))

    def _pairs(self, pieces: Iterator[Rows]) -> Iterator[RowPair]:
        pairs = row_pairs(self.shape, pieces)
        if not self._is_evolved:
            return pairs
        stored, wanted = self.shape.value_schema, self.value_schema
        return (RowPair(key, fit_row(row, stored, wanted) or ()) for key, row in pairs)

    # -- tables ------------------------------------------------------------------------------

    def get_many(self, keys: pa.Table) -> pa.Table:
        """The keys in their order, their values (null where absent) and a boolean `_found`."""
        with self._watched():
            found = self._found(keys)
        if not self._is_evolved:
            return found
        return fit_found(found, self.key_schema, self.shape.value_schema, self.value_schema)

    def _found(self, keys: pa.Table) -> pa.Table:
        if len(self.parts) == 1:
            return self.parts[0].get_many(keys)
        found, places = [], []
        for position, share, rows in self.shares(as_table(keys)):
            found.append(self.parts[position].get_many(share))
            places.append(rows)
        if not found:
            return self.parts[0].get_many(keys)
        back = np.argsort(np.concatenate(places))
        return pa.concat_tables(found).take(pa.array(back))

    def find(self, keys: Sequence[Any]) -> pa.Table:
        """Those of some keys that there are, with their values, in the order of `keys`."""
        codec = self.shape.keys
        columns = codec.to_arrow([codec.encode(row_of(key, codec)) for key in keys])
        found = self.get_many(pa.table(columns, schema=codec.schema.arrow))
        return found.filter(found.column(FOUND)).drop_columns([FOUND])

    def scan(
        self, columns: Sequence[str] | None = None, where: Any = None, prefix: Any = None
    ) -> pa.Table:
        """The state as a table; the arguments are those of `tables`."""
        tables = list(self.tables(columns, where, prefix))
        return pa.concat_tables(tables) if tables else self.arrow_schema(columns).empty_table()

    def tables(
        self, columns: Sequence[str] | None = None, where: Any = None, prefix: Any = None
    ) -> Iterator[pa.Table]:
        """The state a table at a time, as of this call.

        `columns` picks some; `where` is text, see `parse_where`, or a pyarrow.compute expression;
        `prefix` leaves only the keys that begin with it, or that have its cells where it is a
        dict. Only where it has the columns of the store's own prefix is one partition read alone.
        """
        known = (*self.key_schema.names, *self.value_schema.names)
        wanted = None if columns is None else _known(columns, known)
        filtered = None if where is None else self._expression(where)
        cells = {} if prefix is None else cells_of_key(prefix, self.key_schema, self.shape.prefix)
        own = self.key_schema.names[: self.shape.prefix]
        if own and cells.keys() >= set(own):
            pieces = self._prefix_pieces(tuple(cells.pop(name) for name in own))
        else:
            pieces = self._pieces(PartitionReader.pieces, at_once=self._is_updated)
        has_cells = equal_cells(cells, self.key_schema)
        if has_cells is not None:
            filtered = has_cells if filtered is None else has_cells & filtered
        return self._shown(pieces, wanted, filtered)

    def _shown(
        self, pieces: Iterator[Rows], wanted: list[str] | None, filtered: Any
    ) -> Iterator[pa.Table]:
        for piece in pieces:
            table = self._table(piece)
            if filtered is not None:
                table = table.filter(filtered)
            yield table if wanted is None else table.select(wanted)

    def changes(self) -> Iterator[tuple[pa.Table, pa.Array]]:
        """What the version wrote: keys with their new values, and for each row whether it is gone.

        Keys that a bound evicted are not among them: nothing is written for those. For a version
        with which history went back it is how its state differs from that of the version before.
        """
        if self.manifest.goes_back:
            if self._undone is None:
                raise InvalidArgument(
                    f"Version {self.version} of {self.place.log.storage.location} went back to an "
                    "earlier one. Read its changes with holdfast.reading or the Spark data source."
                )
            yield from self._undone(self)
            return
        for piece in self._pieces(PartitionReader.delta_pieces):
            dead = np.zeros(len(piece), bool) if piece.dead is None else piece.dead
            yield self._table(piece), pa.array(dead)

    def arrow_schema(self, columns: Sequence[str] | None = None) -> pa.Schema:
        """The columns of a scan."""
        return scan_schema(self.key_schema, self.value_schema, columns)

    def _expression(self, where: Any) -> Any:
        columns = StructType((*self.key_schema.fields, *self.value_schema.fields))
        return (
            parse_where(where, columns) if isinstance(where, str) else check_filter(where, columns)
        )

    def _table(self, rows: Rows) -> pa.Table:
        table = rows_table(self.shape, rows)
        if not self._is_evolved:
            return table
        return fit_table(table, self.key_schema, self.shape.value_schema, self.value_schema)

    # -- partitions --------------------------------------------------------------------------

    def position(self, key: Any) -> int:
        """Which of `parts` a key belongs to, whether it is there or not."""
        shape = self.shape
        if type(key) is not tuple:
            key = row_of(key, shape.keys)
        return self._holder(shape.hasher.hash_row(shape.keys.encode(key)) >> 32)

    def partition_of(self, key: Any) -> int:
        """The number of the partition a key belongs to. Requires: all partitions are read."""
        return self._parts[self.position(key)].chain.entry.index

    def partition_of_prefix(self, prefix: Any) -> int:
        """The number of the partition with all keys of a prefix. Requires: all are read."""
        return self._parts[self._prefix_position(prefix)].chain.entry.index

    def _prefix_position(self, prefix: Any) -> int:
        """Which of `parts` all keys with a prefix belong to."""
        shape = self._prefix_shape
        encoded = shape.keys.encode(row_of(prefix, shape.keys))
        return self._holder(shape.hasher.hash_row(encoded) >> 32)

    def _holder(self, top: int) -> int:
        """The part a hash belongs to, by the upper half of the hash and the part's own modulus.

        A part on its own is asked for every key: it is the whole store, or the only part wanted.
        """
        parts = self._parts
        position = top % len(parts)
        entry = parts[position].chain.entry
        if top % entry.modulus == entry.index or len(parts) == 1:
            return position
        return next(i for i, part in enumerate(parts) if _holds(part.chain.entry, top))

    def shares(self, table: pa.Table) -> Iterator[tuple[int, pa.Table, Any]]:
        """What of a table belongs to which of `parts`, and the rows it came from. Hashes once."""
        hashes = hashes_of(table, columns_of(table, self.key_schema), self.shape.hasher)
        if HASH not in table.column_names:
            table = table.append_column(HASH, pa.array(hashes))
        tops: Hashes = hashes >> 32
        remainders: dict[int, Hashes] = {}
        for position, part in enumerate(self._parts):
            entry = part.chain.entry
            if entry.modulus not in remainders:
                remainders[entry.modulus] = np.mod(tops, entry.modulus)
            rows = np.flatnonzero(remainders[entry.modulus] == entry.index)
            if len(rows):
                yield position, table.take(pa.array(rows)), rows

    def _pieces(
        self, read: Callable[[PartitionReader], Iterator[Rows]], *, at_once: bool = False
    ) -> Iterator[Rows]:
        """The rows of all parts. `at_once` begins with every part now: they may change."""
        parts: Iterable[Iterator[Rows]] = map(read, self.parts)
        if at_once:
            with self._watched():
                parts = list(parts)
        return self._chained(parts)

    def _prefix_pieces(self, prefix: Any) -> Iterator[Rows]:
        part = self.parts[self._prefix_position(prefix)]
        with self._watched():
            pieces = part.prefix_pieces(row_of(prefix, self.shape.prefix_shape.keys))
        return self._chained([pieces])

    def _chained(self, parts: Iterable[Iterator[Rows]]) -> Iterator[Rows]:
        with self._watched():
            for pieces in parts:
                yield from pieces

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Tell a version whose files were cleaned up under a reader from one that is damaged."""
        try:
            yield
        except (Corruption, Unavailable) as error:
            if not self._is_retired():
                raise
            raise VersionNotFound(
                f"Version {self.version} of {self.place.log.storage.location} was removed by "
                "retention while it was being read. Read a newer one (`refresh()` opens the "
                "newest); a tagged version stays."
            ) from error

    def _is_retired(self) -> bool:
        try:
            return self.version not in self.place.log.versions()
        except HoldfastError:
            return False  # the first error says more than this one


def scan_schema(keys: Schema, values: Schema, columns: Sequence[str] | None = None) -> pa.Schema:
    """The columns of a scan, all or those picked. Raises InvalidArgument for an unknown one."""
    schema = pa.schema([*keys.arrow, *values.arrow])
    if columns is None:
        return schema
    return pa.schema([schema.field(name) for name in _known(columns, schema.names)])


def _known(columns: Sequence[str], known: Sequence[str]) -> list[str]:
    for name in columns:
        if name not in known:
            raise InvalidArgument(f"There is no column {name!r}; there are {list(known)}.")
    return list(columns)


def _holds(entry: PartitionEntry, top: int) -> bool:
    return top % entry.modulus == entry.index
