"""The contracts of a state store and its provider. No implementation lives here.

A `StateStoreProvider` owns all versions of one store. `get_store(version)` opens a version for
update, `get_read_store(version)` for reading; committing a store opened at `version` makes
`version + 1`. The batch methods have row-by-row defaults, so a provider that implements only the
row contract is complete; a columnar provider overrides them.

`holdfast.testing` has a suite that checks a provider against these contracts.
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
from holdfast.reserved import FOUND
from holdfast.types import Row as Row
from holdfast.types import RowCodec, Schema, as_table, columns_of, parse_schema

RowLike = Any
"""A row as callers pass it: a tuple or list by position, a dict by column name, or a named row."""


class RowPair(NamedTuple):
    """A key and its value, each a tuple in the order of its schema."""

    key: Row
    value: Row


@dataclass(frozen=True, slots=True)
class StateStoreCustomMetric:
    """A metric beyond the two that every store has.

    `name` is what Spark's progress shows, `description` explains it to people. `kind` says what the
    value is, as in Spark: a "sum" of events, a "size" in bytes or a "timing" in milliseconds.
    """

    name: str
    description: str
    kind: Literal["sum", "size", "timing"] = "sum"


@dataclass(frozen=True, slots=True)
class StateStoreMetrics:
    """Figures of one store at one version.

    `num_keys` is exact. `memory_used_bytes` counts only memory that this process holds privately;
    mapped files are not included. `custom_metrics` has a value for each metric that the provider
    lists in `supported_custom_metrics`.
    """

    num_keys: int
    memory_used_bytes: int
    custom_metrics: Mapping[StateStoreCustomMetric, int] = field(default_factory=dict)

    def json(self) -> dict[str, int]:
        """The figures as a dict, under the names that Spark's progress uses."""
        own = {metric.name: value for metric, value in self.custom_metrics.items()}
        return {"numKeys": self.num_keys, "memoryUsedBytes": self.memory_used_bytes, **own}


class ReadStateStore(ABC):
    """One version of a store, open for reading.

    Every read raises Closed after `abort`, Corruption where stored data is damaged beyond repair
    and Unavailable where the storage does not answer.
    """

    @property
    @abstractmethod
    def id(self) -> StateStoreId:
        """The id of this store."""

    @property
    @abstractmethod
    def version(self) -> int:
        """The version that was opened; in a store open for update, the one it is based on."""

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
        """Return the value of `key`, or None when the store has no such key.

        The caller may change the returned row; that never changes the state. Raises InvalidArgument
        when `key` is None or does not fit the key schema.
        """

    @abstractmethod
    def iterator(self) -> Iterator[RowPair]:
        """Return all pairs as of this call. Their order is not guaranteed.

        The iterator stays valid after updates and after the commit, and shows none of them.
        """

    @abstractmethod
    def abort(self) -> None:
        """Release the store and drop its uncommitted changes. Does nothing after a commit.

        Reads and updates are refused afterwards.
        """

    @property
    @abstractmethod
    def metrics(self) -> StateStoreMetrics:
        """The store's figures as of now, with exactly the custom metrics the provider supports."""

    def get_range(self, start: Any = None, end: Any = None) -> Iterator[RowPair]:
        """Return the pairs whose `key_index_ordinal` column lies between `start` and `end`.

        Both bounds are inclusive; None leaves that side open. The result includes every such pair,
        as of this call, in no guaranteed order. A provider without an index may return others
        as well: this default returns every pair. Raises InvalidArgument when a bound is not a value
        of that column.
        """
        return self.iterator()

    def prefix_scan(self, prefix: RowLike) -> Iterator[RowPair]:
        """Return the pairs whose first key columns equal `prefix`, a row of those columns.

        The result shows the state as of this call, in no guaranteed order. Raises InvalidArgument
        when `prefix` does not fit these columns.
        Requires: the provider was initialised with `num_cols_prefix_key` = len(prefix).
        """
        size = len(prefix)
        fields = self.key_schema.json()["fields"][:size]
        codec = RowCodec(parse_schema({"type": "struct", "fields": fields}))
        wanted = codec.hashable(codec.encode(prefix))
        return (pair for pair in self.iterator() if codec.hashable(pair.key[:size]) == wanted)

    def get_many(self, keys: pa.Table) -> pa.Table:
        """Look up many keys at once.

        `keys` is a table with the key columns. The result has one row for each of its rows, in the
        same order: the key columns, the value columns (null where the key is absent) and a boolean
        `_found`, which tells an absent key from one with null values. Raises InvalidArgument when a
        column is missing, comes twice or does not fit the schema.
        """
        key_codec, value_codec = RowCodec(self.key_schema), RowCodec(self.value_schema)
        keys = as_table(keys)
        wanted = columns_of(keys, self.key_schema)
        rows = key_codec.from_arrow(wanted, keys.num_rows)
        values = [self.get(row) for row in rows]
        absent = (None,) * len(self.value_schema)
        columns = value_codec.to_arrow([absent if value is None else value for value in values])
        found = pa.array([value is not None for value in values], pa.bool_())
        names = [*self.key_schema.names, *self.value_schema.names, FOUND]
        return pa.table([*wanted, *columns, found], names=names)

    def scan(self, columns: list[str] | None = None, where: Any = None) -> pa.Table:
        """Return every pair as one table of key and value columns, in no guaranteed order.

        `where` is a pyarrow.compute expression over all columns that chooses rows; `columns` names
        the columns to return, None all of them.
        """
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
    """One version of a store, open for update.

    End it with exactly one of `commit` and `abort`. Reads show the updates made so far, and also
    work after a commit. Every update raises IllegalState once the store is committed or aborted.
    Requires: only one thread at a time uses the store.
    """

    @abstractmethod
    def put(self, key: RowLike, value: RowLike) -> None:
        """Set the value of `key`. Both rows are copied, so the caller may reuse them.

        Raises InvalidArgument when either is None or does not fit its schema, and IllegalState
        after a commit or abort.
        """

    @abstractmethod
    def remove(self, key: RowLike) -> None:
        """Remove `key`. Does nothing when the store has no such key.

        Raises InvalidArgument when `key` is None or does not fit the key schema, and IllegalState
        after a commit or abort.
        """

    @abstractmethod
    def commit(self) -> int:
        """Make all updates one new version and return its number, `version + 1`.

        Without any update it makes a version with the same state. Raises IllegalState when the
        store is already committed or aborted, or when the commit failed: then the cause is chained
        and no update is visible. The condition tells the two apart.
        """

    @property
    @abstractmethod
    def has_committed(self) -> bool:
        """Whether `commit` succeeded."""

    def put_many(self, rows: pa.Table) -> None:
        """Set the value of every key in `rows`, a table with the key and value columns.

        Of rows with equal keys the last one wins. Raises InvalidArgument when a column is missing,
        comes twice or does not fit the schema, and IllegalState after a commit or abort.
        """
        for key, value in zip(
            _rows_of(rows, self.key_schema), _rows_of(rows, self.value_schema), strict=True
        ):
            self.put(key, value)

    def remove_many(self, keys: pa.Table) -> None:
        """Remove every key in `keys`, a table with the key columns; absent keys are ignored.

        Raises InvalidArgument when a column is missing, comes twice or does not fit the schema, and
        IllegalState after a commit or abort.
        """
        for key in _rows_of(keys, self.key_schema):
            self.remove(key)


