"""Schemas mean the same here as in Spark, however they are written down."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import ALL, schemas, structs

from holdfast import errors
from holdfast.types import (
    AtomicType,
    DataType,
    IntervalType,
    RowCodec,
    Schema,
    StructType,
    parse_schema,
)

GOOD_DDL = [
    "",
    "  ",
    "user string, total long",
    "a: int",
    "a:int,b:string not null",
    "`odd name` array<struct<x:int,y:decimal(10,2)>> NOT NULL COMMENT 'c'",
    "a byte,b tinyint,c short,d smallint,e int,f integer,g long,h bigint,i float,j real",
    "k double,l boolean,m binary,n date,o timestamp_ltz,p timestamp_ntz,q timestamp",
    "a decimal, b dec(5), c numeric(38,38), d DECIMAL( 7 , 2 )",
    "a string, b char(3), c character(3), d varchar(4)",
    "a string collate UNICODE, b string collate utf8_binary, c string collate UTF8_LCASE",
    "a array<string collate UNICODE_CI>, b struct<c:string collate UNICODE>",
    "a map<string collate UTF8_LCASE,array<string collate UNICODE>>",
    "a time, b time(0), c time(6), d time without time zone",
    "a timestamp without time zone, b timestamp with local time zone",
    "a interval year, b interval month, c interval year to month",
    "a interval day, b interval hour, c interval minute, d interval second",
    "a interval day to hour, b interval day to minute, c interval dAy To SECOND",
    "a interval hour to minute, b interval hour to second, c interval minute to second",
    "a interval, b void, c variant",
    "a map<int,array<struct<x:array<int>>>>",
    "a struct<>, b struct<x int, y: string not null comment 'z'>",
    "a array < int > ",
    "struct<a:int,b:string>",
    "timestamp timestamp, select int, array array<int>, interval interval day, struct int",
    "a INT, A int",
    "1a int, `a.b` int, `a``b` int, `` int",
    "a string /* c */, -- x\n b int",
    "a long comment 'it''s \\n \\' \\u0041 x', b int comment \"q\"\"r\"",
    "a int comment r'x\\n', b int comment 'x' 'y'",
    "a int comment 'tab\\t\\0 \\% \\_ \\101 \\x'",
]
BAD_DDL = [
    "int",
    "a",
    "a int,",
    ", a int",
    "a int b int",
    "a array<int",
    "a array<int>>",
    "a map<int>",
    "a struct<x>",
    "a decimal(3,5)",
    "a decimal(39,1)",
    "a decimal(5,-1)",
    "a decimal(10,2",
    "a decimal(1,1,1)",
    "a time(10)",
    "a timestamp(3)",
    "a timestamp_ntz(9)",
    "a interval month to year",
    "a interval month to month",
    "a interval minute to hour",
    "a interval year to day",
    "a interval days",
    "a char",
    "a varchar",
    "a string(5)",
    "a string()",
    "a binary(5)",
    "a null",
    "a text",
    "a int default 3",
    "a int comment 'c' not null",
    "a int comment c",
    "a int null",
    "é int",
    "a-b int",
    "a.b int",
    "$a int",
    "a::int",
    "a int unsigned",
]
REFUSED_HERE_ONLY = [
    "a geometry(4326)",
    "a map<void,int>",
    "a int, a string",
    "a struct<x:int,x:int>",
    "_hash int",
]


# -- schemas as Spark reads them -------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize("ddl", GOOD_DDL)
def test_ddl_means_what_it_means_in_spark(spark: Any, ddl: str) -> None:
    from pyspark.sql.types import _parse_datatype_string

    theirs = _parse_datatype_string(ddl)
    ours = parse_schema(ddl)
    assert ours.json() == json.loads(theirs.json())
    assert parse_schema(theirs) == parse_schema(theirs.json()) == ours


@pytest.mark.spark
@pytest.mark.parametrize("ddl", GOOD_DDL)
def test_spark_reads_our_json_and_our_ddl(spark: Any, ddl: str) -> None:
    from pyspark.sql.types import StructType as SparkStruct
    from pyspark.sql.types import _parse_datatype_string

    theirs = _parse_datatype_string(ddl)
    ours = parse_schema(ddl)
    assert SparkStruct.fromJson(ours.json()) == theirs
    assert SparkStruct.fromDDL(ours.ddl()) == theirs


@pytest.mark.spark
@pytest.mark.parametrize("ddl", [d for d in BAD_DDL if d != "int"])
def test_what_is_refused_here_is_refused_by_spark(spark: Any, ddl: str) -> None:
    from pyspark.sql.types import _parse_datatype_string

    with pytest.raises(Exception, match=r"\S"):
        _parse_datatype_string(ddl)


@pytest.mark.spark
@pytest.mark.parametrize("ddl", GOOD_DDL)
def test_arrow_types_are_those_pyspark_gives(spark: Any, ddl: str) -> None:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType as SparkStruct
    from pyspark.sql.types import _parse_datatype_string

    for field, theirs in zip(parse_schema(ddl).fields, _parse_datatype_string(ddl), strict=True):
        if str(field.type).startswith(("char", "varchar")) or has_no_arrow_type(field.type):
            continue
        expected = to_arrow_schema(SparkStruct([theirs]), timezone="UTC").field(0)
        assert parse_schema(ddl).arrow.field(field.name).equals(expected)


def has_no_arrow_type(kind: DataType) -> bool:
    """Year-month and calendar intervals: PySpark itself cannot carry them."""
    return kind == AtomicType("interval") or (isinstance(kind, IntervalType) and kind.year_month)


# -- schemas by themselves -------------------------------------------------------------------------


@pytest.mark.parametrize("ddl", BAD_DDL + REFUSED_HERE_ONLY)
def test_a_schema_that_cannot_be_read_is_refused_by_name(ddl: str) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        parse_schema(ddl)
    assert caught.value.condition == "STATE_STORE_INVALID_SCHEMA"


@pytest.mark.parametrize("ddl", GOOD_DDL)
def test_ddl_and_json_read_back_to_an_equal_schema(ddl: str) -> None:
    schema = parse_schema(ddl)
    for again in (schema.ddl(), schema.json(), json.dumps(schema.json()), schema):
        assert parse_schema(again) == schema
        assert parse_schema(again).json() == schema.json()


@given(schemas)
def test_any_schema_survives_ddl_json_and_pickle(schema: Schema) -> None:
    for again in (parse_schema(schema.ddl()), parse_schema(schema.json())):
        assert again == schema
        assert again.json() == schema.json()
        assert hash(again) == hash(schema)
        assert again.fingerprint() == schema.fingerprint()
    assert pickle.loads(pickle.dumps(schema)) == schema


@given(structs(st.sampled_from([f.type for f in ALL.fields])).map(Schema))
def test_an_arrow_schema_reads_back_to_the_same_arrow_schema(schema: Schema) -> None:
    again = parse_schema(schema.arrow)
    assert again.arrow == schema.arrow
    assert again.names == schema.names


@given(schemas, schemas)
def test_different_schemas_have_a_difference_and_another_fingerprint(
    one: Schema, other: Schema
) -> None:
    assert (one == other) == (one.describe_difference(other) == "")
    assert (one == other) == (one.fingerprint() == other.fingerprint())


def test_arrow_schemas_of_other_libraries_become_sparks_types() -> None:
    found = parse_schema(
        pa.schema(
            [
                pa.field("a", pa.large_string(), nullable=False),
                ("b", pa.timestamp("ns", tz="Europe/Berlin")),
                ("c", pa.timestamp("s")),
                ("d", pa.dictionary(pa.int32(), pa.string())),
                ("e", pa.large_list(pa.int8())),
                ("f", pa.binary(16)),
                ("g", pa.date64()),
                ("h", pa.time32("ms")),
                ("i", pa.duration("ms")),
            ]
        )
    )
    assert found.ddl() == (
        "a string NOT NULL, b timestamp, c timestamp_ntz, d string, e array<byte>, f binary, "
        "g date, h time(6), i interval day to second"
    )


@pytest.mark.parametrize("kind", [pa.uint64(), pa.float16(), pa.decimal256(50, 2)])
def test_arrow_types_that_spark_has_not_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(errors.InvalidArgument):
        parse_schema(pa.schema([("a", kind)]))


@pytest.mark.parametrize("given", [None, 3, ["a int"], {"type": "long"}, {"fields": []}, "{", "{}"])
def test_what_is_no_schema_is_refused(given: object) -> None:
    with pytest.raises(errors.InvalidArgument) as caught:
        parse_schema(given)
    assert caught.value.condition == "STATE_STORE_INVALID_SCHEMA"


@pytest.mark.parametrize("name", ["_hash", "_dead", "_expires", "_found", "_hash2"])
def test_names_the_store_uses_itself_are_refused(name: str) -> None:
    with pytest.raises(errors.InvalidArgument, match="reserved"):
        parse_schema(f"{name} int")


def test_comments_and_watermark_delays_do_not_change_the_fingerprint() -> None:
    plain = parse_schema("a timestamp, b int")
    noted = plain.json()
    noted["fields"][0]["metadata"] = {"spark.watermarkDelayMs": 10_000, "comment": "c"}
    assert parse_schema(noted) == plain
    assert parse_schema(noted).fingerprint() == plain.fingerprint()
    assert parse_schema(noted).json() == noted, "but Spark gets them back"


def test_the_fingerprint_never_changes() -> None:
    assert parse_schema("user string, total long").fingerprint() == (
        "11180088caef737b5d0d7db974028642"
    )


def test_a_difference_names_the_columns() -> None:
    one = parse_schema("a int, b string, c long, d array<int>")
    other = parse_schema("a int not null, b binary, e long, d array<int>")
    assert one.describe_difference(other) == (
        "column 'c' is only here; column 'e' is only there; "
        "column 'a' is nullable here and not null there; "
        "column 'b' is string here and binary there"
    )
    swapped = parse_schema("b string, a int, c long, d array<int>")
    assert one.describe_difference(swapped) == (
        "the columns are ordered a, b, c, d here and b, a, c, d there"
    )


@pytest.mark.parametrize(
    ("ddl", "reason"),
    [
        ("k map<int,int>", "map"),
        ("k struct<a:array<map<int,int>>>", "map"),
        ("k variant", "variant"),
        ("k void", "void"),
        ("k string collate UNICODE", "collation"),
        ("k array<string collate UTF8_LCASE>", "collation"),
    ],
)
def test_types_without_equality_cannot_be_keys(ddl: str, reason: str) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"'k' cannot be a key.*{reason}"):
        parse_schema(f"a int, {ddl}").check_key()


def test_every_other_type_can_be_a_key() -> None:
    for field in ALL.fields:
        if not any("map" in str(t) or str(t) in ("variant", "void") for t in field.type.walk()):
            Schema(StructType((field,))).check_key()


def test_every_type_can_be_a_value_but_a_map_keyed_by_maps() -> None:
    ALL.check_value()
    with pytest.raises(errors.InvalidArgument, match="'v' cannot be a value"):
        parse_schema("v array<map<struct<x:map<int,int>>,int>>").check_value()


def test_a_schema_has_a_length_names_and_a_text() -> None:
    schema = parse_schema("user string, `t 1` long not null")
    assert len(schema) == 2
    assert schema.names == ("user", "t 1")
    assert [f.nullable for f in schema] == [True, False]
    assert str(schema) == "user string, `t 1` long NOT NULL"
    assert repr(schema) == "Schema('user string, `t 1` long NOT NULL')"


def test_void_is_nullable_in_arrow_whatever_the_schema_says() -> None:
    # What Spark says of `SELECT array() AS a`.
    empty = {"type": "array", "elementType": "void", "containsNull": False}
    field = {"name": "a", "type": empty, "nullable": False, "metadata": {}}
    schema = parse_schema({"type": "struct", "fields": [field]})
    codec = RowCodec(schema)
    assert codec.from_arrow(codec.to_arrow([codec.encode(([],))])) == [([],)]


def test_intervals_are_months_or_durations() -> None:
    assert IntervalType("year", "month").arrow == pa.int32()
    assert IntervalType("day", "second").arrow == pa.duration("us")
    assert AtomicType("interval").arrow == pa.month_day_nano_interval()


def test_importing_types_does_not_import_pyspark() -> None:
    code = "import sys, holdfast.types; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
