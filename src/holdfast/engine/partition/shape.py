"""What follows from a store's schemas, and which schemas a store can have."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from holdfast.engine.files.manifest import StoreEntry
from holdfast.engine.files.segment import Layout
from holdfast.engine.hashing.spark_hash import KeyHasher
from holdfast.errors import InvalidArgument
from holdfast.types import RowCodec, Schema, parse_schema


@dataclass(frozen=True)
class StoreShape:
    """What follows from a store's schemas: codecs, hasher and columns."""

    key_schema: Schema
    value_schema: Schema
    key_index: int | None
    prefix: int
    keys: RowCodec
    values: RowCodec
    hasher: KeyHasher
    layout: Layout

    @classmethod
    def of(
        cls, key_schema: Schema, value_schema: Schema, key_index: int | None, prefix: int
    ) -> StoreShape:
        """The shape of a store with these schemas."""
        return cls(
            key_schema,
            value_schema,
            key_index,
            prefix,
            RowCodec(key_schema),
            RowCodec(value_schema),
            KeyHasher(key_schema, prefix or len(key_schema)),
            Layout(key_schema.arrow, value_schema.arrow, key_index),
        )

    @cached_property
    def prefix_shape(self) -> StoreShape:
        """The shape of a store with the prefix alone as its key. Requires: there is one."""
        fields = self.key_schema.json()["fields"][: self.prefix]
        prefix = parse_schema({"type": "struct", "fields": fields})
        return StoreShape.of(prefix, self.value_schema, None, 0)

    @classmethod
    def of_entry(cls, store: StoreEntry) -> StoreShape:
        """The shape a manifest describes."""
        return cls.of(store.key_schema, store.value_schema, store.key_index, store.prefix)


def check_shape(
    key_schema: Schema, value_schema: Schema, key_index: int | None, prefix: int
) -> None:
    """Raise InvalidArgument for schemas and ordinals that a store cannot have."""
    key_schema.check_key()
    value_schema.check_value()
    if len(key_schema) == 0:
        raise InvalidArgument("A key needs at least one column.")
    if shared := sorted(set(key_schema.names) & set(value_schema.names)):
        raise InvalidArgument(
            f"The column {shared[0]!r} is in the key and in the value. Rename one of them.",
            condition="STATE_STORE_INVALID_SCHEMA",
        )
    if key_index is not None and not 0 <= key_index < len(key_schema):
        raise InvalidArgument(
            f"key_index_ordinal {key_index} is not a column of a key with {len(key_schema)}. "
            "Columns count from 0."
        )
    if not 0 <= prefix <= len(key_schema):
        raise InvalidArgument(
            f"num_cols_prefix_key {prefix} is not within the key's {len(key_schema)} columns."
        )


def check_same_store(stored: StoreEntry, shape: StoreShape, what: str) -> None:
    """Raise InvalidArgument for a shape that is not the stored one's; `what` names the store."""
    pairs = [
        ("key", stored.key_schema, shape.key_schema),
        ("value", stored.value_schema, shape.value_schema),
    ]
    for name, old, new in pairs:
        if old != new:
            raise InvalidArgument(
                f"The {name} schema of {what} differs from the stored one: "
                f"{old.describe_difference(new)}. Stored: {old.ddl()}.",
                condition="STATE_STORE_SCHEMA_MISMATCH",
            )
    if (stored.key_index, stored.prefix) != (shape.key_index, shape.prefix):
        raise InvalidArgument(
            f"{what} is stored with key_index_ordinal={stored.key_index} and num_cols_prefix_key="
            f"{stored.prefix}, not {shape.key_index} and {shape.prefix}.",
            condition="STATE_STORE_SCHEMA_MISMATCH",
        )
