"""The key hash is Spark's, by columns and row by row."""

from __future__ import annotations

import random
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import random_cell, random_row, random_text

from holdfast import errors
from holdfast.engine.hashing import spark_hash
from holdfast.engine.hashing.rows import murmur3_bytes
from holdfast.engine.hashing.spark_hash import (
    KeyHasher,
    key_hashes,
    murmur3,
    partition_of,
    xxhash64,
)
from holdfast.types import RowCodec, Schema, parse_schema

TYPES = [
    "boolean",
    "byte",
    "short",
    "int",
    "long",
    "float",
    "double",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "time",
    "interval day to second",
    "interval year to month",
    "interval",
    *(f"decimal({p},{s})" for p, s in [(1, 0), (9, 2), (18, 18), (19, 0), (27, 5), (38, 0)]),
    *(f"decimal({p},{p // 2})" for p in (2, 10, 17, 18, 20, 31, 38)),
    "struct<a:int,b:string>",
    "struct<a:struct<b:double,c:decimal(38,3)>,d:timestamp>",
    "array<long>",
    "array<string>",
    "array<array<float>>",
    "array<struct<x:int,y:array<binary>>>",
    "struct<a:array<decimal(20,1)>,b:boolean>",
]
IN_ARROW_FOR_SPARK = {"interval year to month": "int", "interval": "struct<m:int,d:int,us:long>"}
SCHEMA = parse_schema(", ".join(f"c{i} {kind}" for i, kind in enumerate(TYPES)))

PAIR = parse_schema("a string, b string")


@pytest.fixture
def seed() -> int:
    """A seed that is shown when the test fails."""
    found = random.randrange(2**32)
    print(f"seed {found}")
    return found


def columns_of(schema: Schema, rows: list[tuple[Any, ...]]) -> list[pa.Array]:
    codec = RowCodec(schema)
    return codec.to_arrow([codec.encode(row) for row in rows])


