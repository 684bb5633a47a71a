"""Version 0 of a root: its stores, all of them without rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.engine.files.manifest import Manifest, PartitionEntry, StoreEntry
from holdfast.engine.hashing.samples import make_samples
from holdfast.engine.hashing.spark_hash import HASH_NAME
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime


def first_version(
    operators: Mapping[int, Mapping[str, StoreEntry]],
    runtime: Runtime | None,
    scope: Mapping[str, Any] | None = None,
    **facts: Any,
) -> Manifest:
    """The version that a root begins with.

    `scope` says what the root belongs to; without it that is the id of the version itself. `facts`
    are further fields of the manifest. Without a `runtime` the version has neither ids nor a time:
    it stands for one that was never stored.
    """
    commit_id = "" if runtime is None else runtime.new_id()
    return Manifest(
        version=0,
        parent=None,
        commit_id=commit_id,
        writer_id="" if runtime is None else runtime.new_id(),
        epoch=0,
        committed_at_ms=0 if runtime is None else runtime.clock_ms(),
        hash_name=HASH_NAME,
        operators={number: dict(stores) for number, stores in operators.items()},
        scope={"id": commit_id} if scope is None else dict(scope),
        **facts,
    )


def new_store_entries(shapes: Mapping[str, StoreShape], partitions: int) -> dict[str, StoreEntry]:
    """The stores of one operator, without rows."""
    places = [(index, partitions) for index in range(partitions)]
    return {name: new_store_entry(shape, places) for name, shape in shapes.items()}


def new_store_entry(shape: StoreShape, places: Sequence[tuple[int, int]]) -> StoreEntry:
    """A store without rows; `places` are its partitions as (index, modulus)."""
    return StoreEntry(
        shape.key_schema,
        shape.value_schema,
        shape.key_index,
        shape.prefix,
        make_samples(shape),
        tuple(PartitionEntry(index, modulus) for index, modulus in places),
    )
