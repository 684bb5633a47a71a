"""Aggregate functions as partial columns: what a batch computes, how it merges, how it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    FractionalType,
    IntegralType,
    MapType,
    StructType,
)

from holdfast.errors import InvalidArgument
from holdfast.spark.interop.analysis import AggregateCall
from holdfast.spark.operators.operator import quote_column
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.aggregates.sketches import header, precision_of

Give = Callable[[str], str]
"""Gives the name of a partial column that ends in what it is called with."""


@dataclass(frozen=True)
class Partials:
    """One aggregate function taken apart.

    `columns` are what Spark computes over a batch; `merge` is how they join the state; `result`
    makes the function's value of them.
    """

    columns: tuple[tuple[str, Column], ...]
    merge: Merge
    result: Column
    later: tuple[str, ...] = ()
    """The columns that state of earlier versions of Holdfast lacks; they may be null."""


def take_apart(call: AggregateCall, give: Give) -> Partials:
    """The partial columns of an aggregate call, with the names given; refused when it has none."""
    if call.distinct:
        raise _refusal(call, "a distinct aggregate would have to keep every value")
    if call.mode == "TRY":
        plain = call.sql.removeprefix("try_")
        raise _refusal(call, f"null in the place of an overflow is not merged; use {plain}")
    build = _FUNCTIONS.get(call.function)
    if build is None:
        raise _refusal(call, f"{call.function} cannot be merged batch by batch")
    return build(call, give)


def _refusal(call: AggregateCall, why: str) -> InvalidArgument:
    known = ", ".join(sorted(_SQL_NAMES))
    return InvalidArgument(
        f"{call.sql} is not supported on a stream: {why}. Supported are {known}. Compute others "
        "from those, or in foreachBatch."
    )


def _input(call: AggregateCall, at: int = 0) -> Column:
    """An input with the call's FILTER worked in: what it filters out becomes null."""
    column = call.inputs[at]
    return column if call.where is None else F.when(call.where, column)


def _one(kind: str, function: Callable[[Column], Column]) -> Callable[..., Partials]:
    """A function whose partial is its own value."""

    def build(call: AggregateCall, give: Give) -> Partials:
        if kind in ("min", "max"):
            _check_ordered(call, call.input_types[0])
        name = give("")
        column = (name, function(_input(call)))
        return Partials((column,), Merge(kind, (name,)), F.col(quote_column(name)))

    return build


def _check_ordered(call: AggregateCall, kind: DataType) -> None:
    if isinstance(kind, (StructType, ArrayType, MapType)):
        why = "it compares structs, arrays or maps, where max_by and min_by go by one column"
        raise _refusal(call, why)


def _sum(call: AggregateCall, give: Give) -> Partials:
    if not isinstance(call.type, (IntegralType, FractionalType)):
        raise _refusal(call, "sums of intervals are not supported")
    if not isinstance(call.type, DecimalType):
        return _one("sum", F.sum)(call, give)
    total, seen = give(""), give("_seen")
    cell = _input(call)
    columns = ((total, F.sum(cell)), (seen, F.max(cell.isNotNull())))
    return Partials(
        columns, Merge("sum_seen", (total, seen)), F.col(quote_column(total)), later=(seen,)
    )


def _count(call: AggregateCall, give: Give) -> Partials:
    name = give("")
    present = call.where if call.where is not None else F.lit(True)
    for cell in call.inputs:
        present = present & cell.isNotNull()
    column = (name, F.count(F.when(present, F.lit(1))))
    return Partials((column,), Merge("count", (name,)), F.col(quote_column(name)))


def _average(call: AggregateCall, give: Give) -> Partials:
    total, count = give("_sum"), give("_count")
    kind = call.input_types[0]
    if isinstance(kind, DecimalType):
        added = F.sum(_input(call))
    elif isinstance(kind, (IntegralType, FractionalType)):
        added = F.sum(_input(call).cast("double"))
    else:
        raise _refusal(call, "averages of intervals are not supported")
    total_column, count_column = F.col(quote_column(total)), F.col(quote_column(count))
    divisor = count_column.cast("decimal(20,0)") if isinstance(kind, DecimalType) else count_column
    result = F.when(count_column > 0, (total_column / divisor).cast(call.type))
    columns = ((total, added), (count, F.count(_input(call))))
    return Partials(columns, Merge("sum_count", (total, count)), result)