class StateStoreProvider(ABC):
    """Owns all versions of one store.

    The class is called without arguments, then `init` once, before anything else. The same
    instance serves every version until `close`; a restarted query makes a new one. Methods may be
    called from several threads, `do_maintenance` at any time.
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
        """Set what the provider keeps, and where.

        `state_store_id` names the store and its location, `key_schema` and `value_schema` its
        columns. `key_index_ordinal` is the position of the key column that `get_range` compares,
        None for no index. `prefix_scan` takes the first `num_cols_prefix_key` key columns; 0 means
        that it is not used. `store_confs` are the settings of the store; `hadoop_conf` holds
        storage options, which may include credentials.

        Raises InvalidArgument when the schemas or positions cannot be used, or differ from what is
        stored at that location. Requires: `init` was not called before.
        """

    @property
    @abstractmethod
    def state_store_id(self) -> StateStoreId:
        """The id given to `init`."""

    @abstractmethod
    def get_store(self, version: int) -> StateStore:
        """Open `version` for update and return the store.

        Version 0 is the empty store and always opens. Several stores may be open for update at one
        version; only one of them can commit. Raises InvalidArgument for a negative version,
        VersionNotFound for one that was never committed or has been removed, and Closed after
        `close`.
        """

    def get_read_store(self, version: int) -> ReadStateStore:
        """Open `version` for reading and return the store. Raises what `get_store` raises."""
        return self.get_store(version)

    def do_maintenance(self) -> None:
        """Do background work such as snapshots and clean-up.

        It may be called at any time, also while stores are open, and changes no version that is
        retained. It is not guaranteed to be called.
        """
        return

    @property
    def supported_custom_metrics(self) -> tuple[StateStoreCustomMetric, ...]:
        """The custom metrics every store of this provider reports, by exactly these names."""
        return ()

    @abstractmethod
    def close(self) -> None:
        """Release everything the provider holds. Nothing can be opened afterwards.

        Requires: stores that were opened before are no longer used.
        """

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
        """Return an initialised provider of the class that `store_conf.provider_class` names.

        The schemas may be in any form that `holdfast.types.parse_schema` reads; the other
        parameters are those of `init`. Raises InvalidArgument when the class cannot be loaded or is
        not a provider, and what its `init` raises.
        """
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
    """Import the provider class with this dotted name.

    Raises InvalidArgument when it cannot be imported or is not a StateStoreProvider.
    """
    module_name, _, class_name = dotted_name.rpartition(".")
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgument(
            f"The provider class {dotted_name!r} cannot be loaded: {error}. Check the setting "
            "provider_class, and that its module is installed.",
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
