"""The rows of a repair as people give them: JSON, Python, Arrow tables and files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.reading.cells import parse_field, parse_json_field
from holdfast.reading.keys import row_of
from holdfast.reserved import EXPIRES
from holdfast.types import (
    MILLISECONDS,
    AtomicType,
    Field,
    Row,
    RowCodec,
    Schema,
    StructType,
    as_table,
    columns_of,
)

_EXPIRY = Field(EXPIRES, AtomicType("long")).meaning_that(MILLISECONDS)
_PARTS = {"key", "value", "expires"}


class KeyText(str):
    """A key as somebody typed it: a cell, or a JSON array or object of several."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class WantedRow:
    """A key, and what is wanted of it: cells of some columns, or, with None, that it goes."""

    key: Row
    cells: Mapping[str, Any] | None
    """Canonical cells by the names of their columns."""
    expires_ms: int | None = None
    where: str = field(default="", compare=False)
    """Where it was given, for errors."""


@dataclass(frozen=True)
class RepairInput:
    """What a repair was asked for, as it was given."""

    set: Any = None
    delete: Any = None
    delete_where: Any = None
    rows: pa.Table | str | os.PathLike[str] | None = None


class InputReader:
    """Reads what was given by the columns of a store.

    `check_names` refuses names that are none of its value columns.
    """

    def __init__(
        self, keys: Schema, values: Schema, check_names: Callable[[Iterable[str]], None]
    ) -> None:
        self._keys, self._values, self._check_names = keys, values, check_names
        self._key_codec = RowCodec(keys)

    def rows(self, given: RepairInput) -> Iterator[WantedRow]:
        """Every row that was given; what a filter deletes is not among them."""
        yield from self._set(given.set)
        yield from self._deleted(given.delete)
        if isinstance(given.rows, str | os.PathLike):
            yield from self._file(Path(given.rows))
        elif given.rows is not None:
            yield from self._table(as_table(given.rows), "rows")

    # -- set and delete ------------------------------------------------------------------------

    def _set(self, given: Any) -> Iterator[WantedRow]:
        if given is None:
            return
        entries = [given] if isinstance(given, str | Mapping) else list(given)
        parsed = chain.from_iterable(map(_entries, entries))
        for number, (entry, is_json) in enumerate(parsed, 1):
            where = f"set {number}"
            with named(where):
                yield self._entry(entry, where, is_json)

    def _entry(self, entry: Any, where: str, is_json: bool) -> WantedRow:
        if not isinstance(entry, Mapping) or "key" not in entry or not set(entry) <= _PARTS:
            raise InvalidArgument(
                'It needs {"key": …, "value": …}, each an object by column or an array.'
            )
        key, value = entry["key"], entry.get("value", {})
        if is_json:
            key, value = self._key_of_json(key), self._value_of_json(value)
        cells = self._by_name(value)
        expires = entry.get("expires")
        encoded = {name: _canonical(self._field(name), cell) for name, cell in cells.items()}
        expires_ms = None if expires is None else _expiry_of(expires)
        return WantedRow(self._key(key), encoded, expires_ms, where)

    def _key(self, key: Any) -> Row:
        return self._key_codec.encode(row_of(key, self._key_codec))

    def _key_of_json(self, key: Any) -> Any:
        """A key of parsed JSON; a plain cell is that of the only column."""
        if isinstance(key, Mapping):
            is_whole = set(key) == set(self._keys.names)
            cells = [key[name] for name in self._keys.names] if is_whole else []
        else:
            found = row_of(key, self._key_codec)
            cells = list(found) if isinstance(found, list | tuple) else [found]
        if len(cells) != len(self._keys):
            raise InvalidArgument(f"The key has the columns ({self._keys.ddl()}).")
        return tuple(map(parse_json_field, self._keys.fields, cells))

    def _value_of_json(self, value: Any) -> Mapping[str, Any]:
        cells = self._by_name(value)
        return {name: parse_json_field(self._field(name), cell) for name, cell in cells.items()}

    def _by_name(self, value: Any) -> Mapping[str, Any]:
        """Cells by name; a list or tuple has all columns in order."""
        if isinstance(value, Mapping):
            return value
        if not isinstance(value, list | tuple):
            value = (value,)
        if len(value) != len(self._values):
            raise InvalidArgument(
                f"The value has {len(self._values)} columns, not {len(value)}: "
                f"({self._values.ddl()}). Name those to change."
            )
        return dict(zip(self._values.names, value, strict=True))

    def _field(self, name: str) -> Field:
        self._check_names([name])
        return self._values.fields[self._values.names.index(name)]

    def _deleted(self, given: Any) -> Iterator[WantedRow]:
        if given is None:
            return
        for number, key in enumerate(given if isinstance(given, list) else [given], 1):
            where = f"delete {number}"
            with named(where):
                typed = self._typed(key) if isinstance(key, KeyText) else key
                yield WantedRow(self._key(typed), None, where=where)

    def _typed(self, text: str) -> Any:
        if text.lstrip()[:1] in ("[", "{") or len(self._keys) > 1:
            return self._key_of_json(_parsed(text))
        return (parse_field(self._keys.fields[0], str(text)),)

    # -- files and tables ----------------------------------------------------------------------

    def _file(self, path: Path) -> Iterator[WantedRow]:
        kind = path.suffix.lower()
        if kind not in _READERS:
            raise InvalidArgument(
                f"{path.name} is of no kind that is known here. Give a file that ends in "
                f"{', '.join(_READERS)}."
            )
        try:
            with path.open("rb"):
                pass
        except OSError as error:
            raise InvalidArgument(f"{path} cannot be read: {error.strerror}.") from None
        yield from _READERS[kind](self, path)

    def _parquet(self, path: Path) -> Iterator[WantedRow]:
        from pyarrow import parquet  # takes longer to import than a repair

        try:
            table = parquet.read_table(path)
        except (pa.ArrowException, OSError):
            raise InvalidArgument(f"{path.name} is no parquet file.") from None
        yield from self._table(table, path.name)

    def _table(self, table: pa.Table, what: str) -> Iterator[WantedRow]:
        with named(what):
            values = self._given_columns(table.column_names)
            keys = self._key_codec.from_arrow(columns_of(table, self._keys))
            codec = RowCodec(values)
            cells = codec.from_arrow(columns_of(table, values), table.num_rows)
            expiries: list[int | None] = [None] * table.num_rows
            if EXPIRES in table.column_names:
                expiries = _expiries(table.column(EXPIRES))
        for number, (key, row, expires) in enumerate(zip(keys, cells, expiries, strict=True), 1):
            by_name = dict(zip(values.names, row, strict=True))
            yield WantedRow(key, by_name, expires, f"{what}, row {number}")

    def _given_columns(self, names: Sequence[str]) -> Schema:
        """The value columns that are given."""
        self._check_names(name for name in names if name not in (*self._keys.names, EXPIRES))
        if missing := [name for name in self._keys.names if name not in names]:
            raise InvalidArgument(f"The key column {missing[0]!r} is missing.")
        given = tuple(each for each in self._values.fields if each.name in names)
        return Schema(StructType(given))

    def _csv(self, path: Path) -> Iterator[WantedRow]:
        from pyarrow import csv

        known = (*self._keys.names, *self._values.names, EXPIRES)
        try:
            table = csv.read_csv(
                path,
                convert_options=csv.ConvertOptions(
                    column_types=dict.fromkeys(known, pa.string()),
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                    null_values=[""],
                ),
            )
            names = table.column_names
        except (pa.ArrowException, OSError, UnicodeDecodeError):
            raise InvalidArgument(f"{path.name} is no CSV file with a header.") from None
        with named(path.name):
            self._given_columns(names)
        for number, row in enumerate(table.to_pylist(), 1):
            yield self._flat(row, f"{path.name}, row {number}", _of_text)

    def _json_lines(self, path: Path) -> Iterator[WantedRow]:
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            with named(path.name):
                raise InvalidArgument("It is not text in UTF-8.") from None
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip():
                continue
            where = f"{path.name}, line {number}"
            with named(where):
                row = _parsed(line)
                if not isinstance(row, dict):
                    raise InvalidArgument("It is no JSON object.")
                self._given_columns(list(row))
            yield self._flat(row, where, parse_json_field)

    def _flat(self, row: Mapping[str, Any], where: str, parse: Any) -> WantedRow:
        """A row with key and value columns side by side."""
        with named(where):
            key = tuple(parse(column, row[column.name]) for column in self._keys.fields)
            cells = {
                column.name: _canonical(column, parse(column, row[column.name]))
                for column in self._values.fields
                if column.name in row
            }
            expires = row.get(EXPIRES)
            expires_ms = None if expires is None else _expiry_of(expires)
            return WantedRow(self._key(key), cells, expires_ms, where)


