"""Finds Spark's type for an Arrow type."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.types._datatypes import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    IntervalType,
    MapType,
    StringType,
    StructType,
    TimeType,
    invalid_schema,
)

_is = pa.types

_SIMPLE: list[tuple[Callable[[pa.DataType], bool], DataType]] = [
    (_is.is_boolean, AtomicType("boolean")),
    (_is.is_int8, AtomicType("byte")),
    (_is.is_int16, AtomicType("short")),
    (_is.is_int32, AtomicType("integer")),
    (_is.is_int64, AtomicType("long")),
    (_is.is_float32, AtomicType("float")),
    (_is.is_float64, AtomicType("double")),
    (_is.is_string, StringType()),
    (_is.is_large_string, StringType()),
    (_is.is_string_view, StringType()),
    (_is.is_binary, AtomicType("binary")),
    (_is.is_large_binary, AtomicType("binary")),
    (_is.is_binary_view, AtomicType("binary")),
    (_is.is_fixed_size_binary, AtomicType("binary")),
    (_is.is_date, AtomicType("date")),
    (_is.is_time, TimeType()),
    (_is.is_duration, IntervalType("day", "second")),
    (lambda t: t == pa.month_day_nano_interval(), AtomicType("interval")),
    (_is.is_null, AtomicType("void")),
]


def type_from_arrow(arrow: pa.DataType, column: str) -> DataType:
    """The Spark type that holds `arrow`'s values; units become Spark's own.

    Raises InvalidArgument naming `column` for types Spark has none for (unsigned, half floats…).
    """
    for holds, found in _SIMPLE:
        if holds(arrow):
            return found
    if _is.is_timestamp(arrow):
        return AtomicType("timestamp_ntz" if arrow.tz is None else "timestamp")
    if _is.is_decimal(arrow):
        return DecimalType(arrow.precision, arrow.scale)
    if _is.is_dictionary(arrow):
        return type_from_arrow(arrow.value_type, column)
    return _nested(arrow, column)


def _nested(arrow: pa.DataType, column: str) -> DataType:
    if _is.is_list(arrow) or _is.is_large_list(arrow) or _is.is_fixed_size_list(arrow):
        element = arrow.value_field
        return ArrayType(type_from_arrow(element.type, column), element.nullable)
    if _is.is_map(arrow):
        key = type_from_arrow(arrow.key_type, column)
        item = arrow.item_field
        return MapType(key, type_from_arrow(item.type, column), item.nullable)
    if _is.is_struct(arrow):
        fields = [arrow.field(i) for i in range(arrow.num_fields)]
        if _is_variant(fields):
            return AtomicType("variant")
        kinds = [Field(f.name, type_from_arrow(f.type, column), f.nullable) for f in fields]
        return StructType(tuple(kinds))
    raise invalid_schema(f"column '{column}': Spark has no type for Arrow's {arrow}")


def _is_variant(fields: list[pa.Field]) -> bool:
    tagged = any((f.metadata or {}).get(b"variant") == b"true" for f in fields)
    return tagged and {f.name for f in fields} == {"value", "metadata"}
