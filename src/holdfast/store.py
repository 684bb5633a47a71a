"""The contracts: what a state store and its provider promise. No implementation lives here.

A `StateStoreProvider` owns all versions of one store. `get_store(version)` opens a version for
update, `get_read_store(version)` for reading; committing a store opened at `version` makes
`version + 1`. The batch methods have row-by-row defaults, so a provider that implements the row
contract alone is complete; a columnar provider overrides them.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from holdfast.conf import StateStoreConf
from holdfast.errors import InvalidArgument
from holdfast.ids import StateStoreId
from holdfast.types import Row as Row
from holdfast.types import RowCodec, Schema, as_table, columns_of, parse_schema

RowLike = Any
"""A row as the store takes it: a tuple, a dict by column name, or a named row."""


class RowPair(NamedTuple):
    """One key with its value."""

    key: Row
    value: Row


@dataclass(frozen=True, slots=True)
class StateStoreCustomMetric:
    """A metric beyond the two every store has. `kind` says how partitions add up."""

    name: str
    description: str
    kind: Literal["sum", "size", "timing"] = "sum"


@dataclass(frozen=True, slots=True)
class StateStoreMetrics:
    """Figures of one store. `num_keys` is exact; `memory_used_bytes` counts private memory only."""

    num_keys: int
    memory_used_bytes: int
    custom_metrics: Mapping[StateStoreCustomMetric, int] = field(default_factory=dict)

    def json(self) -> dict[str, int]:
        """The figures under the names Spark's progress uses."""
        own = {metric.name: value for metric, value in self.custom_metrics.items()}
        return {"numKeys": self.num_keys, "memoryUsedBytes": self.memory_used_bytes, **own}


class ReadStateStore(ABC):
    """One version of a store, for reading."""

    @property
    @abstractmethod
    def id(self) -> StateStoreId:
        """Which store this is."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that was opened; in a store for update, the one before the commit."""

    @property
    @abstractmethod
    def key_schema(self) -> Schema:
        """The columns of a key."""

    @property
    @abstractmethod
    def value_schema(self) -> Schema:
        """The columns of a value."""

    @abstractmethod
    def get(self, key: RowLike) -> Row | None:
        """The value of `key`, or None when the store has no such key. `key` must not be None."""

    @abstractmethod
    def iterator(self) -> Iterator[RowPair]:
        """All pairs, in no promised order, as of this call. Updates are allowed while it runs."""

    @abstractmethod
    def abort(self) -> None:
        """Let go of the store; what was changed in it is dropped. Does nothing after a commit."""

    @property
    @abstractmethod
    def metrics(self) -> StateStoreMetrics:
        """Figures as of now, with exactly the custom metrics the provider supports."""

    def get_range(self, start: Any = None, end: Any = None) -> Iterator[RowPair]:
        """Pairs whose `key_index_ordinal` column lies in start..end, both inclusive, either open.

        Misses none. Where the provider keeps no index it may return more; this default returns
        every pair.
        """
        return self.iterator()

    def prefix_scan(self, prefix: RowLike) -> Iterator[RowPair]:
        """Pairs whose first key columns equal `prefix`.

        Requires: the provider was initialised with `num_cols_prefix_key` = len(prefix).
        """
        size = len(prefix)
        fields = self.key_schema.json()["fields"][:size]
        codec = RowCodec(parse_schema({"type": "struct", "fields": fields}))
        wanted = codec.hashable(codec.encode(prefix))
        return (pair for pair in self.iterator() if codec.hashable(pair.key[:size]) == wanted)

    def get_many(self, keys: pa.Table) -> pa.Table:
        """`keys` in their order, the value columns (null where absent) and a boolean `_found`."""
        key_codec, value_codec = RowCodec(self.key_schema), RowCodec(self.value_schema)
        keys = as_table(keys)
        wanted = columns_of(keys, self.key_schema)
        rows = key_codec.from_arrow(wanted, keys.num_rows)
        values = [self.get(row) for row in rows]
        absent = (None,) * len(self.value_schema)
        columns = value_codec.to_arrow([absent if value is None else value for value in values])
        found = pa.array([value is not None for value in values], pa.bool_())
        names = [*self.key_schema.names, *self.value_schema.names, "_found"]
        return pa.table([*wanted, *columns, found], names=names)

    def scan(self, columns: list[str] | None = None, where: Any = None) -> pa.Table:
        """Every pair as one table. `columns` picks some, `where` is a pyarrow.compute filter."""
        pairs = list(self.iterator())
        arrays = [
            *RowCodec(self.key_schema).to_arrow([pair.key for pair in pairs]),
            *RowCodec(self.value_schema).to_arrow([pair.value for pair in pairs]),
        ]
        table = pa.table(arrays, names=[*self.key_schema.names, *self.value_schema.names])
        if where is not None:
            table = table.filter(where)
        return table if columns is None else table.select(columns)


