"""Schemas of keys and values, and the ways to write one down."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast.reserved import RESERVED_PREFIXES
from holdfast.types._arrow import type_from_arrow
from holdfast.types._datatypes import (
    BINARY_COLLATION,
    COLLATIONS_KEY,
    ArrayType,
    AtomicType,
    DataType,
    Field,
    MapType,
    StringType,
    StructType,
    invalid_schema,
)
from holdfast.types._ddl import normal_collation, parse_ddl, parse_type


@dataclass(frozen=True)
class Schema:
    """The columns of a key or a value: immutable, hashable, equal by names, types and nullability.

    Made by `parse_schema`. Names are case-sensitive and differ from each other; those the store
    uses itself (`RESERVED_PREFIXES`) are refused.
    """

    struct: StructType

    def __post_init__(self) -> None:
        for name in self.names:
            if name.startswith(RESERVED_PREFIXES):
                raise invalid_schema(f"column name {name!r} is reserved for the store itself")

    @property
    def fields(self) -> tuple[Field, ...]:
        """The columns in order, each with `name`, `type` and `nullable`."""
        return self.struct.fields

    @property
    def names(self) -> tuple[str, ...]:
        """Column names in order."""
        return self.struct.names

    def __len__(self) -> int:
        return len(self.struct.fields)

    def __iter__(self) -> Iterator[Field]:
        return iter(self.struct.fields)

    def __str__(self) -> str:
        return self.ddl()

    def __repr__(self) -> str:
        return f"Schema({self.ddl()!r})"

    @cached_property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of a batch of these columns, with the types PySpark gives them."""
        return pa.schema([f.arrow for f in self.fields])

    def json(self) -> dict[str, Any]:
        """Spark's StructType JSON, metadata included; `parse_schema` and Spark both read it."""
        return self.struct.json()

    def ddl(self) -> str:
        """DDL text that `parse_schema` and Spark read back to an equal schema.

        DDL has no words for elements that cannot be null inside arrays and maps; only `json`
        keeps those.
        """
        return ", ".join(str(f) for f in self.fields)

    @cached_property
    def _fingerprint(self) -> str:
        text = json.dumps(_without_notes(self.json()), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def fingerprint(self) -> str:
        """32 hex digits, the same for equal schemas in every process and release.

        Comments and watermark delays do not change it; names, types, collations and nullability do.
        """
        return self._fingerprint

    def describe_difference(self, other: Schema) -> str:
        """What differs, column by column, in words; empty when the schemas are equal."""
        mine = {f.name: f for f in self.fields}
        theirs = {f.name: f for f in other.fields}
        parts = [f"column {quote_name(n)} is only here" for n in self.names if n not in theirs]
        parts += [f"column {quote_name(n)} is only there" for n in other.names if n not in mine]
        for name in self.names:
            if name in theirs and mine[name] != theirs[name]:
                parts.append(_field_difference(mine[name], theirs[name]))
        if not parts and self.names != other.names:
            order = ", ".join(self.names), ", ".join(other.names)
            parts.append(f"the columns are ordered {order[0]} here and {order[1]} there")
        return "; ".join(parts)

    def check_key(self) -> None:
        """Raises InvalidArgument naming the first column that cannot be part of a key.

        Maps and variants have no equality in Spark, void has no values, and a collation other
        than UTF8_BINARY makes strings equal that Spark's partitioning hash tells apart.
        """
        for column in self.fields:
            for kind in column.type.walk():
                if reason := _not_a_key(kind):
                    raise invalid_schema(
                        f"column {quote_name(column.name)} cannot be a key: {reason}"
                    )

    def check_value(self) -> None:
        """Raises InvalidArgument naming the first column that cannot be part of a value."""
        for column in self.fields:
            for kind in column.type.walk():
                if isinstance(kind, MapType) and _has_map(kind.key):
                    raise invalid_schema(
                        f"column {quote_name(column.name)} cannot be a value: "
                        "a map's key holds a map"
                    )


def parse_schema(schema: object) -> Schema:
    """A Schema from any usual way to write one.

    Accepts a Spark DDL string, a PySpark StructType (anything with `jsonValue()`), the JSON Spark
    writes for it (text or dict), a `pyarrow.Schema`, or a Schema. Raises InvalidArgument
    (STATE_STORE_INVALID_SCHEMA) for everything else.
    """
    if isinstance(schema, Schema):
        return schema
    if isinstance(schema, pa.Schema):
        return Schema(StructType(tuple(_arrow_field(f) for f in schema)))
    if isinstance(schema, str):
        return Schema(_from_text(schema))
    found = schema.jsonValue() if hasattr(schema, "jsonValue") else schema
    if isinstance(found, Mapping):
        return Schema(_from_json_schema(found))
    raise invalid_schema(
        f"a schema is DDL text, a StructType, its JSON or a pyarrow.Schema, not {_kind(schema)}"
    )


def quote_name(name: str) -> str:
    """A column's name as messages show it."""
    return f"'{name}'"


def _kind(thing: object) -> str:
    return type(thing).__name__


# -- reading -------------------------------------------------------------------------------------


def _from_text(text: str) -> StructType:
    if not text.lstrip().startswith("{"):
        return parse_ddl(text)
    try:
        found = json.loads(text)
    except ValueError as error:
        raise invalid_schema(f"cannot read the schema as JSON: {error}") from None
    return _from_json_schema(found)


def _from_json_schema(value: Mapping[str, Any]) -> StructType:
    try:
        found = _type_from_json(value, "", {})
    except (KeyError, TypeError, AttributeError) as error:
        raise invalid_schema(f"the JSON is not a Spark schema: {error!r}") from None
    if not isinstance(found, StructType):
        raise invalid_schema(f"a schema is a struct, not {found}")
    return found


def _type_from_json(value: Any, path: str, collations: Mapping[str, str]) -> DataType:
    if isinstance(value, str):
        return _simple_from_json(value, collations.get(path))
    kind = value["type"]
    if kind == "array":
        element = _type_from_json(value["elementType"], f"{path}.element", collations)
        return ArrayType(element, value["containsNull"])
    if kind == "map":
        key = _type_from_json(value["keyType"], f"{path}.key", collations)
        item = _type_from_json(value["valueType"], f"{path}.value", collations)
        return MapType(key, item, value["valueContainsNull"])
    if kind == "struct":
        return StructType(tuple(_field_from_json(f) for f in value["fields"]))
    raise invalid_schema(f"{kind!r} is not a Spark type that Holdfast can store")


def _simple_from_json(name: str, collation: str | None) -> DataType:
    if collation is not None:
        return StringType(normal_collation(collation.split(".", 1)[-1]))
    return AtomicType("void") if name == "null" else parse_type(name)


def _field_from_json(value: Mapping[str, Any]) -> Field:
    metadata = dict(value.get("metadata") or {})
    collations = metadata.pop(COLLATIONS_KEY, {})
    name = value["name"]
    kind = _type_from_json(value["type"], name, collations)
    return Field(name, kind, value.get("nullable", True), json.dumps(metadata, sort_keys=True))


def _arrow_field(field: pa.Field) -> Field:
    return Field(field.name, type_from_arrow(field.type, field.name), field.nullable)


# -- comparing -----------------------------------------------------------------------------------


def _without_notes(value: Any) -> Any:
    """The JSON without metadata other than collations."""
    if isinstance(value, list):
        return [_without_notes(v) for v in value]
    if not isinstance(value, dict):
        return value
    found = {k: _without_notes(v) for k, v in value.items() if k != "metadata"}
    if collations := value.get("metadata", {}).get(COLLATIONS_KEY):
        found["collations"] = collations
    return found


def _field_difference(mine: Field, theirs: Field) -> str:
    here, there = str(mine.type), str(theirs.type)
    if here == there and mine.type == theirs.type:
        here, there = _nullability(mine.nullable), _nullability(theirs.nullable)
    elif here == there:
        here, there = json.dumps(mine.type.json()), json.dumps(theirs.type.json())
    return f"column {quote_name(mine.name)} is {here} here and {there} there"


def _nullability(nullable: bool) -> str:
    return "nullable" if nullable else "not null"


def _not_a_key(kind: DataType) -> str:
    if isinstance(kind, MapType):
        return "maps have no order and no hash"
    if isinstance(kind, StringType) and kind.collation != BINARY_COLLATION:
        return f"collation {kind.collation} (only {BINARY_COLLATION} strings can be keys)"
    if isinstance(kind, AtomicType) and kind.name in ("variant", "void"):
        return f"{kind} cannot be compared"
    return ""


def _has_map(kind: DataType) -> bool:
    return any(isinstance(k, MapType) for k in kind.walk())
