"""Spark SQL's data types, without Spark: how each is written in DDL, JSON and Arrow.

Types are immutable and hashable. Two types are equal when Spark stores their values in the same
way; comments and other field metadata take no part in equality.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from holdfast import errors

BINARY_COLLATION = "UTF8_BINARY"
COLLATIONS_KEY = "__COLLATIONS"
MILLISECONDS = "milliseconds since 1970"
"""The meaning of a column of whole numbers that are times."""
LIST_POSITION = "list position"
"""The meaning of the column that keeps a list in order; its numbers ascend, with gaps."""
_MEANING = "holdfast"

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_YEAR_MONTH = ("year", "month")
_DAY_TIME = ("day", "hour", "minute", "second")

# JSON name -> (DDL name, Arrow type)
_ATOMIC: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("boolean", pa.bool_()),
    "byte": ("byte", pa.int8()),
    "short": ("short", pa.int16()),
    "integer": ("int", pa.int32()),
    "long": ("long", pa.int64()),
    "float": ("float", pa.float32()),
    "double": ("double", pa.float64()),
    "binary": ("binary", pa.binary()),
    "date": ("date", pa.date32()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestamp_ntz": ("timestamp_ntz", pa.timestamp("us")),
    "interval": ("interval", pa.month_day_nano_interval()),
    "void": ("void", pa.null()),
    "variant": (
        "variant",
        pa.struct(
            [
                pa.field("value", pa.binary(), nullable=False),
                pa.field("metadata", pa.binary(), nullable=False, metadata={"variant": "true"}),
            ]
        ),
    ),
}


def invalid_schema(message: str) -> errors.InvalidArgument:
    """The error for every invalid schema."""
    return errors.InvalidArgument(message, condition="STATE_STORE_INVALID_SCHEMA")


def quote(name: str) -> str:
    """`name` as written in DDL, in backquotes where necessary."""
    return name if _PLAIN_NAME.match(name) else "`" + name.replace("`", "``") + "`"


class DataType:
    """One Spark SQL type; `str(t)` is its DDL text."""

    __slots__ = ()

    def __str__(self) -> str:
        raise NotImplementedError

    def json(self) -> Any:
        """What Spark's `DataType.jsonValue()` gives for this type."""
        return str(self)

    @property
    def arrow(self) -> pa.DataType:
        """The Arrow type columns of this type have in every segment and batch."""
        raise NotImplementedError

    def children(self) -> tuple[DataType, ...]:
        """The types directly inside this one."""
        return ()

    def walk(self) -> Iterator[DataType]:
        """This type and every type inside it."""
        yield self
        for child in self.children():
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class AtomicType(DataType):
    """A type without parameters, by its JSON name: `AtomicType("long")`."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in _ATOMIC:
            raise invalid_schema(f"{self.name!r} is not a Spark type that Holdfast can store")

    def __str__(self) -> str:
        return _ATOMIC[self.name][0]

    def json(self) -> str:
        return self.name

    @property
    def arrow(self) -> pa.DataType:
        return _ATOMIC[self.name][1]


@dataclass(frozen=True, slots=True)
class StringType(DataType):
    """string, string collate X, char(n) or varchar(n)."""

    collation: str = BINARY_COLLATION
    kind: str = "string"
    length: int = 0

    def __post_init__(self) -> None:
        if self.kind != "string" and self.collation != BINARY_COLLATION:
            raise invalid_schema(f"{self.kind} takes no collation; use string collate")

    def __str__(self) -> str:
        if self.kind != "string":
            return f"{self.kind}({self.length})"
        return (
            "string" if self.collation == BINARY_COLLATION else f"string collate {self.collation}"
        )

    def json(self) -> str:
        return "string" if self.kind == "string" else str(self)

    @property
    def arrow(self) -> pa.DataType:
        return pa.string()


@dataclass(frozen=True, slots=True)
class DecimalType(DataType):
    """decimal(p, s) with 1 <= p <= 38 and 0 <= s <= p."""

    precision: int = 10
    scale: int = 0

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
            raise invalid_schema(f"{self}: precision is 1 to 38, scale 0 to the precision")

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"

    @property
    def arrow(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)


@dataclass(frozen=True, slots=True)
class TimeType(DataType):
    """time(p). Arrow holds nanoseconds at every precision, as Spark's does."""

    precision: int = 6

    def __post_init__(self) -> None:
        if not 0 <= self.precision <= 9:
            raise invalid_schema(f"{self}: precision is 0 to 9")

    def __str__(self) -> str:
        return f"time({self.precision})"

    @property
    def arrow(self) -> pa.DataType:
        return pa.time64("ns")


@dataclass(frozen=True, slots=True)
class IntervalType(DataType):
    """interval year [to month], or interval day [to second] with any fields between.

    Year-month intervals are months in an int32 column (Arrow in Python has no month interval),
    day-time intervals are durations in microseconds.
    """

    start: str
    end: str

    def __post_init__(self) -> None:
        units = _YEAR_MONTH if self.start in _YEAR_MONTH else _DAY_TIME
        fits = self.start in units and self.end in units
        if not fits or units.index(self.start) > units.index(self.end):
            raise invalid_schema(f"interval {self.start} to {self.end} is not a Spark type")

    def __str__(self) -> str:
        to = "" if self.start == self.end else f" to {self.end}"
        return f"interval {self.start}{to}"

    @property
    def year_month(self) -> bool:
        """True for months in an int32, False for microseconds."""
        return self.start in _YEAR_MONTH

    @property
    def arrow(self) -> pa.DataType:
        return pa.int32() if self.year_month else pa.duration("us")


