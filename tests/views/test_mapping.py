"""Spark's types in the databases: every one has a place, and comes back as it was."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_rows import ALL, all_types, random_cell

from holdfast.errors import InvalidArgument
from holdfast.types import (
    AtomicType,
    DataType,
    Field,
    MapType,
    RowCodec,
    Schema,
    StructType,
    parse_schema,
)
from holdfast.views.cassandra.types import Pairs, cql
from holdfast.views.cells import plain_cells
from holdfast.views.dynamodb.types import attribute, item_bytes
from holdfast.views.mapping import LEAVES, NESTED

DOCS = Path(__file__).parents[2] / "docs" / "views.md"


def _has_cells(kind: DataType) -> bool:
    """Whether there are any, and Python can hash the keys of its maps."""
    kinds = list(kind.walk())
    fields = [f for each in kinds if isinstance(each, StructType) for f in each.fields]
    keys = [part for each in kinds if isinstance(each, MapType) for part in each.key.walk()]
    never = any(f.type == AtomicType("void") and not f.nullable for f in fields)
    return not never and not any(isinstance(part, MapType) for part in keys)


def _can_be_stored(kind: DataType) -> bool:
    if not _has_cells(kind):
        return False
    try:
        Schema(StructType((Field("c", kind),))).check_value()
    except InvalidArgument:
        return False
    return True


stored_types = all_types.filter(_can_be_stored)


def _plain(kind: DataType, cells: list[Any]) -> list[Any]:
    codec = RowCodec(Schema(StructType((Field("c", kind),))))
    (column,) = codec.to_arrow([codec.encode((cell,)) for cell in cells])
    return plain_cells(kind, column)


@given(stored_types, st.integers(0, 2**32))
def test_cells_of_every_type_come_back_from_attributes(kind: DataType, seed: int) -> None:
    rnd = Random(seed)
    mapped = attribute(kind)
    assert mapped.encode is not None
    assert mapped.decode is not None
    for cell in _plain(kind, [random_cell(kind, rnd) for _ in range(4)]):
        assert repr(mapped.decode(mapped.encode(cell))) == repr(cell)


@given(stored_types, st.integers(0, 2**32))
def test_no_list_or_map_for_cassandra_holds_a_null(kind: DataType, seed: int) -> None:
    rnd = Random(seed)
    encode = cql(kind).encode
    for cell in _plain(kind, [random_cell(kind, rnd) for _ in range(4)]):
        if cell is not None and encode is not None:
            _check_no_null(encode(cell))


def _check_no_null(cell: Any) -> None:
    if isinstance(cell, Pairs):
        cell = [part for pair in cell.items() for part in pair]
    if isinstance(cell, list):
        assert None not in cell
    if isinstance(cell, list | tuple):
        for part in cell:
            _check_no_null(part)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("array<int>", "frozen<list<frozen<tuple<int>>>>"),
        ("map<string,double>", "frozen<map<text, frozen<tuple<double>>>>"),
        ("struct<a:int,b:struct<c:timestamp>>", "frozen<tuple<int, frozen<tuple<bigint>>>>"),
        ("struct<>", "boolean"),
    ],
)
def test_nested_types_are_frozen_in_cassandra(kind: str, name: str) -> None:
    assert cql(parse_schema(f"c {kind}").fields[0].type).type == name


def test_numbers_that_dynamodb_lacks_are_text() -> None:
    encode = attribute(parse_schema("c double").fields[0].type).encode
    assert encode is not None
    cells = [1.5, float("nan"), float("-inf"), -0.0, 1e200, 0.0]
    assert [encode(cell) for cell in cells] == [
        {"N": "1.5"}, {"S": "NaN"}, {"S": "-Infinity"}, {"S": "-0.0"}, {"S": "1e+200"},
        {"N": "0.0"},
    ]  # fmt: skip


def test_the_size_of_an_item_counts_names_and_nested_cells() -> None:
    item = {"a": {"S": "é"}, "bc": {"L": [{"N": "12345"}, {"NULL": True}]}, "d": {"B": b"xyz"}}
    assert item_bytes(item) == (1 + 2) + (2 + 3 + (1 + 4) + (1 + 1)) + (1 + 3)


def test_every_type_is_in_the_tables_of_the_docs() -> None:
    text = DOCS.read_text()
    rows = [*LEAVES.values(), *NESTED.values()]
    lines = [
        f"| {leaf.spark} | {leaf.cql} | {leaf.dynamodb} | {leaf.meaning} |".replace("  |", " |")
        for leaf in rows
    ]
    found = {re.sub(r"`", "", line) for line in text.splitlines()}
    assert [line for line in lines if line not in found] == []


def test_every_type_that_can_be_stored_is_mapped() -> None:
    assert all(cql(field.type).type for field in ALL)
    assert {attribute(field.type).type for field in ALL} == {
        "BOOL",
        "N",
        "S",
        "B",
        "L",
        "M",
        "NULL",
    }


def test_decimals_keep_their_scale() -> None:
    mapped = attribute(parse_schema("c decimal(10,2)").fields[0].type)
    assert mapped.encode is not None
    assert mapped.decode is not None
    assert mapped.encode(Decimal("1.50")) == {"N": "1.50"}
    assert str(mapped.decode({"N": "1.5"})) == "1.50"
