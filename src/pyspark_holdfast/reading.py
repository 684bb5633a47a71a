"""Readers of state, with one input partition for each partition of the store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.reading import InspectedStore, Root, choose_store, open_root
from holdfast.store import Row
from pyspark_holdfast.options import ReadOptions

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

    from pyspark_holdfast.filters import KeyFilters

ROWS_PER_BATCH = 64 * 1024


@dataclass
class StatePartition(InputPartition):
    """One partition of a store at some versions, and the keys or prefixes to read (None: all)."""

    location: str
    operator: int
    store: str
    partition: int
    versions: tuple[int, ...]
    keys: tuple[Row, ...] | None = None
    prefixes: tuple[Row, ...] | None = None
    storage: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self) -> InspectedStore:
        """Open the partition for reading, in whichever process this runs."""
        root = open_root(self.location, options=self.storage)
        return root.store(self.operator, self.store, self.partition)


def opened(options: ReadOptions) -> tuple[Root, InspectedStore]:
    """The root as it is now, and the store that the options choose."""
    root = open_root(options.path, options.operator, options.store, options=options.storage)
    return root, choose_store(root, options.operator, options.store)


class StateReader(DataSourceReader):
    """Every key with its value at one version, fixed when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema
        self._filters: KeyFilters | None = None

    def partitions(self) -> list[InputPartition]:
        root, store = opened(self._options)
        version = self._options.version_in(root)
        indexes = [entry.index for entry in store.entries(version)]
        keys = prefixes = None
        if self._filters is not None:
            indexes = [index for index in indexes if self._filters.may_have(index)]
            reader = store.at(version)
            keys = self._filters.wanted_keys(reader)
            prefixes = None if keys is not None else self._filters.wanted_prefixes(reader)
        for wanted in (keys, prefixes):
            if wanted is not None:
                indexes = [index for index in indexes if index in wanted]
        return [
            StatePartition(
                root.location,
                store.operator,
                store.name,
                index,
                (version,),
                None if keys is None else tuple(keys[index]),
                None if prefixes is None else tuple(prefixes[index]),
                self._options.storage,
            )
            for index in indexes
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, StatePartition):
            return  # Spark's own partition, if none was left
        target = to_arrow_schema(self._schema, timezone="UTC")
        store = partition.open()
        (version,) = partition.versions
        for table in self._tables(store, version, partition):
            for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
                yield shaped(target, batch, partition.partition)

    def _tables(
        self, store: InspectedStore, version: int, partition: StatePartition
    ) -> Iterator[pa.Table]:
        if partition.keys is not None:
            yield store.at(version).find(partition.keys)
            return
        where = self._expression(store)
        for prefix in (None,) if partition.prefixes is None else partition.prefixes:
            yield from store.tables(version, where=where, prefix=prefix)

    def _expression(self, store: InspectedStore) -> pc.Expression | None:
        return None if self._filters is None else self._filters.expression(store.key_schema)


class FilteredStateReader(StateReader):
    """A StateReader that skips what the filters on the key exclude.

    Spark applies every filter again, so reading too much is harmless, but reading too little is
    not: Spark 4.3 can run one query with what was planned for another one of the same DataFrame.
    So this reader is used only if the read asks for it.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        from pyspark_holdfast.filters import KeyFilters  # PySpark 4.0 has no filters

        self._filters = KeyFilters.of(filters, opened(self._options)[1].key_schema)
        return filters


def shaped(
    target: pa.Schema, batch: pa.RecordBatch, partition: int, version: int | None = None
) -> pa.RecordBatch:
    """Rows with exactly the columns and types that Spark expects.

    Rows of a change feed have the columns `_kind` and `_gone` as well.
    """
    size = batch.num_rows
    columns = []
    for wanted in target:
        if wanted.name == "partition_id":
            column = pa.repeat(pa.scalar(partition, wanted.type), size)
        elif wanted.name == "version":
            column = pa.repeat(pa.scalar(version, wanted.type), size)
        elif wanted.name == "change_type":
            column = batch.column("_kind").cast(wanted.type)
        else:
            gone = batch.column("_gone") if wanted.name == "value" and version is not None else None
            column = _struct(wanted.type, batch, gone)
        columns.append(column)
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _struct(kind: pa.StructType, batch: pa.RecordBatch, gone: pa.Array | None) -> pa.StructArray:
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if not fields:
        return pa.array([{}] * batch.num_rows, kind)
    columns = [batch.column(field.name).cast(field.type) for field in fields]
    return pa.StructArray.from_arrays(columns, fields=fields, mask=gone)