@dataclass(frozen=True, slots=True)
class ArrayType(DataType):
    """array<element>."""

    element: DataType
    contains_null: bool = True

    def __str__(self) -> str:
        return f"array<{self.element}>"

    def json(self) -> dict[str, Any]:
        return {
            "type": "array",
            "elementType": self.element.json(),
            "containsNull": self.contains_null,
        }

    @property
    def arrow(self) -> pa.DataType:
        return pa.list_(_arrow_field("element", self.element, self.contains_null))

    def children(self) -> tuple[DataType, ...]:
        return (self.element,)


@dataclass(frozen=True, slots=True)
class MapType(DataType):
    """map<key, value>."""

    key: DataType
    value: DataType
    value_contains_null: bool = True

    def __post_init__(self) -> None:
        if self.key == AtomicType("void"):
            raise invalid_schema(f"{self}: a map's key is never null, so it cannot be void")

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"

    def json(self) -> dict[str, Any]:
        return {
            "type": "map",
            "keyType": self.key.json(),
            "valueType": self.value.json(),
            "valueContainsNull": self.value_contains_null,
        }

    @property
    def arrow(self) -> pa.DataType:
        return pa.map_(
            _arrow_field("key", self.key, False),
            _arrow_field("value", self.value, self.value_contains_null),
        )

    def children(self) -> tuple[DataType, ...]:
        return (self.key, self.value)


@dataclass(frozen=True, slots=True)
class Field:
    """A named column, or a named part of a struct.

    `metadata` (JSON text: a comment, a watermark delay) is kept so that Spark gets it back from
    `json()`. It takes no part in equality. Collations are part of the type, not of the metadata.
    """

    name: str
    type: DataType
    nullable: bool = True
    metadata: str = field(default="{}", compare=False)

    @property
    def meaning(self) -> str | None:
        """What Holdfast says of the column beyond its type, such as MILLISECONDS."""
        found: str | None = json.loads(self.metadata).get(_MEANING)
        return found

    def meaning_that(self, meaning: str) -> Field:
        """The same field with a meaning, which takes no part in equality either."""
        return replace(self, metadata=json.dumps({**json.loads(self.metadata), _MEANING: meaning}))

    def __str__(self) -> str:
        return self.ddl(" ")

    def ddl(self, separator: str) -> str:
        """The field's DDL text: name, separator, type, NOT NULL and comment where they apply."""
        comment = json.loads(self.metadata).get("comment")
        note = "" if comment is None else f" COMMENT {_literal(str(comment))}"
        return (
            f"{quote(self.name)}{separator}{self.type}{'' if self.nullable else ' NOT NULL'}{note}"
        )

    def json(self) -> dict[str, Any]:
        """What Spark's `StructField.jsonValue()` gives."""
        metadata = json.loads(self.metadata)
        if collations := dict(_collations(self.name, self.type)):
            metadata[COLLATIONS_KEY] = collations
        return {
            "name": self.name,
            "type": self.type.json(),
            "nullable": self.nullable,
            "metadata": metadata,
        }

    @property
    def arrow(self) -> pa.Field:
        """The field in Arrow; without metadata, so that a comment never changes a file."""
        return _arrow_field(self.name, self.type, self.nullable)


@dataclass(frozen=True)
class StructType(DataType):
    """struct<…>; field names differ from each other, by case if nothing else."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for name in self.names:
            if name in seen:
                raise invalid_schema(f"two columns have the name {name!r}")
            seen.add(name)

    def __str__(self) -> str:
        return f"struct<{','.join(f.ddl(':') for f in self.fields)}>"

    def json(self) -> dict[str, Any]:
        return {"type": "struct", "fields": [f.json() for f in self.fields]}

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Field names in order."""
        return tuple(f.name for f in self.fields)

    @property
    def arrow(self) -> pa.DataType:
        return pa.struct([f.arrow for f in self.fields])

    def children(self) -> tuple[DataType, ...]:
        return tuple(f.type for f in self.fields)


def _arrow_field(name: str, kind: DataType, nullable: bool) -> pa.Field:
    arrow = kind.arrow
    # Spark calls the elements of array() void and never null; Arrow has no such thing.
    return pa.field(name, arrow, nullable=nullable or pa.types.is_null(arrow))


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _collations(path: str, kind: DataType) -> Iterator[tuple[str, str]]:
    """Paths of collated strings under one field, down to but not into nested structs."""
    if isinstance(kind, StringType) and kind.collation != BINARY_COLLATION:
        provider = "spark" if kind.collation.startswith("UTF8_") else "icu"
        yield path, f"{provider}.{kind.collation}"
    elif isinstance(kind, ArrayType):
        yield from _collations(f"{path}.element", kind.element)
    elif isinstance(kind, MapType):
        yield from _collations(f"{path}.key", kind.key)
        yield from _collations(f"{path}.value", kind.value)
