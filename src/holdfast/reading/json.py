"""What was found in a root, in the shapes that JSON can hold. Keys are stable; nothing prints.

Times are in milliseconds and as ISO 8601 in UTC; cells are as in `cells.cell_json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from holdfast.reading.cells import cell_json, row_json
from holdfast.reading.model import (
    Diff,
    KeyVersion,
    PartitionChain,
    RootInfo,
    StoreInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading.store import InspectedStore
from holdfast.store import Row
from holdfast.types import RowCodec, Schema, StructType, moment_text

JsonBody = dict[str, Any]


def root_json(root: RootInfo) -> JsonBody:
    """A root at a glance."""
    return _timed({**_plain(root), "stores": [store_json(store) for store in root.stores]})


def store_json(store: StoreInfo) -> JsonBody:
    """A store of a version, with its columns and partitions."""
    return {
        "operator": store.operator,
        "store": store.store,
        "num_keys": store.num_keys,
        "size_bytes": store.size_bytes,
        "key_schema": store.key_schema.ddl(),
        "value_schema": store.value_schema.ddl(),
        "key_index_ordinal": store.key_index_ordinal,
        "num_cols_prefix_key": store.num_cols_prefix_key,
        "partitions": [asdict(part) for part in store.partitions],
    }


def version_json(
    root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None = None
) -> JsonBody:
    """One version of a root, with the files it loads from where there are `chains`."""
    stores = [store_json(store) for store in version.stores]
    body = {
        "location": root.location,
        "kind": root.kind,
        **_timed({**_plain(version), "stores": stores}),
    }
    if chains is not None:
        body["files"] = [asdict(chain) for chain in chains]
    return body


def history_json(root: RootInfo, versions: Sequence[VersionInfo]) -> JsonBody:
    """Some versions of a root, and how many it has."""
    listed = [_timed(asdict(version)) for version in versions]
    return {"location": root.location, "total": root.versions, "versions": listed}


def value_json(store: InspectedStore, version: int, key: Row, value: Row | None) -> JsonBody:
    """A key at a version; a value that is null in JSON was not found."""
    return {
        **_place(store),
        "version": version,
        "key": row_json(store.key_schema, key),
        "found": value is not None,
        "value": _row(store.value_schema, value),
    }


def key_history_json(store: InspectedStore, key: Row, versions: Sequence[KeyVersion]) -> JsonBody:
    """The versions in which a key came, changed or went."""
    listed = [
        _timed({**asdict(version), "value": _row(store.value_schema, version.value)})
        for version in versions
    ]
    return {
        **_place(store),
        "key": row_json(store.key_schema, key),
        "found": bool(versions),
        "versions": listed,
    }


def rows_json(store: InspectedStore, version: int, table: pa.Table, more: bool) -> JsonBody:
    """Rows of a scan, and whether there are more than these."""
    fields = store.fields_of(table)
    rows = RowCodec(Schema(StructType(fields))).from_arrow(table.columns, len(table))
    shown = [
        {field.name: cell_json(field.type, cell) for field, cell in zip(fields, row, strict=True)}
        for row in rows
    ]
    return {**_place(store), "version": version, "rows": shown, "more": more}


def diff_json(store: InspectedStore, diff: Diff) -> JsonBody:
    """What differs between two versions."""
    changes = [
        {
            "change": change.change,
            "key": row_json(store.key_schema, change.key),
            "before": _row(store.value_schema, change.before),
            "after": _row(store.value_schema, change.after),
        }
        for change in diff.changes
    ]
    return {**_place(store), **_plain(diff), "total": diff.total, "changes": changes}


def verification_json(results: Sequence[Verification]) -> JsonBody:
    """The outcome of checking some roots."""
    intact = all(result.intact for result in results)
    roots = [
        {**asdict(result), "file_count": result.file_count, "intact": result.intact}
        for result in results
    ]
    return {"intact": intact, "roots": roots}


def _plain(found: Any) -> JsonBody:
    """The fields of a dataclass without those that are rows or schemas."""
    names = [name for name in found.__slots__ if name not in ("stores", "changes")]
    return {name: getattr(found, name) for name in names}


def _timed(body: JsonBody) -> JsonBody:
    """`body` with its time also as text."""
    at_ms = body.get("committed_at_ms")
    return {**body, "committed_at": None if at_ms is None else moment_text(at_ms)}


def _place(store: InspectedStore) -> JsonBody:
    return {"location": store.root.location, "operator": store.operator, "store": store.name}


def _row(schema: Schema, row: Row | None) -> JsonBody | None:
    return None if row is None else row_json(schema, row)
