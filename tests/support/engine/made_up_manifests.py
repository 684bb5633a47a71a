"""Segments, manifests and results of tasks that no store ever wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine.files.manifest import (
    Manifest,
    PartitionEntry,
    SegmentRef,
    StoreEntry,
    fingerprint,
)
from holdfast.engine.files.segment import SegmentInfo, Zone
from holdfast.engine.versions.commit import PreparedPartition, Swap
from holdfast.types import parse_schema

KEY, VALUE = parse_schema("k int"), parse_schema("v int")
SCHEMAS = fingerprint(KEY, VALUE)
OPERATOR, STORE = 0, "default"


def attempt(number: int) -> str:
    return f"{number:032x}"


def ref(
    high: int,
    low: int | None = None,
    kind: str = "delta",
    *,
    size: int = 100,
    number: int = 0,
    inputs: Sequence[SegmentRef] = (),
) -> SegmentRef:
    info = SegmentInfo(size // 10, 0, size, size // 5, "0123456789abcdef", Zone())
    first = high if low is None else low
    return SegmentRef(kind, first, high, attempt(number), info, inputs=tuple(inputs))


def swap(inputs: Sequence[SegmentRef], kind: str = "merge", number: int = 99) -> Swap:
    output = ref(inputs[0].high, inputs[-1].low, kind, number=number)
    return Swap(tuple(part.name for part in inputs), output)


def manifest(
    version: int,
    chains: Sequence[Sequence[SegmentRef]] = ((),),
    *,
    committed_at_ms: int = 0,
    scope: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Manifest:
    entries = tuple(
        PartitionEntry(index, len(chains), tuple(chain)) for index, chain in enumerate(chains)
    )
    store = StoreEntry(KEY, VALUE, None, 0, {}, entries)
    return Manifest(
        version=version,
        parent=version - 1 if version else None,
        parent_commit_id=f"commit-{version - 1}" if version else None,
        commit_id=f"commit-{version}",
        writer_id="writer",
        epoch=1,
        committed_at_ms=committed_at_ms,
        hash_name="spark",
        operators={OPERATOR: {STORE: store}},
        scope=scope or {},
        **facts,
    )


def prepared(partition: int, base_version: int, **changes: Any) -> PreparedPartition:
    facts: dict[str, Any] = {
        "operator": OPERATOR,
        "store": STORE,
        "partition": partition,
        "base_version": base_version,
        "schemas": SCHEMAS,
        "delta": ref(base_version + 1),
        "num_keys": 1,
    }
    return PreparedPartition(**{**facts, **changes})