def to_spark(spark: Any, schema: Schema, columns: list[pa.Array]) -> Any:
    """A DataFrame with these columns, `n` numbering the rows, in one partition.

    PySpark takes no year-month and no calendar interval from Arrow: they travel as numbers.
    """
    arrays, kinds, select = [], [], ["n"]
    for field, array in zip(schema.fields, columns, strict=True):
        name, kind = field.name, str(field.type)
        if kind == "interval":
            cells = array.to_pylist()
            array = pa.array(
                [c and {"m": c.months, "d": c.days, "us": c.nanoseconds // 1000} for c in cells],
                pa.struct([("m", pa.int32()), ("d", pa.int32()), ("us", pa.int64())]),
            )
            seconds = f"cast({name}.us as decimal(18,0)) / 1000000"
            parts = f"0, {name}.m, 0, {name}.d, 0, 0, cast({seconds} as decimal(18,6))"
            select.append(f"if({name} is null, null, make_interval({parts})) as {name}")
        elif kind.startswith("interval year"):
            select.append(f"make_ym_interval(0, {name}) as {name}")
        else:
            select.append(f"`{name}`")
        arrays.append(array)
        kinds.append(f"`{name}` {IN_ARROW_FOR_SPARK.get(kind, kind)}")
    numbers = pa.array(range(len(arrays[0])), pa.int64())
    table = pa.table([numbers, *arrays], ["n", *schema.names])
    frame = spark.createDataFrame(table, ", ".join(["n long", *kinds]))
    return frame.coalesce(1).selectExpr(*select)


def spark_values(frame: Any, *expressions: str) -> list[list[int]]:
    """The values of SQL expressions for each row, one list an expression."""
    named = [f"{text} as e{i}" for i, text in enumerate(expressions)]
    rows = frame.selectExpr("n", *named).toArrow().sort_by("n")
    return [rows.column(i + 1).to_pylist() for i in range(len(expressions))]


@pytest.mark.spark
def test_both_hashes_equal_sparks_for_every_type(spark: Any, seed: int) -> None:
    rng = Random(seed)
    columns = columns_of(SCHEMA, [random_row(SCHEMA, rng) for _ in range(2_000)])
    frame = to_spark(spark, SCHEMA, columns)
    names = SCHEMA.names
    theirs = spark_values(frame, *[f"{f}({n})" for n in names for f in ("hash", "xxhash64")])
    wrong = []
    for number, column in enumerate(columns):
        if murmur3([column]).tolist() != theirs[2 * number]:
            wrong.append(f"hash({TYPES[number]})")
        if xxhash64([column]).tolist() != theirs[2 * number + 1]:
            wrong.append(f"xxhash64({TYPES[number]})")
    assert wrong == []


@pytest.mark.spark
def test_both_hashes_equal_sparks_for_many_columns_at_once(spark: Any, seed: int) -> None:
    rng = Random(seed)
    columns = columns_of(SCHEMA, [random_row(SCHEMA, rng, 0.4) for _ in range(500)])
    every = ", ".join(SCHEMA.names)
    frame = to_spark(spark, SCHEMA, columns)
    theirs = spark_values(frame, f"hash({every})", f"xxhash64({every})")
    assert murmur3(columns).tolist() == theirs[0]
    assert xxhash64(columns).tolist() == theirs[1]


@pytest.mark.spark
def test_both_hashes_equal_sparks_for_strings_of_every_length(spark: Any, seed: int) -> None:
    rng = Random(seed)
    lengths = [*range(71), 100, 127, 128, 1_000, 4_097, 100_001]
    texts = [chr(rng.randint(32, 126)) * n for n in lengths]
    texts += ["".join(chr(rng.randint(128, 0x24F)) for _ in range(n)) for n in range(71)]
    texts += [random_text(rng, 300) for _ in range(300)]
    rng.shuffle(texts)
    column = pa.array(texts, pa.string())
    frame = to_spark(spark, parse_schema("s string"), [column])
    theirs = spark_values(frame, "hash(s)", "xxhash64(s)", "hash(cast(s as binary))")
    assert murmur3([column]).tolist() == theirs[0]
    assert xxhash64([column]).tolist() == theirs[1]
    assert murmur3([column.cast(pa.binary())]).tolist() == theirs[2]


@pytest.mark.spark
def test_equal_lengths_take_the_fast_path_to_the_same_hash(spark: Any, seed: int) -> None:
    rng = Random(seed)
    names = [f"s{n}" for n in range(71)]
    rows = [tuple(rng.randbytes(n) for n in range(71)) for _ in range(20)]
    schema = parse_schema(", ".join(f"{n} binary" for n in names))
    columns = columns_of(schema, rows)
    theirs = spark_values(
        to_spark(spark, schema, columns),
        *[f"{f}({n})" for n in names for f in ("hash", "xxhash64")],
    )
    assert [murmur3([c]).tolist() for c in columns] == theirs[0::2]
    assert [xxhash64([c]).tolist() for c in columns] == theirs[1::2]


@pytest.mark.spark
@pytest.mark.parametrize("num_routing", [0, 1, 3, len(TYPES)])
def test_the_sql_text_computes_the_key_hash_in_spark(
    spark: Any, seed: int, num_routing: int
) -> None:
    rng = Random(seed)
    columns = columns_of(SCHEMA, [random_row(SCHEMA, rng, 0.3) for _ in range(200)])
    frame = to_spark(spark, SCHEMA, columns)
    sql = spark_hash.spark_sql_hash(SCHEMA.names, num_routing)
    assert key_hashes(columns, num_routing).tolist() == spark_values(frame, sql)[0]


@pytest.mark.spark
def test_the_sql_text_holds_for_sixty_four_nullable_columns(spark: Any, seed: int) -> None:
    rng = Random(seed)
    schema = parse_schema(", ".join(f"`c {i}` int" for i in range(64)))
    columns = columns_of(schema, [random_row(schema, rng, 0.5) for _ in range(50)])
    sql = spark_hash.spark_sql_hash(schema.names, 64)
    theirs = spark_values(to_spark(spark, schema, columns), sql)
    assert key_hashes(columns, 64).tolist() == theirs[0]


@pytest.mark.spark
def test_a_key_without_columns_has_the_same_hash_in_spark(spark: Any) -> None:
    sql = spark_hash.spark_sql_hash([], 0)
    theirs = [row[0] for row in spark.range(2).selectExpr(sql).collect()]
    assert key_hashes([], 0, 2).tolist() == theirs
    assert [KeyHasher(parse_schema(""), 0).hash_row(())] * 2 == theirs


@pytest.mark.spark
def test_rows_go_to_the_partition_spark_puts_them_in(spark: Any, seed: int) -> None:
    rng = Random(seed)
    schema = parse_schema("a string, b long")
    columns = columns_of(schema, [random_row(schema, rng) for _ in range(300)])
    frame = to_spark(spark, schema, columns).repartition(7, "a", "b")
    theirs = spark_values(frame, "spark_partition_id()")[0]
    assert partition_of(key_hashes(columns, 2), 7).tolist() == theirs


@given(rng=st.randoms(use_true_random=False), kind=st.sampled_from(TYPES))
def test_row_by_row_equals_by_columns(rng: Random, kind: str) -> None:
    schema = parse_schema(f"a {kind}, b {rng.choice(TYPES)}")
    codec, hasher = RowCodec(schema), KeyHasher(schema, rng.randint(0, 2))
    rows = [codec.encode(random_row(schema, rng, 0.2)) for _ in range(5)]
    assert [hasher.hash_row(row) for row in rows] == hasher.hash_columns(
        codec.to_arrow(rows)
    ).tolist()


@pytest.mark.parametrize("kind", ["long", "string", "int", "decimal(38,2)"])
@given(rng=st.randoms(use_true_random=False))
def test_one_column_row_by_row_equals_by_columns(kind: str, rng: Random) -> None:
    schema = parse_schema(f"a {kind}")
    codec, hasher = RowCodec(schema), KeyHasher(schema, 1)
    rows = [codec.encode((random_cell(schema.fields[0].type, rng),)) for _ in range(5)]
    assert [hasher.hash_row(row) for row in rows] == hasher.hash_columns(
        codec.to_arrow(rows)
    ).tolist()


@given(rng=st.randoms(use_true_random=False), kind=st.sampled_from(TYPES))
def test_slices_hash_like_whole_columns(rng: Random, kind: str) -> None:
    schema = parse_schema(f"a {kind}")
    column = columns_of(schema, [random_row(schema, rng) for _ in range(12)])[0]
    start, size = rng.randint(0, 12), rng.randint(0, 12)
    some = column.slice(start, size)
    assert key_hashes([some], 1).tolist() == key_hashes([column], 1)[start : start + size].tolist()


def test_more_rows_than_a_block_hash_like_few() -> None:
    numbers = pa.array(range(100_000), pa.int64())
    texts = pa.array([None if i % 7 == 0 else "x" * (i % 40) for i in range(100_000)])
    whole = key_hashes([numbers, texts], 1)
    for start in (0, 32_767, 32_768, 65_535, 99_999):
        part = key_hashes([numbers.slice(start, 1), texts.slice(start, 1)], 1)
        assert part[0] == whole[start]


def test_a_null_in_another_column_is_another_hash() -> None:
    one, other = key_hashes(columns_of(PAIR, [("k", None), (None, "k")]), 2)
    assert one >> 32 == other >> 32, "Spark's own hash skips nulls"
    assert one != other


def test_nan_is_one_key_and_minus_zero_is_zero() -> None:
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x7FF8000000000000], np.uint64)
    numbers = np.append(bits.view(np.float64), [0.0, -0.0])
    for kind in (pa.float64(), pa.float32()):
        hashes = key_hashes([pa.array(numbers.astype(kind.to_pandas_dtype()))], 1).tolist()
        assert len(set(hashes[:3])) == 1
        assert hashes[3] == hashes[4] != hashes[0]


