"""Aggregate functions as columns of Spark's: what a batch computes, and what state ends in.

Which functions there are, and how each is taken apart, is in `streams/aggregates/functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as spark

from holdfast.errors import InvalidArgument
from holdfast.spark.interop.model import AggregateCall
from holdfast.spark.operators.columns import quote_column
from holdfast.streams.aggregates.functions import unsupported_call
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.aggregates.parts import FunctionCall
from holdfast.streams.tasks.rewrite import FormerColumns
from holdfast.types import AtomicType, DataType, parse_schema

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
    by_pane: bool
    """Whether rows of sliding windows may be summed up by panes."""
    later: tuple[str, ...] = ()
    """The columns that state of earlier versions of Holdfast lacks; they may be null."""
    former: FormerColumns | None = None
    """The columns that state of earlier versions has in place of `columns`."""

    @property
    def told_names(self) -> tuple[str, ...]:
        """The columns as the definition of a query tells them: those it was first told of."""
        return self.merge.columns if self.former is None else self.former.names


def take_apart(call: AggregateCall, give: Give) -> Partials:
    """The partial columns of an aggregate call, with the names given; refused when it has none."""
    if call.distinct:
        raise unsupported_call(call.sql, "a distinct aggregate would have to keep every value")
    if call.mode == "TRY":
        plain = call.sql.removeprefix("try_")
        raise unsupported_call(
            call.sql, f"null in the place of an overflow is not merged; use {plain}"
        )
    function = call.function
    if function is None:
        raise unsupported_call(call.sql, f"{call.node} cannot be merged batch by batch")
    inputs = tuple(map(_own_type, call.input_types))
    parts = function.take_apart(FunctionCall(call.sql, inputs, call.flag))
    suffixes = [partial.suffix for partial in parts.partials]
    # Former columns keep their names, which no other aggregate may get.
    first = suffixes if parts.former is None else parts.former.suffixes
    given = {suffix: give(suffix) for suffix in first}
    told = tuple(given.values())
    given |= {suffix: give(suffix) for suffix in suffixes if suffix not in given}
    names = tuple(given[suffix] for suffix in suffixes)
    named = list(zip(names, parts.partials, strict=True))
    finish = parts.finish_sql([quote_column(name) for name in names])
    return Partials(
        columns=tuple((name, call.column(partial.batch)) for name, partial in named),
        merge=Merge(parts.merge, names),
        result=F.col(quote_column(names[0])) if finish is None else F.expr(finish),
        by_pane=function.by_pane,
        later=tuple(name for name, partial in named if partial.later),
        former=(None if parts.former is None else FormerColumns(told, names, parts.former.convert)),
    )


def _own_type(kind: spark.DataType) -> DataType:
    """A type of Spark's as Holdfast's; one that no state can hold may still be counted."""
    try:
        return parse_schema(spark.StructType().add("x", kind)).fields[0].type
    except InvalidArgument:
        return AtomicType("void")
