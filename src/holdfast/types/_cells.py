"""Single cells: checks whether one is canonical, makes it so, and makes it a dictionary key.

The canonical form of a cell is exactly what reading it back from Arrow gives.
"""

from __future__ import annotations

import math
import numbers
import operator
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from holdfast.types._datatypes import (
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
from holdfast.types._moments import is_far

CellCheck = Callable[[Any], bool]
CellConverter = Callable[[Any], Any]

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_FLOAT = struct.Struct("<f")
_LONG_MIN, _LONG_MAX = -(2**63), 2**63 - 1
_LOWEST, _HIGHEST = timedelta(microseconds=_LONG_MIN), timedelta(microseconds=_LONG_MAX)
_OUT_OF_RANGE = "the number is out of range"


class BadCell(Exception):
    """Says why a cell does not fit, and never shows its value."""


def is_canonical(kind: DataType, nullable: bool) -> CellCheck:
    """A quick test. It may reject a good cell, but accepts none that `canonical` would change."""
    exact = _exact(kind)
    if exact is None:
        return _is_none if nullable else _never
    if kind == AtomicType("long"):
        return _is_nullable_long if nullable else _is_long
    return (lambda cell: cell is None or exact(cell)) if nullable else exact


def canonical(kind: DataType, nullable: bool) -> CellConverter:
    """A function from any accepted form of a cell to its canonical form; raises BadCell.

    Mutable cells are copied at every level.
    """
    convert, exact = _converter(kind), _exact(kind) or _never

    def checked(cell: Any) -> Any:
        if exact(cell):
            return cell
        if cell is None:
            if not nullable:
                raise BadCell("null where the schema has none")
            return None
        return convert(cell)

    return checked


def freezer(kind: DataType) -> CellConverter | None:
    """A function from a canonical cell to its hashable form, or None where they are the same."""
    if isinstance(kind, AtomicType):
        return _one_nan if kind.name in ("float", "double") else None
    if isinstance(kind, ArrayType):
        return _freeze_array(freezer(kind.element))
    if isinstance(kind, MapType):
        return _freeze_map(freezer(kind.value))
    if isinstance(kind, StructType):
        parts = [freezer(f.type) for f in kind.fields]
        return _freeze_struct(parts) if any(parts) else None
    return None


# -- quick tests ---------------------------------------------------------------------------------


def _exact(kind: DataType) -> CellCheck | None:
    if isinstance(kind, StringType):
        return _is_text if kind.kind == "string" else None
    if isinstance(kind, DecimalType):
        return _is_decimal(kind)
    if isinstance(kind, IntervalType):
        return _is_int(32) if kind.year_month else _is_duration
    if not isinstance(kind, AtomicType):
        return None
    if kind.name in _BITS:
        return _is_long if kind.name == "long" else _is_int(_BITS[kind.name])
    return _EXACT.get(kind.name)


def _never(cell: Any) -> bool:
    return False


def _is_none(cell: Any) -> bool:
    return cell is None


def _is_long(cell: Any) -> bool:
    return type(cell) is int and _LONG_MIN <= cell <= _LONG_MAX


def _is_nullable_long(cell: Any) -> bool:
    # Inlined: long columns are the most common, and saving a call saves a quarter of the time.
    return (type(cell) is int and _LONG_MIN <= cell <= _LONG_MAX) or cell is None


def _is_int(bits: int) -> CellCheck:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return lambda cell: type(cell) is int and low <= cell <= high


def _is_float(cell: Any) -> bool:
    try:
        return type(cell) is float and _FLOAT.unpack(_FLOAT.pack(cell))[0] == cell
    except OverflowError:
        return False


def _is_duration(cell: Any) -> bool:
    return type(cell) is timedelta and _LOWEST <= cell <= _HIGHEST


def _is_decimal(kind: DecimalType) -> CellCheck:
    unit, limit = _unit_and_limit(kind)

    def check(cell: Any) -> bool:
        fits = type(cell) is Decimal and cell.same_quantum(unit) and -limit < cell < limit
        return fits and bool(cell or not cell.is_signed())

    return check


def _unit_and_limit(kind: DecimalType) -> tuple[Decimal, Decimal]:
    return Decimal(1).scaleb(-kind.scale), Decimal(10) ** (kind.precision - kind.scale)


def _is_text(cell: Any) -> bool:
    return type(cell) is str and (cell.isascii() or _encodes(cell))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


_EXACT: dict[str, CellCheck] = {
    "boolean": lambda cell: type(cell) is bool,
    "float": _is_float,
    "double": lambda cell: type(cell) is float,
    "binary": lambda cell: type(cell) is bytes,
    "date": lambda cell: type(cell) is date,
    "timestamp": lambda cell: type(cell) is datetime and cell.tzinfo is UTC and not cell.fold,
    "timestamp_ntz": lambda cell: type(cell) is datetime and cell.tzinfo is None and not cell.fold,
}


# -- conversion ----------------------------------------------------------------------------------


def _converter(kind: DataType) -> CellConverter:
    if isinstance(kind, AtomicType):
        if kind.name in _BITS:
            return _to_int(_BITS[kind.name], kind)
        return _CONVERT[kind.name]
    if isinstance(kind, StringType):
        return _to_text if kind.kind == "string" else _to_sized_text(kind)
    if isinstance(kind, DecimalType):
        return _to_decimal(kind)
    if isinstance(kind, TimeType):
        return _to_time
    if isinstance(kind, IntervalType):
        return _to_int(32, kind) if kind.year_month else _to_duration
    return _nested_converter(kind)


def _nested_converter(kind: DataType) -> CellConverter:
    if isinstance(kind, ArrayType):
        return _to_array(canonical(kind.element, kind.contains_null), kind)
    if isinstance(kind, MapType):
        freeze = freezer(kind.key) or _same
        return _to_map(
            canonical(kind.key, False), freeze, canonical(kind.value, kind.value_contains_null)
        )
    assert isinstance(kind, StructType)
    parts = [canonical(f.type, f.nullable) for f in kind.fields]
    return _to_struct(kind.names, parts, kind)


def _same(cell: Any) -> Any:
    return cell


def _wrong_type(kind: object, cell: Any) -> BadCell:
    return BadCell(f"takes {kind}, not {type(cell).__name__}")


def _to_bool(cell: Any) -> bool:
    if isinstance(cell, bool) or type(cell).__name__ in ("bool", "bool_"):
        return bool(cell)
    raise _wrong_type("boolean", cell)


def _to_int(bits: int, kind: DataType) -> CellConverter:
    low, high = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def convert(cell: Any) -> int:
        if isinstance(cell, bool) or not isinstance(cell, numbers.Integral):
            raise _wrong_type(kind, cell)
        number = operator.index(cell)
        if not low <= number <= high:
            raise BadCell(f"takes {kind}: {_OUT_OF_RANGE}")
        return number

    return convert


def _to_double(cell: Any) -> float:
    if isinstance(cell, bool) or not isinstance(cell, numbers.Real):
        raise _wrong_type("double", cell)
    try:
        number = float(cell)
    except OverflowError:
        raise BadCell(f"takes double: {_OUT_OF_RANGE}") from None
    if isinstance(cell, numbers.Integral) and int(number) != cell:
        raise BadCell("takes double, which cannot hold this integer exactly")
    return number


def _to_float(cell: Any) -> float:
    number = _to_double(cell)
    try:
        rounded: float = _FLOAT.unpack(_FLOAT.pack(number))[0]
    except OverflowError:
        raise BadCell(f"takes float: {_OUT_OF_RANGE}") from None
    return rounded


def _to_text(cell: Any) -> str:
    if not isinstance(cell, str):
        raise _wrong_type("string", cell)
    if not _encodes(cell):
        raise BadCell("takes string: the text has lone surrogates, which UTF-8 cannot hold")
    return str.__str__(cell)


def _to_sized_text(kind: StringType) -> CellConverter:
    def convert(cell: Any) -> str:
        text = _to_text(cell)
        if len(text) > kind.length:
            raise BadCell(f"takes {kind}: the text is longer")
        return text

    return convert


def _to_bytes(cell: Any) -> bytes:
    if not isinstance(cell, (bytes, bytearray, memoryview)):
        raise _wrong_type("binary", cell)
    return bytes(cell)


def _to_date(cell: Any) -> Any:
    if is_far(cell, "D"):
        return cell
    if not isinstance(cell, date) or isinstance(cell, datetime):
        raise _wrong_type("date", cell)
    return date(cell.year, cell.month, cell.day)


def _plain_datetime(cell: Any, kind: str) -> datetime:
    if not isinstance(cell, datetime):
        raise _wrong_type(kind, cell)
    if getattr(cell, "nanosecond", 0):
        raise BadCell(f"takes {kind}, which holds microseconds: nanoseconds would be lost")
    return cell


def _to_timestamp(cell: Any) -> Any:
    if is_far(cell, "us"):
        return cell
    moment = _plain_datetime(cell, "timestamp")
    if moment.tzinfo is None:
        raise BadCell("takes timestamp: the datetime has no time zone; give it one")
    try:
        return _without_fold(moment.astimezone(UTC)).replace(tzinfo=UTC)
    except OverflowError:
        raise BadCell("takes timestamp: in UTC the year is out of range") from None


def _to_timestamp_ntz(cell: Any) -> Any:
    if is_far(cell, "us"):
        return cell
    moment = _plain_datetime(cell, "timestamp_ntz")
    if moment.tzinfo is not None:
        raise BadCell("takes timestamp_ntz: the datetime has a time zone")
    return _without_fold(moment)


def _without_fold(moment: datetime) -> datetime:
    day = (moment.year, moment.month, moment.day)
    return datetime(*day, moment.hour, moment.minute, moment.second, moment.microsecond)


def _to_time(cell: Any) -> time:
    if not isinstance(cell, time) or cell.tzinfo is not None:
        raise _wrong_type("time without a zone", cell)
    return time(cell.hour, cell.minute, cell.second, cell.microsecond)


def _to_duration(cell: Any) -> timedelta:
    if not isinstance(cell, timedelta):
        raise _wrong_type("a day-time interval", cell)
    if getattr(cell, "nanoseconds", 0):
        raise BadCell("takes a day-time interval in microseconds: nanoseconds would be lost")
    if not _LOWEST <= cell <= _HIGHEST:
        raise BadCell("takes a day-time interval: it is out of range")
    return timedelta(cell.days, cell.seconds, cell.microseconds)


def _to_calendar_interval(cell: Any) -> pa.MonthDayNano:
    if not isinstance(cell, tuple) or len(cell) != 3:
        raise _wrong_type("interval as (months, days, nanoseconds)", cell)
    months, days = (_to_int(32, AtomicType("integer"))(part) for part in cell[:2])
    nanoseconds = _to_int(64, AtomicType("long"))(cell[2])
    if nanoseconds % 1000:
        raise BadCell("takes interval, which holds microseconds: nanoseconds would be lost")
    return pa.MonthDayNano((months, days, nanoseconds))


def _to_void(cell: Any) -> None:
    raise _wrong_type("only null", cell)


def _to_variant(cell: Any) -> tuple[bytes, bytes]:
    if isinstance(cell, Mapping) and set(cell) == {"value", "metadata"}:
        cell = (cell["value"], cell["metadata"])
    elif hasattr(cell, "value") and hasattr(cell, "metadata"):
        cell = (cell.value, cell.metadata)
    if not isinstance(cell, (tuple, list)) or len(cell) != 2:
        raise _wrong_type("variant as (value, metadata)", cell)
    return _to_bytes(cell[0]), _to_bytes(cell[1])


def _to_decimal(kind: DecimalType) -> CellConverter:
    # Like Spark: digits beyond the scale are rounded half up; too many before it are an error.
    context = Context(prec=kind.precision + 1, rounding=ROUND_HALF_UP)
    unit, limit = _unit_and_limit(kind)

    def convert(cell: Any) -> Decimal:
        if not isinstance(cell, bool) and isinstance(cell, numbers.Integral):
            cell = Decimal(operator.index(cell))
        if not isinstance(cell, Decimal):
            raise _wrong_type(kind, cell)
        try:
            number = cell.quantize(unit, context=context)
        except InvalidOperation:
            raise BadCell(f"takes {kind}: {_OUT_OF_RANGE}") from None
        if number.is_nan() or abs(number) >= limit:
            raise BadCell(f"takes {kind}: {_OUT_OF_RANGE}")
        return number if number else number.copy_abs()

    return convert


_CONVERT: dict[str, CellConverter] = {
    "boolean": _to_bool,
    "float": _to_float,
    "double": _to_double,
    "binary": _to_bytes,
    "date": _to_date,
    "timestamp": _to_timestamp,
    "timestamp_ntz": _to_timestamp_ntz,
    "interval": _to_calendar_interval,
    "void": _to_void,
    "variant": _to_variant,
}


# -- nested cells --------------------------------------------------------------------------------


def _to_array(convert: CellConverter, kind: DataType) -> CellConverter:
    def convert_all(cell: Any) -> list[Any]:
        if isinstance(cell, (list, tuple)):
            return [convert(item) for item in cell]
        if hasattr(cell, "tolist"):
            return [convert(item) for item in cell.tolist()]
        raise _wrong_type(kind, cell)

    return convert_all


def _to_map(key: CellConverter, freeze: CellConverter, value: CellConverter) -> CellConverter:
    def convert(cell: Any) -> dict[Any, Any]:
        if not isinstance(cell, Mapping):
            raise _wrong_type("map", cell)
        return {freeze(key(k)): value(v) for k, v in cell.items()}

    return convert


def _to_struct(names: tuple[str, ...], parts: list[CellConverter], kind: DataType) -> CellConverter:
    def convert(cell: Any) -> tuple[Any, ...]:
        if not isinstance(cell, (tuple, list)):
            if not isinstance(cell, Mapping):
                raise _wrong_type(kind, cell)
            if set(cell) != set(names):
                raise BadCell(f"takes {kind}: the field names differ")
            cell = [cell[name] for name in names]
        if len(cell) != len(parts):
            raise BadCell(f"takes {kind}: {len(cell)} fields where it has {len(parts)}")
        return tuple([part(item) for part, item in zip(parts, cell, strict=True)])

    return convert


# -- dictionary keys -----------------------------------------------------------------------------


def _one_nan(cell: Any) -> Any:
    # Containers compare by identity before equality, so a single NaN object is a single key. In a
    # dictionary -0.0 already equals 0.0, but its text differs; one form is easier to reason about.
    return (cell or 0.0 if cell is not None else None) if cell == cell else math.nan


def _freeze_array(freeze: CellConverter | None) -> CellConverter:
    if freeze is None:
        return lambda cell: None if cell is None else tuple(cell)
    return lambda cell: None if cell is None else tuple([freeze(item) for item in cell])


def _freeze_struct(parts: list[CellConverter | None]) -> CellConverter:
    steps = [part or _same for part in parts]
    return lambda cell: (
        None
        if cell is None
        else tuple([step(item) for step, item in zip(steps, cell, strict=True)])
    )


def _freeze_map(freeze: CellConverter | None) -> CellConverter:
    step = freeze or _same
    return lambda cell: None if cell is None else frozenset((k, step(v)) for k, v in cell.items())
