"""What the databases call Spark's types: the tables the views are made by, and the docs show."""

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
class Mapped:
    """A type in a database: its name there, and cells to what its client takes and back.

    Cells are those of `plain_cells`. None in place of a function stands for one that gives back
    what it gets. Functions get no nulls.
    """

    type: str
    encode: Convert | None = None
    decode: Convert | None = None


@dataclass(frozen=True)
class Leaf:
    """A row of the table in the docs: a Spark type, what it is in each database, and as what."""

    spark: str
    cql: str
    dynamodb: str
    meaning: str = ""


LEAVES = {
    leaf.spark: leaf
    for leaf in (
        Leaf("boolean", "boolean", "BOOL"),
        Leaf("byte", "tinyint", "N"),
        Leaf("short", "smallint", "N"),
        Leaf("int", "int", "N"),
        Leaf("long", "bigint", "N"),
        Leaf("float", "float", "N", "in DynamoDB S for what N cannot hold"),
        Leaf("double", "double", "N", "in DynamoDB S for what N cannot hold"),
        Leaf("decimal", "decimal", "N", "the same number; DynamoDB drops trailing zeros"),
        Leaf("string", "text", "S", "also char, varchar and strings with a collation"),
        Leaf("binary", "blob", "B"),
        Leaf("date", "date", "S", "in DynamoDB as 2026-01-31"),
        Leaf("timestamp", "bigint", "N", "microseconds since 1970-01-01 00:00 UTC"),
        Leaf("timestamp_ntz", "bigint", "N", "microseconds since 1970-01-01 00:00"),
        Leaf("time", "time", "N", "nanoseconds since midnight"),
        Leaf("interval year to month", "int", "N", "months"),
        Leaf("interval day to second", "bigint", "N", "microseconds"),
        Leaf("interval", "frozen<tuple<int, int, bigint>>", "L", "months, days, nanoseconds"),
        Leaf("variant", "frozen<tuple<blob, blob>>", "L", "Spark's bytes of value and metadata"),
        Leaf("void", "text", "NULL", "always null"),
    )
}
NESTED = {
    leaf.spark: leaf
    for leaf in (
        Leaf("array<T>", "frozen<list<T>>", "L"),
        Leaf(
            "array<T>, with nulls", "frozen<list<frozen<tuple<T>>>>", "L",
            "Cassandra's lists hold no null, so each cell is in a tuple of its own",
        ),
        Leaf("map<string,V>", "frozen<map<text, V>>", "M", "with an empty key as map<K,V>"),
        Leaf("map<K,V>", "frozen<map<K, V>>", "L", "in DynamoDB a list of [key, value]"),
        Leaf(
            "map<K,V>, with nulls", "frozen<map<K, frozen<tuple<V>>>>", "M or L",
            "as in arrays",
        ),
        Leaf("struct<…>", "frozen<tuple<…>>", "M", "in Cassandra by position, in DynamoDB by name"),
        Leaf("struct<>", "boolean", "M", "in Cassandra true"),
    )
}  # fmt: skip


def leaf_of(kind: DataType) -> Leaf:
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
    """A function applied to all cells but nulls."""
    if convert is None:
        return cells
    return [None if cell is None else convert(cell) for cell in cells]


def nullsafe(convert: Convert | None) -> Convert:
    """The function with None for None."""
    if convert is None:
        return lambda cell: cell
    return lambda cell: None if cell is None else convert(cell)
