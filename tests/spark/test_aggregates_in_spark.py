"""The table of aggregate functions as Spark runs it: each call, batch by batch and all at once."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from aggregate_calls import CALLS
from aggregates import AGGREGATES
from outcomes import close, plain
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from holdfast.spark.interop.analysis import AggregateCall, analyze_aggregation
from holdfast.spark.operators.functions import Partials, take_apart
from holdfast.streams.aggregates.functions import BY_NAME, FUNCTIONS
from holdfast.streams.aggregates.merging import merge_table
from holdfast.testing._aggregates import parse_aggregate
from holdfast.types import parse_schema

SCHEMA = "n long, i int, x double, d decimal(12,2), s string, u long, flag boolean, b int"
_BATCHES = 4
_ROWS = 40
_TEXTS = [call for calls in CALLS.values() for call in calls]
_FILTERED = [f"{call} FILTER (WHERE i > 0)" for call in _TEXTS]


def _rows(rnd: random.Random) -> list[tuple[Any, ...]]:
    def some(cell: Any) -> Any:
        return cell if rnd.random() < 0.8 else None

    unique = rnd.sample(range(_ROWS), _ROWS)
    return [
        (
            some(rnd.randrange(-50, 50)),
            some(rnd.randrange(-9, 9)),
            some(rnd.uniform(-9, 9)),
            some(Decimal(rnd.randrange(10**6)) / 100),
            some(rnd.choice("abc")),
            unique[at],
            some(rnd.random() < 0.5),
            at * _BATCHES // _ROWS,
        )
        for at in range(_ROWS)
    ]


def _calls(frame: DataFrame, texts: list[str]) -> list[tuple[AggregateCall, Partials]]:
    after = frame.groupBy().agg(*[F.expr(text).alias(f"a{at}") for at, text in enumerate(texts)])
    calls = analyze_aggregation(after, 0).calls
    assert len(calls) == len(texts)
    return [
        (call, take_apart(call, lambda suffix, at=at: f"a {at}{suffix}"))
        for at, call in enumerate(calls)
    ]


def _same(expected: Any, found: Any) -> bool:
    return bool(close(plain(expected), plain(found)))


@pytest.mark.spark
@pytest.mark.any_spark
def test_merged_batches_end_in_the_value_that_spark_gives_all_rows(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rows = _rows(random.Random(seed))
    # One partition, so that rows have an order.
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1).cache()
    request.addfinalizer(frame.unpersist)
    texts = [*_TEXTS, *_FILTERED]
    taken = [partials for _, partials in _calls(frame, texts)]
    columns = [column.alias(name) for partials in taken for name, column in partials.columns]
    merges = [partials.merge for partials in taken]
    state = frame.limit(0).agg(*columns).toArrow()
    for number in range(_BATCHES):
        batch = frame.filter(F.col("b") == number).agg(*columns).toArrow()
        state = merge_table(merges, batch, state, ansi=True)
    ended = spark.createDataFrame(state.cast(batch.schema)).select(*[p.result for p in taken])
    wanted = frame.agg(*map(F.expr, texts))
    assert [f.dataType for f in ended.schema] == [f.dataType for f in wanted.schema]
    (found,), (expected,) = ended.collect(), wanted.collect()
    wrong = [
        f"{text}: {a} expected, got {b}"
        for text, a, b in zip(texts, expected, found, strict=True)
        if not _same(a, b)
    ]
    assert wrong == []


@pytest.mark.spark
@pytest.mark.any_spark
def test_the_columns_of_one_row_and_of_none_are_those_that_spark_makes(spark: SparkSession) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    rows = _rows(random.Random(seed))[:12]
    frame = spark.createDataFrame(rows, SCHEMA).coalesce(1)
    taken = [partials for _, partials in _calls(frame, _TEXTS)]
    columns = [column.alias(name) for partials in taken for name, column in partials.columns]
    made = frame.groupBy("u").agg(*columns).orderBy("u").drop("u").toArrow()
    nothing = frame.limit(0).agg(*columns).toArrow()
    fields = {field.name: field for field in parse_schema(SCHEMA)}
    table = frame.orderBy("u").toArrow()
    for text, partials in zip(_TEXTS, taken, strict=True):
        aggregate = parse_aggregate("a", text, fields)
        inputs = [table.column(name).combine_chunks() for name in aggregate.inputs or ["u"]]
        own = zip(aggregate.fields, aggregate.of_rows(inputs), aggregate.nothing, strict=True)
        for name, (field, column, empty) in zip(partials.merge.columns, own, strict=True):
            theirs = made.column(name).combine_chunks()
            assert _type(theirs.type) == _type(field.type.arrow), (text, name)
            assert _type(column.type) == _type(field.type.arrow), (text, name)
            pairs = zip(theirs.to_pylist(), column.to_pylist(), strict=True)
            assert all(_same(a, b) for a, b in pairs), (text, name, theirs, column)
            assert nothing.column(name).to_pylist() == [empty], (text, name)


def _type(kind: pa.DataType) -> pa.DataType:
    """An Arrow type, of lists only what is in them: whether that may be null is Spark's word."""
    return kind.value_type if pa.types.is_list(kind) else kind


def test_the_random_queries_draw_each_function_and_know_its_width() -> None:
    drawn = set()
    for text, asked in AGGREGATES.items():
        function = BY_NAME[text.partition("(")[0]]
        drawn.add(function.name)
        assert function.by_order or not asked.by_arrival
        call = CALLS[function.name][-1]
        if len(asked.kept) == 1 and not text.startswith("sum"):
            fields = {field.name: field for field in parse_schema(SCHEMA)}
            assert asked.kept[0].ours_width == len(parse_aggregate("a", call, fields).fields), text
    assert drawn == {function.name for function in FUNCTIONS}
