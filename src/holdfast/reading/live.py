"""The state of a stream as anybody reads it, in any process, while the stream goes on."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from holdfast.engine.files.manifest import Manifest
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reading.find import open_root
from holdfast.reading.model import StoreInfo
from holdfast.reading.root import Root
from holdfast.reading.store import InspectedStore, VersionLike
from holdfast.store import Row
from holdfast.types import ArrayType, Field, RowCodec, Schema, StructType, moment

log = logging.getLogger(__name__)


def read_state(
    location: str | os.PathLike[str],
    *,
    operator: int | None = None,
    store: str | None = None,
    options: Mapping[str, str] | None = None,
) -> LiveState:
    """The newest state at a location, for reading: the checkpoint of a stream, its root, or the
    root of a store made by `holdfast.open`.

    Where there are several stores, `operator` is 0 and `store` "default" unless said otherwise.
    `options` are handed to the storage. Nothing is ever written, and the writer is not disturbed.
    """
    root = open_root(location, operator, store, options=options)
    return LiveState(choose_store(root, operator, store))


def choose_store(
    root: Root, operator: int | None, name: str | None, partition: int | None = None
) -> InspectedStore:
    """The only store that fits; of several, that of operator 0 and the one named "default".

    Where nothing fits, the error lists what there is.
    """
    fitting = [
        info
        for info in root.info().stores
        if operator in (None, info.operator) and name in (None, info.store)
    ]
    if len(fitting) > 1:
        operator = 0 if operator is None else operator
        name = DEFAULT_STORE_NAME if name is None else name
    return root.store(operator, name, partition)


class _View(NamedTuple):
    """What is looked at. Replaced as a whole, so that threads may share a LiveState."""

    store: InspectedStore
    manifest: Manifest

    def reading(self) -> AbstractContextManager[None]:
        """Held while the version is read, see `Root.reading`."""
        return self.store.root.reading(self.manifest.version)


class LiveState:
    """One store of a stream at one version, over all its partitions. Made by `holdfast.read`.

    It stays at its version until `refresh`, whatever the stream commits, merges and cleans up
    meanwhile. Once retention has removed that version, reads may raise VersionNotFound. DuckDB,
    Polars and all who speak Arrow's C stream interface read it as a table.
    """

    def __init__(self, store: InspectedStore, at: VersionLike = None) -> None:
        self._view = _opened(store, at)

    @property
    def version(self) -> int:
        """The version that is read."""
        return self._view.manifest.version

    @property
    def watermark(self) -> datetime | np.datetime64 | None:
        """The event time up to which this version's state is final and evicted; None without one.

        Spark's progress calls it `eventTime.watermark`. After the year 9999, which a datetime
        cannot hold, it is a `numpy.datetime64` in UTC.
        """
        evict_ms = (self._view.manifest.watermark or {}).get("evict_ms", 0)
        return moment(evict_ms) if evict_ms else None

    @property
    def committed_at(self) -> datetime | np.datetime64:
        """When this version was committed, by the writer's clock."""
        return moment(self._view.manifest.committed_at_ms)

    @property
    def operator(self) -> int:
        """The operator whose store is read."""
        return self._view.store.operator

    @property
    def store(self) -> str:
        """The name of the store that is read."""
        return self._view.store.name

    @property
    def stores(self) -> tuple[StoreInfo, ...]:
        """Every store of this version, with operator, name, columns and size."""
        return self._view.store.root.version(self.version).stores

    @property
    def key_schema(self) -> Schema:
        """The columns of a key."""
        return self._view.store.key_schema

    @property
    def value_schema(self) -> Schema:
        """The columns of a value."""
        return self._view.store.value_schema

    @property
    def num_keys(self) -> int:
        """How many keys there are, without reading them."""
        entry = self._view.manifest.operators[self.operator][self.store]
        return sum(part.num_keys for part in entry.partitions)

    def get(self, key: Any) -> Row | None:
        """The value of a key, or None: a tuple, a dict, or a plain cell for a one-column key."""
        view = self._view
        row = self._row(key)
        with view.reading():
            return view.store.get(row, view.manifest.version)

    def scan(self, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """The state as a table. `columns` picks some; `where` is a filter.

        That is text as in `holdfast scan --where`, or a pyarrow.compute expression.
        """
        view = self._view
        with view.reading():
            return view.store.scan(view.manifest.version, columns, where)

    def to_arrow(self) -> pa.Table:
        """The whole state as a pyarrow.Table."""
        return self.scan()

    def to_pandas(self) -> Any:
        """The whole state as a pandas.DataFrame. Requires: pandas is installed.

        A column of dates, or of lists or structs of times, some of which are outside the years 1
        to 9999, has the cells that `get` gives.
        """
        return _to_pandas(self.scan(), (*self.key_schema.fields, *self.value_schema.fields))

    def refresh(self) -> LiveState:
        """Go on to the newest version; return this same object."""
        self._view = _opened(_reopened(self._view.store))
        return self

    def at(self, version: int | str) -> LiveState:
        """Another version, by number or tag, as an object of its own."""
        return LiveState(_reopened(self._view.store), version)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The whole state as an Arrow stream, read while it is consumed."""
        view = self._view
        reader = pa.RecordBatchReader.from_batches(view.store.arrow_schema(), _batches(view))
        return reader.__arrow_c_stream__(requested_schema)

    def _row(self, key: Any) -> Any:
        """A key as a row: a cell on its own is one where the key has one column."""
        (column, *others) = self.key_schema.fields or (None,)
        if column is None or others or isinstance(key, (tuple, Mapping)):
            return key
        is_row = isinstance(key, list) and not isinstance(column.type, ArrayType)
        return key if key is None or is_row else (key,)

    def __repr__(self) -> str:
        return (
            f"LiveState[{self._view.store.root.location}, operator={self.operator}, "
            f"store={self.store}, version={self.version}, keys={self.num_keys:,}]"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("root", self._view.store.root.location), ("operator", self.operator),
            ("store", self.store), ("version", self.version), ("watermark", self.watermark or "–"),
            ("keys", f"{self.num_keys:,}"), ("key", self.key_schema.ddl()),
            ("value", self.value_schema.ddl()),
        ]  # fmt: skip
        cells = "".join(
            f"<tr><th>{name}</th><td>{html.escape(str(cell))}</td></tr>" for name, cell in rows
        )
        return f"<table>{cells}</table>"


def _opened(store: InspectedStore, at: VersionLike = None) -> _View:
    root = store.root
    manifest = root.newest_readable() if at is None else root.manifest(root.resolve(at))
    if at is None and manifest.version != root.versions[-1]:
        log.warning(
            "Version %d of %s is damaged; reading version %d. Run `holdfast verify`.",
            root.versions[-1], root.location, manifest.version,
        )  # fmt: skip
    store.entries(manifest.version)
    return _View(store, manifest)


def _reopened(store: InspectedStore) -> InspectedStore:
    """The same store, with the versions there are by now."""
    return Root(store.root.storage).store(store.operator, store.name)


def _to_pandas(table: pa.Table, fields: Sequence[Field]) -> Any:
    try:
        return table.to_pandas()
    except (ValueError, OverflowError):  # times that Python's types cannot hold
        pass
    frame = table.select([]).to_pandas()
    for place, (column, field) in enumerate(zip(table.columns, fields, strict=True)):
        try:
            cells = column.to_pandas()
        except (ValueError, OverflowError):
            rows = RowCodec(Schema(StructType((field,)))).from_arrow([column])
            cells = np.fromiter((cell for (cell,) in rows), object, len(rows))
        frame.insert(place, field.name, cells)
    return frame


def _batches(view: _View) -> Iterator[pa.RecordBatch]:
    with view.reading():
        for table in view.store.tables(view.manifest.version):
            yield from table.to_batches()