_READERS = {
    ".parquet": InputReader._parquet,
    ".csv": InputReader._csv,
    ".jsonl": InputReader._json_lines,
    ".ndjson": InputReader._json_lines,
    ".json": InputReader._json_lines,
}


@contextmanager
def named(where: str) -> Iterator[None]:
    """Say in an error of the block where its cause was given."""
    try:
        yield
    except InvalidArgument as error:
        text = error.message[:1].upper() + error.message[1:]
        raise InvalidArgument(f"In {where}: {text} Nothing was changed.") from None


def _entries(entry: Any) -> list[tuple[Any, bool]]:
    """What one `set` has: JSON text may have several, Python data is one."""
    if not isinstance(entry, str):
        return [(entry, False)]
    with named("set"):
        found = _parsed(entry)
    return [(each, True) for each in (found if isinstance(found, list) else [found])]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text, parse_float=Decimal)
    except ValueError:
        raise InvalidArgument("It is not JSON.") from None


def _canonical(column: Field, cell: Any) -> Any:
    """A cell as the store keeps it; null is taken, for the whole row is checked later."""
    if cell is None:
        return None
    return RowCodec(Schema(StructType((column,)))).encode((cell,))[0]


def _of_text(column: Field, text: str | None) -> Any:
    return None if text is None else parse_field(column, text)


def _expiry_of(given: Any) -> int:
    """When a row expires, in ms: given so, as text, or as a datetime."""
    if hasattr(given, "isoformat"):
        given = given.isoformat()
    found = parse_field(_EXPIRY, str(given))
    assert isinstance(found, int)
    return found


def _expiries(column: pa.ChunkedArray) -> list[int | None]:
    try:
        kind = pa.timestamp("ms", "UTC") if pa.types.is_timestamp(column.type) else pa.int64()
        return list(column.cast(kind).cast(pa.int64()).to_pylist())
    except pa.ArrowException:
        raise InvalidArgument(f"The column {EXPIRES!r} has times, or milliseconds.") from None
