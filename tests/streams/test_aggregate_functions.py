"""The table of aggregate functions: every place that has to know a function knows each row."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aggregate_calls import CALLS, OUTSIDE

from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates.functions import (
    BY_NAME,
    BY_NODE,
    FUNCTIONS,
    AggregateFunction,
    unsupported_call,
)
from holdfast.streams.aggregates.merging import KINDS, merge_table
from holdfast.streams.aggregates.stored import stored_aggregates
from holdfast.streams.tasks.sliding import SlidingWindows
from holdfast.testing import StateTestDriver, WindowedQuery
from holdfast.testing._aggregates import parse_aggregate
from holdfast.types import Field, Schema, StructType, parse_schema

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = parse_schema(
    "n long, i int, x double, d decimal(12,2), s string, u long, flag boolean, k string"
)
EACH = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.name)


def _rows(rnd: random.Random, count: int) -> pa.Table:
    def some(cell: Any) -> Any:
        return cell if rnd.random() < 0.8 else None

    unique = rnd.sample(range(count), count)
    rows = [
        (
            some(rnd.randrange(-50, 50)),
            some(rnd.randrange(2**31)),
            some(rnd.uniform(-9, 9)),
            some(Decimal(rnd.randrange(10**6)) / 100),
            some(rnd.choice("abc")),
            unique[at],
            some(rnd.random() < 0.5),
            "k",
        )
        for at in range(count)
    ]
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA.arrow
    )


def _folded(call: str, rows: pa.Table, order: Iterator[int]) -> Any:
    """The value of a call over rows that come one by one."""
    aggregate = parse_aggregate("a", call, {field.name: field for field in SCHEMA})
    names = [field.name for field in aggregate.fields]
    columns = [rows.column(name).combine_chunks() for name in aggregate.inputs or ["u"]]
    of_rows = pa.table(dict(zip(names, aggregate.of_rows(columns), strict=True)))
    schema = pa.schema([pa.field(field.name, field.type.arrow) for field in aggregate.fields])
    cells = zip(aggregate.nothing, schema, strict=True)
    state = pa.table([pa.array([cell], field.type) for cell, field in cells], schema)
    for at in order:
        row = of_rows.slice(at, 1)
        assert row.schema.types == schema.types, "the columns have the types the table says"
        state = merge_table([aggregate.merge], row, state, ansi=True)
    (value,) = aggregate.finish([state.column(name).combine_chunks() for name in names]).to_pylist()
    return sorted(value) if isinstance(value, list) and "set" in call else value


# -- the table itself --------------------------------------------------------------------------


def test_each_name_and_each_class_of_spark_has_one_row() -> None:
    assert len(BY_NAME) == sum(len(function.names) for function in FUNCTIONS)
    assert len(BY_NODE) == len(FUNCTIONS)
    assert all(name == name.lower() for name in BY_NAME)


@EACH
def test_each_function_has_calls_that_the_tests_go_through(function: AggregateFunction) -> None:
    assert CALLS[function.name]
    assert set(CALLS) == {each.name for each in FUNCTIONS}


def test_each_way_to_merge_is_that_of_some_function() -> None:
    columns = {field.name: field for field in SCHEMA}
    calls = [call for calls in CALLS.values() for call in calls]
    merges = {parse_aggregate("a", call, columns).merge.kind for call in calls}
    assert merges == set(KINDS)


@EACH
def test_a_function_that_goes_by_panes_does_not_mind_the_order_of_rows(
    function: AggregateFunction,
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    rows = _rows(rnd, 12)
    orders = [range(12), *(rnd.sample(range(12), 12) for _ in range(20))]
    for call in CALLS[function.name]:
        values = [_folded(call, rows, iter(order)) for order in orders]
        if not function.by_order:
            close = [value if isinstance(value, list) else pytest.approx(value) for value in values]
            assert all(value == close[0] for value in values), call
    assert not (function.by_order and function.by_pane)


@pytest.mark.parametrize("function", [f for f in FUNCTIONS if f.by_order], ids=lambda f: f.name)
def test_a_function_that_is_said_to_mind_the_order_of_rows_does(
    function: AggregateFunction,
) -> None:
    rows = pa.Table.from_pylist(
        [dict.fromkeys(SCHEMA.names) | {"n": n, "i": n, "s": str(n), "u": 1} for n in (1, 2)],
        SCHEMA.arrow,
    )
    call = CALLS[function.name][0]
    assert _folded(call, rows, iter([0, 1])) != _folded(call, rows, iter([1, 0]))


# -- whoever has to know a function ------------------------------------------------------------


@pytest.mark.parametrize("name", BY_NAME)
def test_the_test_driver_runs_a_function_by_each_of_its_names(name: str) -> None:
    function = BY_NAME[name]
    call = CALLS[function.name][0].replace(function.name, name, 1)
    query = WindowedQuery("k", aggs={"value": call})
    driver = StateTestDriver(query, schema=SCHEMA.ddl())
    (row,) = driver.push([(1, 2, 3.0, Decimal(4), "a", 5, True, "k")])
    assert row.k == "k"
    assert driver.state().keys() == {("k",)}
    driver.close()


@EACH
def test_windows_go_by_panes_where_the_table_allows_it(function: AggregateFunction) -> None:
    columns = {field.name: field for field in SCHEMA}
    aggregate = parse_aggregate("a", CALLS[function.name][0], columns)
    assert aggregate.by_pane == function.by_pane
    assert SlidingWindows(10, 2, 0).is_by_pane
    assert not SlidingWindows(10, 10, 0).is_by_pane
    assert not SlidingWindows(1000, 1, 0).is_by_pane


@EACH
def test_a_function_is_in_the_documentation_and_in_refusals(function: AggregateFunction) -> None:
    page = (ROOT / "docs" / "streams.md").read_text()
    assert all(f"`{name}`" in page for name in function.names)
    assert re.search(
        rf"Supported are .*\b{function.name}\b", str(unsupported_call("median(x)", "why"))
    )


@EACH
def test_an_input_of_another_type_is_refused_by_its_type(function: AggregateFunction) -> None:
    columns = {field.name: field for field in parse_schema("s string, a array<long>")}
    for number, takes in enumerate(function.takes, 1):
        for column, field in columns.items():
            inputs = ["s"] * len(function.takes)
            inputs[number - 1] = column
            call = f"{function.name}({', '.join(inputs)})"
            if all(take.allows(columns[name].type) for take, name in zip(function.takes, inputs)):  # noqa: B905
                parse_aggregate("a", call, columns)
            elif not takes.allows(field.type):
                with pytest.raises(InvalidArgument, match=r"is not supported .* an input is "):
                    parse_aggregate("a", call, columns)


@pytest.mark.parametrize("call", OUTSIDE)
def test_what_is_no_row_is_refused_with_what_there_is(call: str) -> None:
    with pytest.raises(InvalidArgument, match=r"Supported are .* avg, .* sum, "):
        parse_aggregate("a", call, {field.name: field for field in SCHEMA})


# -- state that is repaired --------------------------------------------------------------------


@EACH
def test_stored_columns_are_told_by_the_call_and_their_types(function: AggregateFunction) -> None:
    columns = {field.name: field for field in SCHEMA}
    for call in CALLS[function.name]:
        fields = parse_aggregate("a", call, columns).fields
        others = (Field("ab", fields[0].type), Field("z", fields[0].type))
        values = Schema(StructType((*others, *fields)))
        definition = {"aggregate a": call, "aggregate ab": "min(n)", "aggregate z": "max(n)"}
        found = {each.name: each for each in stored_aggregates(definition, values)}
        assert found["a"].columns == tuple(field.name for field in fields), call
        assert found["a"].call == call
        renamed = Schema(StructType(tuple(Field(f"{f.name}_", f.type) for f in fields)))
        names = ", ".join(renamed.names)
        [kept] = stored_aggregates({"aggregate a": f"{call} kept in {names}"}, renamed)
        assert kept.columns == tuple(renamed.names)


def test_columns_that_cannot_be_told_apart_come_as_one() -> None:
    values = parse_schema("a_sum double, a_count long, b long, c string")
    definition = {"operator": "x", "aggregate a": "avg(n)", "aggregate b": "secret(n)"}
    known, rest = stored_aggregates(definition, values)
    assert (known.name, known.columns) == ("a", ("a_sum", "a_count"))
    assert (rest.parts, rest.columns, rest.nothing) == (None, ("b", "c"), (None, None))
    assert rest.cells_of(1) is None
    assert stored_aggregates({"operator": "x"}, values) == ()


@EACH
def test_the_columns_of_a_value_end_in_it_and_merge_on_as_if_rows_had_made_them(
    function: AggregateFunction,
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    columns = {field.name: field for field in SCHEMA}
    for call in CALLS[function.name]:
        aggregate = parse_aggregate("a", call, columns)
        values = Schema(StructType(aggregate.fields))
        [stored] = stored_aggregates({"aggregate a": call}, values)
        if not stored.is_set_by_value:
            assert len(aggregate.fields) > 1
            continue
        rows = _rows(rnd, 8)
        value = _folded(call, rows.slice(0, 4), iter(range(4)))
        cells = stored.cells_of(value)
        if cells is None:
            assert value is None, call
            continue
        arrays = [pa.array([cell], f.type.arrow) for cell, f in zip(cells, values, strict=True)]
        assert aggregate.finish(arrays).to_pylist() == [value]
        given = [rows.column(name).combine_chunks() for name in aggregate.inputs or ["u"]]
        of_rows = pa.table(dict(zip(values.names, aggregate.of_rows(given), strict=True)))
        state = pa.table(arrays, values.names)
        for at in range(4, 8):
            state = merge_table([aggregate.merge], of_rows.slice(at, 1), state, ansi=True)
        finished = [state.column(name).combine_chunks() for name in values.names]
        (after,) = aggregate.finish(finished).to_pylist()
        after = sorted(after) if isinstance(after, list) and "set" in call else after
        whole = _folded(call, rows, iter(range(8)))
        assert after == (pytest.approx(whole) if isinstance(whole, float) else whole), call
