"""Rows are checked, made canonical, and carried to Arrow and back exactly."""

from __future__ import annotations

import math
import pickle
from collections import namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import ALL, random_row, schemas

from holdfast import errors
from holdfast.types import (
    AtomicType,
    MapType,
    RowCodec,
    Schema,
    parse_schema,
)


def same(one: Any, other: Any) -> bool:
    """Equality that tells 1 from 1.0 and -0.0 from 0.0, and knows NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        if one != one or other != other:
            return one != one and other != other
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    if isinstance(one, (tuple, list)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return same(list(one.items()), list(other.items()))
    return bool(one == other) and str(one) == str(other)


@given(st.randoms(use_true_random=False))
def test_rows_survive_arrow_exactly(rng: Random) -> None:
    codec = RowCodec(ALL)
    rows = [codec.encode(random_row(ALL, rng)) for _ in range(rng.randint(0, 6))]
    columns = codec.to_arrow(rows)
    assert [c.type for c in columns] == [f.type for f in ALL.arrow]
    for column in columns:
        column.validate(full=True)
    again = codec.from_arrow(columns)
    assert same(again, rows)
    start = rng.randint(0, len(rows))
    part = codec.from_arrow([c.slice(start, 2) for c in columns])
    assert same(part, rows[start : start + 2])


@given(schemas, st.randoms(use_true_random=False))
def test_rows_of_any_schema_survive_arrow_and_encoding_twice(schema: Schema, rng: Random) -> None:
    codec = RowCodec(schema)
    rows = [codec.encode(random_row(schema, rng, nulls=0.0)) for _ in range(3) if holds(schema)]
    again = codec.from_arrow(codec.to_arrow(rows), len(rows))
    assert same(again, rows)
    twice = [codec.encode(row) for row in rows]
    assert same(twice, rows)


def holds(schema: Schema) -> bool:
    """Whether rows without nulls exist, and map keys are something Python can hash."""
    kinds = [t for f in schema.fields for t in f.type.walk()]
    maps = [t.key for t in kinds if isinstance(t, MapType)]
    return AtomicType("void") not in kinds and not any(
        isinstance(t, MapType) for key in maps for t in key.walk()
    )


@given(st.randoms(use_true_random=False))
def test_equal_keys_have_one_hashable_form_and_other_keys_another(rng: Random) -> None:
    schema = parse_schema(
        "a double, b float, c decimal(9,2), d array<double>, e struct<x:array<float>,y:string>"
    )
    codec = RowCodec(schema)
    row = codec.encode(random_row(schema, rng))
    again = codec.from_arrow(codec.to_arrow([row]))[0]
    assert {codec.hashable(row): 1}[codec.hashable(again)] == 1
    other = codec.encode(random_row(schema, rng))
    hashable = codec.hashable(row), codec.hashable(other)
    assert (hashable[0] == hashable[1]) == (repr(hashable[0]) == repr(hashable[1]))


def test_nan_is_one_key_and_minus_zero_is_zero() -> None:
    codec = RowCodec(parse_schema("a double, b array<float>"))
    assert not codec.plain
    nan = codec.hashable((float("nan"), [float("nan"), -0.0]))
    assert nan == codec.hashable((-float("nan"), [float("nan"), 0.0]))
    assert codec.hashable((-0.0, None)) == codec.hashable((0.0, None))
    assert codec.hashable((1.0, [])) != codec.hashable((1.0, None))


@pytest.mark.parametrize("ddl", ["a int, b string, c binary, d boolean, e date", "a timestamp"])
def test_plain_rows_are_their_own_dictionary_keys(ddl: str) -> None:
    codec = RowCodec(parse_schema(ddl))
    row = tuple(None for _ in codec.schema)
    assert codec.plain
    assert codec.hashable(row) is row


@pytest.mark.parametrize(
    ("ddl", "row"),
    [
        ("a long", (5,)),
        ("a string, b long", ("é", None)),
        ("a boolean, b byte, c short, d int", (True, -128, 32767, -(2**31))),
        ("a double, b binary, c date", (math.nan, b"x", date(1, 1, 1))),
        ("a timestamp, b timestamp_ntz", (datetime(1, 1, 1, tzinfo=UTC), datetime.max)),
    ],
)
def test_canonical_rows_of_plain_cells_come_back_themselves(ddl: str, row: Any) -> None:
    assert RowCodec(parse_schema(ddl)).encode(row) is row


def test_rows_are_taken_as_tuples_lists_dicts_and_named_tuples() -> None:
    codec = RowCodec(parse_schema("user string, total long"))
    named = namedtuple("named", "x y")("a", 1)
    for row in [("a", 1), ["a", 1], {"total": 1, "user": "a"}, named]:
        assert codec.encode(row) == ("a", 1)
        assert type(codec.encode(row)) is tuple


@pytest.mark.parametrize(
    ("ddl", "cell", "canonical"),
    [
        ("long", np.int64(5), 5),
        ("byte", np.int8(-5), -5),
        ("boolean", np.bool_(True), True),
        ("double", 3, 3.0),
        ("double", np.float32(0.5), 0.5),
        ("float", 0.1, 0.10000000149011612),
        ("string", np.str_("x"), "x"),
        ("binary", bytearray(b"x"), b"x"),
        ("binary", memoryview(b"x"), b"x"),
        ("decimal(5,2)", Decimal("1.005"), Decimal("1.01")),
        ("decimal(5,2)", Decimal("-0.001"), Decimal("0.00")),
        ("decimal(5,2)", 7, Decimal("7.00")),
        (
            "timestamp",
            datetime(2024, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))),
            datetime(2024, 1, 1, tzinfo=UTC),
        ),
        ("timestamp_ntz", datetime(2024, 1, 1, fold=1), datetime(2024, 1, 1)),
        ("interval year to month", 14, 14),
        ("interval", (1, 2, 3000), pa.MonthDayNano((1, 2, 3000))),
        ("array<double>", (1, None), [1.0, None]),
        ("array<int>", np.array([1, 2]), [1, 2]),
        ("struct<a:int,b:string>", {"b": "x", "a": 1}, (1, "x")),
        ("struct<a:int,b:string>", [1, None], (1, None)),
        ("map<array<int>,int>", {(1, 2): 3}, {(1, 2): 3}),
        ("map<double,int>", {-0.0: 3}, {0.0: 3}),
        ("variant", {"metadata": b"m", "value": bytearray(b"v")}, (b"v", b"m")),
    ],
)
def test_cells_are_made_canonical(ddl: str, cell: Any, canonical: Any) -> None:
    codec = RowCodec(parse_schema(f"a {ddl}"))
    encoded = codec.encode((cell,))
    assert same(encoded, (canonical,))
    assert same(codec.from_arrow(codec.to_arrow([encoded]))[0], (canonical,))


SECRET = 4_815_162_342


@pytest.mark.parametrize(
    ("ddl", "cell"),
    [
        ("int", SECRET),
        ("byte", 128),
        ("long", 2**63),
        ("long", True),
        ("long", 4815.162342),
        ("long", "4815162342"),
        ("boolean", 1),
        ("double", "4815162342"),
        ("double", 2**53 + 1),
        ("double", 10**400),
        ("float", 4.815e162),
        ("double", Decimal(SECRET)),
        ("string", b"4815162342"),
        ("string", "4815162342\ud800"),
        ("varchar(3)", "4815162342"),
        ("binary", "4815162342"),
        ("date", datetime(2024, 1, 1)),
        ("date", "2024-01-01"),
        ("timestamp", datetime(2024, 1, 1)),
        ("timestamp", datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=2)))),
        ("timestamp_ntz", datetime(2024, 1, 1, tzinfo=UTC)),
        ("timestamp_ntz", date(2024, 1, 1)),
        ("time", time(1, tzinfo=UTC)),
        ("interval day", timedelta.max),
        ("interval day", SECRET),
        ("interval year", 2**31),
        ("interval", (1, 2, 3001)),
        ("interval", SECRET),
        ("decimal(5,2)", Decimal("999.995")),
        ("decimal(5,2)", SECRET),
        ("decimal(5,2)", Decimal("NaN")),
        ("decimal(5,2)", Decimal("Infinity")),
        ("decimal(5,2)", 1.5),
        ("decimal(38,0)", Decimal("1e38")),
        ("void", SECRET),
        ("variant", SECRET),
        ("variant", (b"x",)),
        ("array<int>", "4815162342"),
        ("array<int>", [SECRET]),
        ("map<int,int>", [(1, 2)]),
        ("map<int,int>", {None: 1}),
        ("struct<a:int not null>", (None,)),
        ("struct<a:int>", (1, 2)),
        ("struct<a:int>", {"b": 1}),
        ("struct<a:int>", SECRET),
        ("int not null", None),
    ],
)
def test_a_cell_that_does_not_fit_is_refused_by_column_without_its_value(
    ddl: str, cell: Any
) -> None:
    codec = RowCodec(parse_schema(f"fine int, `the column` {ddl}"))
    with pytest.raises(errors.InvalidArgument, match="'the column'") as caught:
        codec.encode((1, cell))
    assert "4815" not in str(caught.value)
    assert "999.99" not in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (None, "not None"),
        ("ab", "not str"),
        (5, "not int"),
        (("a",), "'total' is missing"),
        ((), "'user' is missing"),
        (("a", 1, 2), "has 3 cells"),
        ({"user": "a"}, "'total' is missing"),
        ({"user": "a", "total": 1, "x": 2}, "names"),
    ],
)
def test_a_row_of_the_wrong_shape_is_refused(row: Any, message: str) -> None:
    codec = RowCodec(parse_schema("user string, total long"))
    with pytest.raises(errors.InvalidArgument, match=message):
        codec.encode(row)


def test_a_caller_may_reuse_what_it_gave() -> None:
    codec = RowCodec(parse_schema("a binary, b array<array<int>>, c map<int,array<int>>"))
    buffer, inner, outer, mapping = bytearray(b"x"), [1], [[1]], {1: [1]}
    encoded = codec.encode([buffer, outer, mapping])
    before = codec.encode(encoded)
    buffer[0] = 0
    outer[0][0] = 2
    outer.append(inner)
    mapping[1].append(2)
    mapping[2] = []
    assert encoded == before == (b"x", [[1]], {1: [1]})


def test_a_codec_for_no_columns_counts_its_rows() -> None:
    codec = RowCodec(parse_schema(""))
    assert codec.encode(()) == codec.encode({}) == ()
    assert codec.to_arrow([(), ()]) == []
    assert codec.from_arrow([], 2) == [(), ()]


def test_chunked_columns_are_read() -> None:
    codec = RowCodec(parse_schema("a int, b struct<x:int>"))
    table = pa.table(codec.to_arrow([(1, (2,)), (None, None)]), codec.schema.arrow)
    chunked = pa.concat_tables([table, table])
    assert codec.from_arrow(chunked.columns) == [(1, (2,)), (None, None)] * 2


@pytest.mark.parametrize(
    ("ddl", "stored"), [("timestamp", -(2**63)), ("timestamp_ntz", -(2**63)), ("time", 1001)]
)
def test_stored_values_that_python_cannot_hold_are_refused_by_column(ddl: str, stored: int) -> None:
    codec = RowCodec(parse_schema(f"`the column` {ddl}"))
    column = pa.array([stored], pa.int64()).cast(codec.schema.arrow.field(0).type)
    with pytest.raises(errors.InvalidArgument, match="'the column'"):
        codec.from_arrow([column])


def test_a_codec_can_be_pickled() -> None:
    codec = pickle.loads(pickle.dumps(RowCodec(parse_schema("a double, b string"))))
    assert codec.encode((1, "x")) == (1.0, "x")
    assert repr(codec) == "RowCodec('a double, b string')"


@pytest.mark.spark
def test_rows_of_pyspark_are_taken_by_position(spark: Any) -> None:
    from pyspark.sql import Row
    from pyspark.sql.types import VariantVal

    codec = RowCodec(parse_schema("user string, total long"))
    assert codec.encode(Row(user="a", total=1)) == ("a", 1)
    assert codec.encode(Row("x", "y")("a", 1)) == ("a", 1)
    variant = VariantVal(bytearray(b"\x0c\x01"), bytearray(b"\x01\x00\x00"))
    assert RowCodec(parse_schema("v variant")).encode((variant,)) == ((b"\x0c\x01", b"\x01\0\0"),)


@pytest.mark.spark
def test_what_spark_collects_encodes_to_what_arrow_reads(spark: Any) -> None:
    sql = """SELECT 1.5f AS f, cast(1.25 as decimal(10,2)) AS d, binary('x') AS b,
        timestamp_ntz'2024-02-29 12:00:00.000001' AS n, date'0001-01-01' AS t,
        interval '1 02:03:04.5' day to second AS i, array(struct(1 AS x, 'a' AS y)) AS a,
        map('k', array(1L, null)) AS m, time'12:34:56.123456' AS c"""
    frame = spark.sql(sql)
    schema = parse_schema(frame.schema)
    codec = RowCodec(schema)
    table = frame.toArrow()
    assert table.schema.equals(schema.arrow)
    assert codec.from_arrow(table.columns) == [codec.encode(frame.first())]
