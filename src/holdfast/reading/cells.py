"""Cells as people type them and as JSON shows them.

`parse_row(schema, texts)` reads one text for each column by its type; `row_json(schema, row)` is
a row as JSON can hold it, exactly: decimals and times as text, binary as hex.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from holdfast.errors import InvalidArgument
from holdfast.types import (
    MILLISECONDS,
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    IntervalType,
    MapType,
    Row,
    Schema,
    StringType,
    StructType,
    TimeType,
    far_number,
    far_text,
    moment_text,
    parse_far,
)

_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,6})?)S)?)?"
)
_WHOLE_NUMBER = re.compile(r"[+-]?\d+")
_TIMESTAMP = AtomicType("timestamp")
_INTEGERS = ("byte", "short", "integer", "long")
_HOW = {
    "boolean": "true or false",
    "binary": "hexadecimal digits",
    "date": "a date such as 2026-01-31",
    "timestamp": "a time such as 2026-01-31T12:00:00Z (without a zone it is UTC)",
    "timestamp_ntz": "a time without a zone such as 2026-01-31T12:00:00",
}


def parse_row(schema: Schema, texts: Sequence[str]) -> Row:
    """A row out of one text for each column. Raises InvalidArgument naming the column."""
    if len(texts) != len(schema):
        raise InvalidArgument(f"({schema.ddl()}) has {len(schema)} columns, not {len(texts)}.")
    return tuple(map(parse_field, schema.fields, texts))


def parse_field(column: Field, text: str) -> Any:
    """A cell of a column out of what somebody typed; of one of milliseconds also out of a time."""
    if column.meaning == MILLISECONDS and not _WHOLE_NUMBER.fullmatch(text):
        return _checked(_TIMESTAMP, column.name, _milliseconds, text)
    return parse_cell(column.type, text, column.name)


def _milliseconds(kind: DataType, text: str) -> int:
    """A time in ms, rounded down."""
    moment = from_json(kind, text)
    far = (
        moment
        if isinstance(moment, np.datetime64)
        else np.datetime64(moment.replace(tzinfo=None) - moment.utcoffset())
    )
    return far_number(far.astype("datetime64[us]")) // 1000


def first_cells(schema: Schema, texts: Sequence[str]) -> dict[str, Any]:
    """Cells of the first columns by name, out of one text for each."""
    if len(texts) > len(schema):
        raise InvalidArgument(f"({schema.ddl()}) has {len(schema)} columns, not {len(texts)}.")
    fields = schema.fields[: len(texts)]
    return dict(zip((f.name for f in fields), map(parse_field, fields, texts), strict=True))


def parse_json_field(column: Field, cell: Any) -> Any:
    """A cell of a column out of parsed JSON. Raises InvalidArgument naming the column.

    Unlike `from_json` it takes nothing but text for text, and takes a time for milliseconds.
    """
    if column.meaning == MILLISECONDS and isinstance(cell, str):
        return parse_field(column, cell)
    if isinstance(column.type, StringType) and not isinstance(cell, str | None):
        raise InvalidArgument(f"The cell for column {column.name!r} is not of type {column.type}.")
    return _checked(column.type, column.name, from_json, cell)


def parse_json_row(schema: Schema, text: str) -> Row:
    """A row out of a JSON array, or an object by column name; null is null."""
    cells = parse_json_cells(schema, text)
    if len(cells) < len(schema):
        raise _not_the_key(schema)
    return tuple(cells[name] for name in schema.names)


def parse_json_cells(schema: Schema, text: str) -> dict[str, Any]:
    """Cells by name, out of a JSON array of the first ones or an object of any of them."""
    try:
        found = json.loads(text, parse_float=Decimal)
    except ValueError:
        raise InvalidArgument("The key is not JSON.") from None
    if isinstance(found, list) and 0 < len(found) <= len(schema):
        found = dict(zip(schema.names, found, strict=False))
    if not isinstance(found, dict) or not found or not set(found) <= set(schema.names):
        raise _not_the_key(schema)
    return {
        field.name: _checked(field.type, field.name, from_json, found[field.name])
        for field in schema.fields
        if field.name in found
    }


def _not_the_key(schema: Schema) -> InvalidArgument:
    return InvalidArgument(
        f"The key is a JSON array with {len(schema)} cells or an object with the names of "
        f"({schema.ddl()})."
    )


def parse_cell(kind: DataType, text: str, name: str) -> Any:
    """A cell out of what somebody typed; arrays and structs are JSON."""
    if isinstance(kind, StringType):
        return text
    nested = isinstance(kind, (ArrayType, StructType, MapType))
    return _checked(kind, name, _from_json_text if nested else from_json, text)


def _from_json_text(kind: DataType, text: str) -> Any:
    return from_json(kind, json.loads(text, parse_float=Decimal))


def _checked(kind: DataType, name: str, read: Callable[[DataType, Any], Any], cell: Any) -> Any:
    try:
        return read(kind, cell)
    except (ValueError, TypeError, KeyError, AttributeError, InvalidOperation):
        how = _HOW.get(str(kind), f"of type {kind}")
        raise InvalidArgument(f"The cell for column {name!r} is not {how}.") from None


def from_json(kind: DataType, cell: Any) -> Any:
    """A cell out of JSON or text, in a form `RowCodec.encode` takes. Raises ValueError and such."""
    if cell is None:
        return None
    if isinstance(kind, ArrayType):
        return [from_json(kind.element, item) for item in cell]
    if isinstance(kind, StructType):
        cells = [cell[f.name] for f in kind.fields] if isinstance(cell, dict) else cell
        pairs = zip(kind.fields, cells, strict=True)
        return tuple(from_json(f.type, item) for f, item in pairs)
    if isinstance(kind, MapType):
        entries = cell.items() if isinstance(cell, dict) else cell
        return {_map_key(kind.key, k): from_json(kind.value, item) for k, item in entries}
    if isinstance(kind, StringType):
        return str(cell)
    if isinstance(kind, DecimalType):
        return Decimal(str(cell))
    if isinstance(kind, TimeType):
        return time.fromisoformat(cell)
    if isinstance(kind, IntervalType):
        return int(cell) if kind.year_month else duration(cell)
    return _atomic_from_json(str(kind) if not isinstance(kind, AtomicType) else kind.name, cell)


def _map_key(kind: DataType, cell: Any) -> Any:
    found = from_json(kind, cell)
    return tuple(found) if isinstance(found, list) else found


def _atomic_from_json(name: str, cell: Any) -> Any:
    if name in _INTEGERS:
        return int(str(cell))
    if name in ("float", "double"):
        number = float(cell)
        if math.isinf(number) and isinstance(cell, Decimal):
            raise ValueError("too large")
        return number
    if name == "boolean":
        return {"true": True, "false": False}[str(cell).lower()]
    if name == "binary":
        return bytes.fromhex(cell.removeprefix("0x"))
    if name in ("date", "timestamp", "timestamp_ntz"):
        return _moment_from_text(name, cell)
    if name == "variant":
        return bytes.fromhex(cell["value"]), bytes.fromhex(cell["metadata"])
    raise ValueError(name)


def _moment_from_text(name: str, text: str) -> Any:
    far = parse_far(text, "D" if name == "date" else "us")
    if far is not None:
        return far
    if name == "date":
        return date.fromisoformat(text)
    moment = datetime.fromisoformat(text)
    if name == "timestamp" and moment.tzinfo is None:
        return moment.replace(tzinfo=UTC)
    return moment


def duration(text: str) -> timedelta:
    """An ISO 8601 duration of days to microseconds, such as P1DT2H3M4.5S."""
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError
    seconds = Decimal(match["seconds"] or 0)
    length = timedelta(
        days=int(match["days"] or 0),
        hours=int(match["hours"] or 0),
        minutes=int(match["minutes"] or 0),
        microseconds=int(seconds * 1_000_000),
    )
    return -length if match["sign"] else length


def duration_text(length: timedelta) -> str:
    """The same the other way round."""
    if length < timedelta(0):
        return "-" + duration_text(-length)
    hours, rest = divmod(length.seconds, 3600)
    minutes, seconds = divmod(rest, 60)
    fraction = f".{length.microseconds:06}".rstrip("0") if length.microseconds else ""
    parts = [(hours, "H"), (minutes, "M")]
    clock = "".join(f"{number}{unit}" for number, unit in parts if number)
    if seconds or fraction:
        clock += f"{seconds}{fraction}S"
    days = f"{length.days}D" if length.days else ""
    return f"P{days}{'T' + clock if clock else ''}" if days or clock else "PT0S"


def row_json(schema: Schema, row: Row) -> dict[str, Any]:
    """A row as a JSON object by column name."""
    pairs = zip(schema.fields, row, strict=True)
    return {column.name: cell_json(column.type, cell) for column, cell in pairs}


def cell_json(kind: DataType, cell: Any) -> Any:
    """A canonical cell as JSON can hold it."""
    if cell is None:
        return None
    if isinstance(kind, ArrayType):
        return [cell_json(kind.element, item) for item in cell]
    if isinstance(kind, StructType):
        pairs = zip(kind.fields, cell, strict=True)
        return {f.name: cell_json(f.type, item) for f, item in pairs}
    if isinstance(kind, MapType):
        if isinstance(kind.key, StringType):
            return {key: cell_json(kind.value, item) for key, item in cell.items()}
        return [[cell_json(kind.key, k), cell_json(kind.value, v)] for k, v in cell.items()]
    if isinstance(cell, float) and not math.isfinite(cell):
        return {math.inf: "Infinity", -math.inf: "-Infinity"}.get(cell, "NaN")
    if isinstance(cell, bytes):
        return cell.hex()
    if isinstance(cell, (datetime, date, time)):
        return cell.isoformat().replace("+00:00", "Z")
    if isinstance(cell, np.datetime64):
        return far_text(cell) + ("Z" if kind == AtomicType("timestamp") else "")
    if isinstance(cell, timedelta):
        return duration_text(cell)
    if isinstance(cell, Decimal):
        return str(cell)
    if kind == AtomicType("variant"):
        return {"value": cell[0].hex(), "metadata": cell[1].hex()}
    if isinstance(cell, tuple):
        return [cell_json(kind, item) for item in cell]
    return cell


def field_text(column: Field, cell: Any) -> str:
    """A canonical cell of a column as a table shows it: a time where it means one."""
    if column.meaning == MILLISECONDS and isinstance(cell, int):
        return moment_text(cell)
    return cell_text(column.type, cell)


def cell_text(kind: DataType, cell: Any) -> str:
    """A canonical cell as a table shows it."""
    shown = cell_json(kind, cell)
    if isinstance(shown, str):
        return shown
    return json.dumps(shown, ensure_ascii=False)
