"""The databases' types for Spark's types; views are built, and the docs generated, from these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    IntervalType,
    MapType,
    StringType,
    StructType,
    TimeType,
)

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class TypeMapping:
    """A type in a database: its name, and functions from cells to the client's values and back.

    Cells are those of `plain_cells`. None in place of a function means that the value stays as it
    is. The functions are not called for nulls.
    """

    type: str
    encode: Convert | None = None
    decode: Convert | None = None


@dataclass(frozen=True)
class MappingRow:
    """A row of the table in the docs: a Spark type, its type in each database, and the meaning."""

    spark: str
    cql: str
    dynamodb: str
    meaning: str = ""


LEAVES = {
    leaf.spark: leaf
    for leaf in (
        MappingRow("boolean", "boolean", "BOOL"),
        MappingRow("byte", "tinyint", "N"),
        MappingRow("short", "smallint", "N"),
        MappingRow("int", "int", "N"),
        MappingRow("long", "bigint", "N"),
        MappingRow("float", "float", "N", "in DynamoDB S for what N cannot hold"),
        MappingRow("double", "double", "N", "in DynamoDB S for what N cannot hold"),
        MappingRow("decimal", "decimal", "N", "the same number; DynamoDB drops trailing zeros"),
        MappingRow("string", "text", "S", "also char, varchar and strings with a collation"),
        MappingRow("binary", "blob", "B"),
        MappingRow("date", "date", "S", "in DynamoDB as 2026-01-31"),
        MappingRow("timestamp", "bigint", "N", "microseconds since 1970-01-01 00:00 UTC"),
        MappingRow("timestamp_ntz", "bigint", "N", "microseconds since 1970-01-01 00:00"),
        MappingRow("time", "time", "N", "nanoseconds since midnight"),
        MappingRow("interval year to month", "int", "N", "months"),
        MappingRow("interval day to second", "bigint", "N", "microseconds"),
        MappingRow("interval", "frozen<tuple<int, int, bigint>>", "L", "months, days, nanoseconds"),
        MappingRow(
            "variant", "frozen<tuple<blob, blob>>", "L", "Spark's bytes of value and metadata"
        ),
        MappingRow("void", "text", "NULL", "always null"),
    )
}
NESTED = {
    leaf.spark: leaf
    for leaf in (
        MappingRow("array<T>", "frozen<list<T>>", "L"),
        MappingRow(
            "array<T>, with nulls", "frozen<list<frozen<tuple<T>>>>", "L",
            "Cassandra's lists hold no nulls, so each cell is wrapped in a tuple",
        ),
        MappingRow("map<string,V>", "frozen<map<text, V>>", "M", "with an empty key as map<K,V>"),
        MappingRow("map<K,V>", "frozen<map<K, V>>", "L", "in DynamoDB a list of [key, value]"),
        MappingRow(
            "map<K,V>, with nulls", "frozen<map<K, frozen<tuple<V>>>>", "M or L",
            "as in arrays",
        ),
        MappingRow(
            "struct<…>", "frozen<tuple<…>>", "M", "in Cassandra by position, in DynamoDB by name"
        ),
        MappingRow("struct<>", "boolean", "M", "in Cassandra true"),
    )
}  # fmt: skip


def leaf_of(kind: DataType) -> MappingRow:
    """The row of a type without parts."""
    if isinstance(kind, StringType):
        return LEAVES["string"]
    if isinstance(kind, DecimalType):
        return LEAVES["decimal"]
    if isinstance(kind, TimeType):
        return LEAVES["time"]
    if isinstance(kind, IntervalType):
        return LEAVES[f"interval {'year to month' if kind.year_month else 'day to second'}"]
    return LEAVES[str(kind)]


def is_leaf(kind: DataType) -> bool:
    """Whether a type has no parts."""
    return not isinstance(kind, ArrayType | MapType | StructType)


def is_atomic(kind: DataType, *names: str) -> bool:
    """Whether a type is one of some without parameters."""
    return isinstance(kind, AtomicType) and kind.name in names


def applied(convert: Convert | None, cells: list[Any]) -> list[Any]:
    """Apply a function to all cells except nulls."""
    if convert is None:
        return cells
    return [None if cell is None else convert(cell) for cell in cells]


def nullsafe(convert: Convert | None) -> Convert:
    """The function, extended to return None for None."""
    if convert is None:
        return lambda cell: cell
    return lambda cell: None if cell is None else convert(cell)