def test_the_top_half_is_the_hash_of_the_routing_columns() -> None:
    columns = columns_of(PAIR, [("a", "b"), ("a", "c"), (None, "c")])
    hashes = key_hashes(columns, 1)
    assert (hashes >> 32).tolist() == murmur3(columns[:1]).tolist()
    assert partition_of(hashes, 5).tolist() == [h % 5 for h in murmur3(columns[:1]).tolist()]


def test_known_answers_hold_on_every_machine() -> None:
    # From Spark 4.3: SELECT hash(1L), xxhash64(1L), hash('Sankar'), xxhash64('Sankar').
    long, text = pa.array([1]), pa.array(["Sankar"])
    found = [int(f([c])[0]) for c in (long, text) for f in (murmur3, xxhash64)]
    assert found == [-1712319331, -7001672635703045582, -552838627, -1489153969659489241]
    assert key_hashes([text], 1).tolist() == [-2374423819950049540]


def test_no_rows_have_no_hashes() -> None:
    columns = columns_of(SCHEMA, [])
    assert key_hashes(columns, 2).tolist() == []
    assert murmur3(columns).tolist() == xxhash64(columns).tolist() == []


def test_murmur3_of_bytes_is_unsigned_and_sign_extends_what_is_left_over() -> None:
    assert murmur3_bytes(b"\xff", 42) != murmur3_bytes(b"\x7f", 42)
    column = pa.array([b"\xff", b"abc\x80\x81"], pa.binary())
    ours = [murmur3_bytes(value, 42) for value in column.to_pylist()]
    assert murmur3([column]).view(np.uint32).tolist() == ours


def test_hashing_nothing_is_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="at least one column"):
        murmur3([])


def test_more_than_sixty_four_key_columns_are_refused() -> None:
    names = [f"c{i}" for i in range(65)]
    with pytest.raises(errors.InvalidArgument, match="at most 64 columns"):
        spark_hash.spark_sql_hash(names, 1)
    with pytest.raises(errors.InvalidArgument, match="at most 64 columns"):
        key_hashes([pa.array([1])] * 65, 1)
    with pytest.raises(errors.InvalidArgument, match="at most 64 columns"):
        KeyHasher(parse_schema(", ".join(f"{n} int" for n in names)), 1)


def test_more_routing_columns_than_columns_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="2 routing columns of 1"):
        key_hashes([pa.array([1])], 2)


@pytest.mark.parametrize("kind", ["map<int,int>", "variant", "void", "string collate UNICODE"])
def test_a_schema_that_cannot_be_a_key_gets_no_hasher(kind: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="'k' cannot be a key"):
        KeyHasher(parse_schema(f"k {kind}"), 1)


def test_arrow_types_that_are_no_key_types_are_refused() -> None:
    with pytest.raises(errors.InvalidArgument, match="no hash"):
        murmur3([pa.array([{1: 2}], pa.map_(pa.int32(), pa.int32()))])
