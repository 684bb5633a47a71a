"""The same for scripts: one JSON document on stdout, errors on stderr. Keys are stable."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, TextIO

import pyarrow as pa

from holdfast.admin import CopyPlan, CopyResult
from holdfast.cli.exits import Exit
from holdfast.cli.output import Check, Output, nobody_to_ask, table_fields
from holdfast.errors import HoldfastError
from holdfast.reading import (
    Diff,
    InspectedStore,
    KeyVersion,
    PartitionChain,
    Progress,
    RootInfo,
    StoreInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading.cells import cell_json, row_json
from holdfast.store import Row
from holdfast.types import RowCodec, Schema, StructType, moment_text


class JsonOutput(Output):
    """Prints what was found as JSON. Times are in milliseconds and as ISO 8601 in UTC."""

    def roots(self, roots: Sequence[RootInfo]) -> None:
        _print({"roots": [_root(root) for root in roots]})

    def version(
        self, root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None
    ) -> None:
        body = {
            "location": root.location,
            "kind": root.kind,
            **_timed({**_plain(version), "stores": [_store(store) for store in version.stores]}),
        }
        if chains is not None:
            body["files"] = [asdict(chain) for chain in chains]
        _print(body)

    def history(self, root: RootInfo, lines: Sequence[VersionInfo]) -> None:
        versions = [_timed(asdict(line)) for line in lines]
        _print({"location": root.location, "total": root.versions, "versions": versions})

    def value(self, store: InspectedStore, version: int, key: Row, value: Row | None) -> None:
        shown = None if value is None else row_json(store.value_schema, value)
        _print(
            {
                **_place(store),
                "version": version,
                "key": row_json(store.key_schema, key),
                "found": value is not None,
                "value": shown,
            }
        )

    def key_history(self, store: InspectedStore, key: Row, lines: Sequence[KeyVersion]) -> None:
        versions = [
            _timed({**asdict(line), "value": _row(store.value_schema, line.value)})
            for line in lines
        ]
        _print(
            {
                **_place(store),
                "key": row_json(store.key_schema, key),
                "found": bool(lines),
                "versions": versions,
            }
        )

    def rows(self, store: InspectedStore, version: int, table: pa.Table, more: bool) -> None:
        fields = table_fields(store, table)
        rows = RowCodec(Schema(StructType(tuple(fields)))).from_arrow(table.columns, len(table))
        shown = [
            {f.name: cell_json(f.type, cell) for f, cell in zip(fields, row, strict=True)}
            for row in rows
        ]
        _print({**_place(store), "version": version, "rows": shown, "more": more})

    def diff(self, store: InspectedStore, diff: Diff) -> None:
        changes = [
            {
                "change": change.change,
                "key": row_json(store.key_schema, change.key),
                "before": _row(store.value_schema, change.before),
                "after": _row(store.value_schema, change.after),
            }
            for change in diff.changes
        ]
        _print({**_place(store), **_plain(diff), "total": diff.total, "changes": changes})

    def verification(self, results: Sequence[Verification]) -> None:
        intact = all(result.intact for result in results)
        roots = [{**asdict(result), "intact": result.intact} for result in results]
        _print({"intact": intact, "roots": roots})

    def copy_plan(self, plan: CopyPlan) -> None:
        _print(asdict(plan))

    def confirm_copy(self, plan: CopyPlan) -> bool:
        raise nobody_to_ask(plan)

    def copied(self, copied: CopyResult) -> None:
        _print(asdict(copied))

    def checks(self, checks: Sequence[Check]) -> None:
        healthy = not any(check.status == "failed" for check in checks)
        _print({"healthy": healthy, "checks": [asdict(check) for check in checks]})

    def warning(self, message: str) -> None:
        return  # stderr is empty or one error; `verify` tells the same

    def error(self, error: HoldfastError) -> None:
        body = {
            "condition": error.condition,
            "message": error.message,
            "exit_code": int(Exit.of(error)),
        }
        _print({"error": body}, sys.stderr)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        yield lambda done, total, path: None


def _print(body: object, to: TextIO | None = None) -> None:
    stream = to or sys.stdout
    stream.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")


def _plain(found: Any) -> dict[str, Any]:
    """The fields of a dataclass without those that are rows or schemas."""
    names = [name for name in found.__slots__ if name not in ("stores", "changes")]
    return {name: getattr(found, name) for name in names}


def _timed(body: dict[str, Any]) -> dict[str, Any]:
    """`body` with its time also as text."""
    at_ms = body.get("committed_at_ms")
    return {**body, "committed_at": None if at_ms is None else moment_text(at_ms)}


def _root(root: RootInfo) -> dict[str, Any]:
    return _timed({**_plain(root), "stores": [_store(store) for store in root.stores]})


def _store(store: StoreInfo) -> dict[str, Any]:
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


def _place(store: InspectedStore) -> dict[str, Any]:
    return {"location": store.root.location, "operator": store.operator, "store": store.name}


def _row(schema: Schema, row: Row | None) -> dict[str, Any] | None:
    return None if row is None else row_json(schema, row)
