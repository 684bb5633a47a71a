"""Random schemas and rows of every type, for tests that compare two ways of doing one thing."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st

from holdfast.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    Field,
    IntervalType,
    MapType,
    Schema,
    StringType,
    StructType,
    TimeType,
    parse_schema,
)

ALL = parse_schema(
    "a boolean, b byte, c short, d int, e long, f float, g double, h decimal(10,2), "
    "i decimal(38,9), j string, k varchar(9), l binary, m date, n timestamp, o timestamp_ntz, "
    "p time, q interval day to second, r interval year to month, s interval, t void, u variant, "
    "v array<int>, w array<array<timestamp>>, x map<string,double>, "
    "y struct<a:int,b:array<float>>, aa array<struct<a:time>>, ad struct<>, "
    "z map<struct<a:array<date>>,struct<b:variant,c:interval day>>, "
    "ab struct<a:struct<b:long not null> not null>, ac array<interval day to second>"
)

_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_ALPHABET = "abz09 _~\x00éßŁ漢\U0001f980"
_DOUBLES = [0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -1e300, 5e-324]


def random_row(schema: Schema, rng: Random, nulls: float = 0.15) -> tuple[Any, ...]:
    """A row that `RowCodec(schema).encode` accepts."""
    return tuple(random_cell(f.type, rng, nulls if f.nullable else 0.0) for f in schema.fields)


def random_cell(kind: DataType, rng: Random, nulls: float = 0.15) -> Any:
    """A cell; null with probability `nulls`, inside nested cells too where they may be."""
    if rng.random() < nulls:
        return None
    if isinstance(kind, AtomicType):
        return _atomic(kind.name, rng)
    if isinstance(kind, StringType):
        return random_text(rng, kind.length if kind.kind != "string" else 70)
    if isinstance(kind, DecimalType):
        digits = rng.randint(1, kind.precision)
        unscaled = rng.randint(-(10**digits) + 1, 10**digits - 1)
        return Decimal(unscaled).scaleb(-kind.scale) if digits < 28 else _exact(unscaled, kind)
    if isinstance(kind, TimeType):
        return (datetime(2000, 1, 1) + timedelta(microseconds=rng.randrange(86_400_000_000))).time()
    if isinstance(kind, IntervalType):
        months = _integer(32, rng)
        return months if kind.year_month else timedelta(microseconds=_integer(64, rng))
    return _nested(kind, rng, nulls)


def random_text(rng: Random, longest: int) -> str:
    """Text of any length up to `longest`, plain ASCII half of the time."""
    size = rng.randint(0, longest)
    if rng.random() < 0.5:
        return "".join(chr(rng.randint(32, 126)) for _ in range(size))
    return "".join(rng.choice(_ALPHABET) for _ in range(size))


def _exact(unscaled: int, kind: DecimalType) -> Decimal:
    sign = 1 if unscaled < 0 else 0
    return Decimal((sign, tuple(map(int, str(abs(unscaled)))), -kind.scale))


def _integer(bits: int, rng: Random) -> int:
    size = rng.randint(0, bits - 1)
    return rng.choice([-(2**size), 2**size - 1, rng.randint(-(2**size), 2**size - 1)])


def _atomic(name: str, rng: Random) -> Any:
    if name in _BITS:
        return _integer(_BITS[name], rng)
    if name == "double":
        return rng.choice([*_DOUBLES, rng.gauss(0, 1e9), *struct.unpack("<d", rng.randbytes(8))])
    if name == "float":
        return rng.choice(
            [0.0, -0.0, math.nan, math.inf, 0.1, *struct.unpack("<f", rng.randbytes(4))]
        )
    if name == "binary":
        return rng.randbytes(rng.randint(0, 70))
    if name == "date":
        return date.fromordinal(rng.randint(1, date.max.toordinal()))
    if name in ("timestamp", "timestamp_ntz"):
        span = datetime.max - datetime.min
        moment = datetime.min + timedelta(microseconds=rng.randrange(span // timedelta(0, 0, 1)))
        return moment.replace(tzinfo=UTC) if name == "timestamp" else moment
    if name == "interval":
        return (_integer(32, rng), _integer(32, rng), _integer(50, rng) * 1000)
    if name == "variant":
        return (rng.randbytes(rng.randint(1, 9)), rng.randbytes(3))
    return rng.random() < 0.5 if name == "boolean" else None


def _nested(kind: DataType, rng: Random, nulls: float) -> Any:
    if isinstance(kind, ArrayType):
        inner = nulls if kind.contains_null else 0.0
        return [random_cell(kind.element, rng, inner) for _ in range(rng.randint(0, 5))]
    if isinstance(kind, MapType):
        inner = nulls if kind.value_contains_null else 0.0
        keys = [random_cell(kind.key, rng, 0.0) for _ in range(rng.randint(0, 4))]
        return {_frozen(key): random_cell(kind.value, rng, inner) for key in keys}
    assert isinstance(kind, StructType)
    return tuple(random_cell(f.type, rng, nulls if f.nullable else 0.0) for f in kind.fields)


def _frozen(cell: Any) -> Any:
    return tuple(map(_frozen, cell)) if isinstance(cell, (list, tuple)) else cell


# -- strategies for Hypothesis ------------------------------------------------------------------

simple_types = st.one_of(
    st.sampled_from([f.type for f in ALL.fields if not f.type.children()]),
    st.integers(1, 38).flatmap(
        lambda p: st.integers(0, p).map(lambda s: DecimalType(p, s)),
    ),
    st.integers(0, 6).map(TimeType),
    st.sampled_from(
        [StringType("UNICODE_CI"), StringType("de_AI"), StringType("UTF8_LCASE_RTRIM")]
    ),
)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8).filter(
    lambda n: not n.startswith("_")
)


def structs(kinds: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    notes = st.one_of(st.just({}), st.text(max_size=9).map(lambda c: {"comment": c}))
    fields = st.builds(Field, names, kinds, st.booleans(), notes.map(json.dumps))
    return st.lists(fields, max_size=4, unique_by=lambda f: f.name).map(
        lambda found: StructType(tuple(found))
    )


def map_keys(kinds: st.SearchStrategy[DataType]) -> st.SearchStrategy[DataType]:
    return kinds.filter(lambda kind: kind != AtomicType("void"))


all_types = st.recursive(
    simple_types,
    lambda inner: st.one_of(
        inner.map(ArrayType), st.builds(MapType, map_keys(inner), inner), structs(inner)
    ),
    max_leaves=6,
)
schemas = structs(all_types).map(Schema)