def _moments(result: Callable[[Column, Column], Column]) -> Callable[..., Partials]:
    def build(call: AggregateCall, give: Give) -> Partials:
        cell = _input(call).cast("double")
        names = (give("_count"), give("_mean"), give("_square"))
        count = F.count(cell).cast("double")
        columns = (count, F.avg(cell), F.var_pop(cell) * count)
        ended = result(F.col(quote_column(names[0])), F.col(quote_column(names[2])))
        pairs = tuple(zip(names, columns, strict=True))
        return Partials(pairs, Merge("moments", names), ended)

    return build


def _first_or_last(kind: str, function: Callable[..., Column]) -> Callable[..., Partials]:
    def build(call: AggregateCall, give: Give) -> Partials:
        value, seen = give(""), give("_seen")
        boxed = F.struct(call.inputs[0].alias("v"))
        counts = F.lit(True) if call.where is None else call.where
        if call.flags[0]:
            counts = counts & call.inputs[0].isNotNull()
        picked = function(F.when(counts, boxed), ignorenulls=True).getField("v")
        columns = ((value, picked), (seen, F.coalesce(F.max(counts), F.lit(False))))
        return Partials(columns, Merge(kind, (value, seen)), F.col(quote_column(value)))

    return build


def _best_by(
    kind: str, pick: Callable[[Column, Column], Column], best: Callable[[Column], Column]
) -> Callable[..., Partials]:
    def build(call: AggregateCall, give: Give) -> Partials:
        _check_ordered(call, call.input_types[1])
        value, order = give(""), give("_by")
        columns = ((value, pick(call.inputs[0], _input(call, 1))), (order, best(_input(call, 1))))
        return Partials(columns, Merge(kind, (value, order)), F.col(quote_column(value)))

    return build


def _set(call: AggregateCall, give: Give) -> Partials:
    _check_ordered(call, call.input_types[0])
    return _one("set", F.collect_set)(call, give)


def _approximate_count(call: AggregateCall, give: Give) -> Partials:
    cell = _input(call)
    hashes = F.collect_set(F.when(cell.isNotNull(), F.xxhash64(cell)))
    texts = F.transform(hashes, lambda h: F.lpad(F.hex(h), 16, "0"))
    start = F.lit(bytearray(header(precision_of(call.flags[0]))))
    sketch = F.concat(start, F.unhex(F.array_join(texts, "")))
    names = (give(""), give("_sketch"))
    columns = ((names[0], F.size(hashes).cast("long")), (names[1], sketch))
    return Partials(columns, Merge("distinct", names), F.col(quote_column(names[0])))


def _sample(count: Column, square: Column) -> Column:
    return F.when(count > 1, square / (count - 1))


def _population(count: Column, square: Column) -> Column:
    return F.when(count > 0, square / count)


_FUNCTIONS: dict[str, Callable[[AggregateCall, Give], Partials]] = {
    "Sum": _sum,
    "Count": _count,
    "CountIf": _one("count", F.count_if),
    "Average": _average,
    "Min": _one("min", F.min),
    "Max": _one("max", F.max),
    "BoolAnd": _one("min", F.bool_and),
    "BoolOr": _one("max", F.bool_or),
    "BitAndAgg": _one("bit_and", F.bit_and),
    "BitOrAgg": _one("bit_or", F.bit_or),
    "BitXorAgg": _one("bit_xor", F.bit_xor),
    "First": _first_or_last("first", F.first),
    "Last": _first_or_last("last", F.last),
    "VarianceSamp": _moments(_sample),
    "VariancePop": _moments(_population),
    "StddevSamp": _moments(lambda n, square: F.sqrt(_sample(n, square))),
    "StddevPop": _moments(lambda n, square: F.sqrt(_population(n, square))),
    "CollectList": _one("list", F.collect_list),
    "CollectSet": _set,
    "MaxBy": _best_by("max_by", F.max_by, F.max),
    "MinBy": _best_by("min_by", F.min_by, F.min),
    "HyperLogLogPlusPlus": _approximate_count,
}
_SQL_NAMES = (
    "sum", "count", "count_if", "avg", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or",
    "bit_xor", "first", "last", "variance", "var_pop", "stddev", "stddev_pop", "collect_list",
    "collect_set", "max_by", "min_by", "approx_count_distinct",
)  # fmt: skip
