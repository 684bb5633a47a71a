"""The text of keys: exactly what the docs say, so that any service can compute it."""

from __future__ import annotations

import hashlib
import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.types import RowCodec, parse_schema
from holdfast.views.keys import fits_in_columns, key_texts, odd_keys

ANY_FLOAT = (0.0, math.inf)


def _texts(schema: str, *rows: tuple[Any, ...]) -> list[str]:
    parsed = parse_schema(schema)
    codec = RowCodec(parsed)
    return key_texts(parsed, codec.to_arrow([codec.encode(row) for row in rows]))


@pytest.mark.parametrize(
    ("kind", "cell", "text"),
    [
        ("string", "Sankar", '["Sankar"]'),
        ("string", 'say "hi"\n\x01é\\', '["say \\"hi\\"\\n\\u0001é\\\\"]'),
        ("string", None, "[null]"),
        ("long", -5, "[-5]"),
        ("boolean", True, "[true]"),
        ("decimal(10,2)", Decimal("1.50"), '["1.50"]'),
        ("decimal(38,30)", Decimal("1E-30"), '["0.000000000000000000000000000001"]'),
        ("double", 1.5, '["3ff8000000000000"]'),
        ("double", math.nan, '["7ff8000000000000"]'),
        ("float", 1.5, '["3fc00000"]'),
        ("binary", b"\x00\xff", '["00ff"]'),
        ("date", date(2026, 1, 31), '["2026-01-31"]'),
        ("timestamp", datetime(2026, 1, 1, tzinfo=UTC), "[1767225600000000]"),
        ("timestamp_ntz", datetime(1969, 12, 31, 23, 59, 59), "[-1000000]"),
        ("time", time(0, 0, 1), "[1000000000]"),
        ("interval year to month", 14, "[14]"),
        ("interval day to second", timedelta(seconds=1), "[1000000]"),
        ("interval", (1, 2, 3000), "[[1,2,3000]]"),
        ("array<int>", [1, None], "[[1,null]]"),
        ("struct<a:double,b:array<date>>", (1.5, [date(1970, 1, 1)]),
         '[["3ff8000000000000",["1970-01-01"]]]'),
    ],
)  # fmt: skip
def test_each_type_is_written_as_documented(kind: str, cell: Any, text: str) -> None:
    assert _texts(f"k {kind}", (cell,)) == [text]


def test_columns_stand_in_their_order_without_spaces() -> None:
    assert _texts("a string, b long", ("x", 1), (None, 2)) == ['["x",1]', "[null,2]"]


def test_a_long_key_is_known_by_its_hash() -> None:
    fits, long = _texts("k string", ("x" * 1020,), ("é" * 511,))
    assert fits == f'["{"x" * 1020}"]'
    whole = f'["{"é" * 511}"]'.encode()
    assert long == f"sha256:{hashlib.sha256(whole).hexdigest()}"


def test_keys_that_no_primary_key_takes_are_told_apart() -> None:
    texts = pa.array(["plain", "", None, "x" * 1024, "x" * 1025])
    assert odd_keys([texts], ANY_FLOAT).tolist() == [False, True, True, False, True]
    floats = pa.array([0.0, 1.5, math.nan, math.inf, None])
    assert odd_keys([floats], (0.0, 1e308)).tolist() == [False, False, True, True, True]
    assert odd_keys([pa.array([1e-200, 1.0])], (1e-130, 1e125)).tolist() == [True, False]
    numbers = pa.array([1, None, 3, 4, 5])
    assert np.flatnonzero(odd_keys([numbers, texts], ANY_FLOAT)).tolist() == [1, 2, 4]


def test_nested_types_are_never_in_a_primary_key() -> None:
    schema = parse_schema("a array<int>, b struct<a:int>, c interval, d boolean, e date, f string")
    assert [fits_in_columns(f.type, booleans=True) for f in schema] == [
        False, False, False, True, True, True,
    ]  # fmt: skip
    assert not fits_in_columns(schema.fields[3].type, booleans=False)