class StateStore(ReadStateStore):
    """One version of a store, open for update. It ends in exactly one of commit and abort."""

    @abstractmethod
    def put(self, key: RowLike, value: RowLike) -> None:
        """Set the value of `key`. Both are copied: the caller may reuse them. Neither is None."""

    @abstractmethod
    def remove(self, key: RowLike) -> None:
        """Remove `key`; nothing happens when the store has no such key."""

    @abstractmethod
    def commit(self) -> int:
        """Make all updates one new version and return its number, `version + 1`.

        Raises IllegalState when the store is committed or aborted already, or when the commit
        failed; then no part of it is visible.
        """

    @property
    @abstractmethod
    def has_committed(self) -> bool:
        """Whether `commit` succeeded."""

    def put_many(self, rows: pa.Table) -> None:
        """Put every row of a table with the key and value columns; of equal keys the last wins."""
        for key, value in zip(
            _rows_of(rows, self.key_schema), _rows_of(rows, self.value_schema), strict=True
        ):
            self.put(key, value)

    def remove_many(self, keys: pa.Table) -> None:
        """Remove every key of a table with the key columns."""
        for key in _rows_of(keys, self.key_schema):
            self.remove(key)


class StateStoreProvider(ABC):
    """Owns all versions of one store.

    A provider is created by its class, then `init` is called once, before anything else. The same
    instance serves every version until `close`; a restarted query makes a new one.
    """

    @abstractmethod
    def init(
        self,
        state_store_id: StateStoreId,
        key_schema: Schema,
        value_schema: Schema,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        store_confs: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
    ) -> None:
        """Tell the provider what it keeps and where.

        `key_index_ordinal` is the key column `get_range` goes by; the first `num_cols_prefix_key`
        key columns are what `prefix_scan` takes. `hadoop_conf` also carries storage options and
        credentials.
        """

    @property
    @abstractmethod
    def state_store_id(self) -> StateStoreId:
        """The id given to `init`."""

    @abstractmethod
    def get_store(self, version: int) -> StateStore:
        """Open `version` for update. Version 0 is the empty store and always opens."""

    def get_read_store(self, version: int) -> ReadStateStore:
        """Open `version` for reading."""
        return self.get_store(version)

    def do_maintenance(self) -> None:
        """Background work such as snapshots and clean-up. It may be called at any time."""
        return

    @property
    def supported_custom_metrics(self) -> tuple[StateStoreCustomMetric, ...]:
        """The custom metrics every store of this provider reports, by exactly these names."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. Stores opened before must not be used any more."""

    @staticmethod
    def create_and_init(
        state_store_id: StateStoreId,
        key_schema: Any,
        value_schema: Any,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        store_conf: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
    ) -> StateStoreProvider:
        """A provider of the class `store_conf.provider_class` names, initialised."""
        provider = load_provider_class(store_conf.provider_class)()
        provider.init(
            state_store_id,
            parse_schema(key_schema),
            parse_schema(value_schema),
            key_index_ordinal,
            num_cols_prefix_key,
            store_conf,
            hadoop_conf,
        )
        return provider


def load_provider_class(dotted_name: str) -> type[StateStoreProvider]:
    """The provider class of that name; refused when there is none, or when it is no provider."""
    module_name, _, class_name = dotted_name.rpartition(".")
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"The provider class {dotted_name!r} cannot be loaded: {error}.",
            condition="STATE_STORE_INVALID_SETTING",
        ) from error
    if not (isinstance(loaded, type) and issubclass(loaded, StateStoreProvider)):
        raise InvalidArgument(
            f"{dotted_name!r} is not a subclass of holdfast.store.StateStoreProvider.",
            condition="STATE_STORE_INVALID_SETTING",
        )
    return loaded


def _rows_of(table: pa.Table, schema: Schema) -> list[Row]:
    table = as_table(table)
    return RowCodec(schema).from_arrow(columns_of(table, schema), table.num_rows)
