"""Lists of what can be read: a line for each store, or for each version."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from holdfast.reading import Root, open_root
from holdfast.types import parse_schema
from pyspark_holdfast.options import ReadOptions

_COLUMNS = {
    "stores": "operatorId int not null, operatorName string, stateStoreName string not null, "
    "numPartitions int not null, minVersion bigint not null, maxVersion bigint not null, "
    "numKeys bigint not null, sizeBytes bigint not null, keySchema string not null, "
    "valueSchema string not null, numColsPrefixKey int not null",
    "versions": "version bigint not null, committedAt timestamp, batchId bigint, "
    "watermark timestamp, numKeys bigint, changedRows bigint, writtenBytes bigint, "
    "sizeBytes bigint, tags array<string> not null, problem string",
}


def listing_schema(kind: str) -> StructType:
    """The columns of a list of stores or versions."""
    return StructType.fromJson(parse_schema(_COLUMNS[kind]).json())


class ListingReader(DataSourceReader):
    """Reads manifests only, in one input partition, because there are few lines."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> list[InputPartition]:
        root = open_root(self._options.path, options=self._options.storage)
        return [InputPartition(root.location)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        root = open_root(partition.value, options=self._options.storage)
        return _versions(root) if self._options.metadata == "versions" else _stores(root)


def _stores(root: Root) -> Iterator[tuple[Any, ...]]:
    info = root.info()
    names = [made["operator"] for made in root.newest_readable().scope.get("operators", ())]
    for store in info.stores:
        name = names[store.operator] if store.operator < len(names) else None
        yield (
            store.operator,
            name,
            store.store,
            len(store.partitions),
            info.oldest,
            info.newest,
            store.num_keys,
            store.size_bytes,
            store.key_schema.ddl(),
            store.value_schema.ddl(),
            store.num_cols_prefix_key,
        )


def _versions(root: Root) -> Iterator[tuple[Any, ...]]:
    for line in root.history():
        manifest = None if line.problem is not None else root.manifest(line.version)
        batch = None if manifest is None else (manifest.batch or {}).get("id")
        marks = {} if manifest is None else manifest.watermark or {}
        yield (
            line.version,
            _time(line.committed_at_ms),
            batch,
            _time(marks.get("evict_ms") or None),
            line.num_keys,
            line.changed_rows,
            line.written_bytes,
            line.size_bytes,
            list(line.tags),
            line.problem,
        )


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else datetime.fromtimestamp(ms / 1000, UTC)
