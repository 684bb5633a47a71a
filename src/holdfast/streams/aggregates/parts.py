"""Aggregate functions taken apart into partial columns, for Spark and without it.

Each partial column is written down twice, side by side: as SQL that Spark computes over a batch,
and in Arrow as what a batch of one row would give. How a value comes of the columns is, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from string import Template
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.hashing.spark_hash import xxhash64
from holdfast.streams.aggregates import registers
from holdfast.streams.aggregates.hll import precision_of
from holdfast.types import ArrayType, AtomicType, DataType, DecimalType, Row

PartialColumns = list[pa.Array]
LONG, DOUBLE, BOOLEAN = AtomicType("long"), AtomicType("double"), AtomicType("boolean")
BINARY = AtomicType("binary")
FRACTIONAL = frozenset(map(AtomicType, ("float", "double")))
REGISTERS = "_hyperloglog"
"""The suffix of the column with the registers that an estimate is of."""
_EXACT = Context(prec=80)


@dataclass(frozen=True)
class FunctionCall:
    """A function as a query calls it: its text, the types of its inputs, and its flag, if any."""

    text: str
    inputs: tuple[DataType, ...]
    flag: Any = None


@dataclass(frozen=True)
class Partial:
    """One column of the state of an aggregate.

    Its name is that of the output and `suffix`. `batch` is SQL over the inputs `x1`, `x2` and so
    on, which are null where a FILTER leaves a row out, and `kept`, which is true where it does
    not; it is parsed before the stream's session is known, so nothing in it may depend on ANSI.
    `row` makes the column of the columns of the inputs, row by row, and `nothing` is its cell
    before any row. State of earlier versions may lack a column that is `later`.
    """

    suffix: str
    type: DataType
    batch: str
    row: Callable[[PartialColumns], pa.Array]
    nothing: Any = None
    later: bool = False


def _alone(columns: PartialColumns) -> pa.Array:
    return columns[0]


@dataclass(frozen=True)
class Former:
    """The columns that state of earlier versions has in place of today's, by their suffixes.

    `convert` makes today's of them, all columns in order.
    """

    suffixes: tuple[str, ...]
    convert: Callable[[PartialColumns], PartialColumns]


@dataclass(frozen=True)
class Parts:
    """A call taken apart: its columns, how they merge, and how they end.

    `merge` is a key of `merging.KINDS`. `finish` is SQL in which `$_sum` stands for the column with
    the suffix `_sum`, and `finish_columns` does the same in Arrow. Without them the value is the
    first column. `from_value` is the way back: the cells of the columns that end in a value and
    merge as if rows had made them, or None for a value that does not determine them. Without it
    no value does.
    """

    partials: tuple[Partial, ...]
    merge: str
    finish: str | None = None
    finish_columns: Callable[[PartialColumns], pa.Array] = _alone
    from_value: Callable[[Any], Row | None] | None = None
    former: Former | None = None

    def finish_sql(self, names: Sequence[str]) -> str | None:
        """`finish` over columns of these names, which are quoted where they have to be."""
        if self.finish is None:
            return None
        suffixes = (partial.suffix for partial in self.partials)
        return Template(self.finish).substitute(dict(zip(suffixes, names, strict=True)))


def _any_value(value: Any) -> Row | None:
    return (value,)


def _seen_value(value: Any) -> Row | None:
    return None if value is None else (value, True)


def _number_of_rows(value: Any) -> Row | None:
    return None if value is None or value < 0 else (value,)


def itself(
    merge: str, batch: str, held: Callable[[DataType], DataType] = lambda kind: kind
) -> Callable[[FunctionCall], Parts]:
    """A function whose value is its one partial column, and over one row is the cell."""

    def parts(call: FunctionCall) -> Parts:
        partial = Partial("", held(call.inputs[0]), batch, _alone)
        return Parts((partial,), merge, from_value=_any_value)

    return parts


def sum_of(call: FunctionCall) -> Parts:
    """The sum; of decimals also whether there was anything, since a sum may have overflowed."""
    held = _sum_type(call.inputs[0])
    added = Partial("", held, "sum(x1)", lambda c: c[0].cast(held.arrow))
    if not isinstance(held, DecimalType):
        return Parts((added,), "sum", from_value=_any_value)
    seen = Partial("_seen", BOOLEAN, "max(x1 IS NOT NULL)", _is_there, later=True)
    # A sum that is null is of nothing, or it did overflow.
    return Parts((added, seen), "sum_seen", from_value=_seen_value)


def _sum_type(kind: DataType) -> DataType:
    if isinstance(kind, DecimalType):
        return DecimalType(min(38, kind.precision + 10), kind.scale)
    return DOUBLE if kind in FRACTIONAL else LONG


def count(call: FunctionCall) -> Parts:
    """The number of rows of which no input is null; without inputs, of all."""
    names = [f"x{number}" for number in range(1, len(call.inputs) + 1)] or ["1"]

    def row(columns: PartialColumns) -> pa.Array:
        there = _is_there(columns)
        for column in columns[1:]:
            there = pc.and_(there, column.is_valid())
        return there.cast(pa.int64())

    partial = Partial("", LONG, f"count({', '.join(names)})", row, 0)
    return Parts((partial,), "count", from_value=_number_of_rows)


def count_if(call: FunctionCall) -> Parts:
    """The number of rows for which the input is true."""

    def row(columns: PartialColumns) -> pa.Array:
        return pc.fill_null(columns[0], False).cast(pa.int64())

    partial = Partial("", LONG, "count_if(x1)", row, 0)
    return Parts((partial,), "count", from_value=_number_of_rows)


def average(call: FunctionCall) -> Parts:
    """The sum and the number of values; decimals are divided as Spark divides them."""
    kind = call.inputs[0]
    is_decimal = isinstance(kind, DecimalType)
    held = _sum_type(kind) if is_decimal else DOUBLE
    added = "sum(x1)" if is_decimal else "sum(CAST(x1 AS double))"
    divisor = "CAST($_count AS decimal(20,0))" if is_decimal else "$_count"
    result, finish_columns = _quotient(kind)
    return Parts(
        (
            Partial("_sum", held, added, lambda c: c[0].cast(held.arrow)),
            Partial("_count", LONG, "count(x1)", lambda c: _is_there(c).cast(pa.int64()), 0),
        ),
        "sum_count",
        f"CASE WHEN $_count > 0 THEN CAST($_sum / {divisor} AS {result}) END",
        finish_columns,
    )


def _quotient(kind: DataType) -> tuple[DataType, Callable[[PartialColumns], pa.Array]]:
    """The type of an average, and how it comes of (sum, count)."""
    if not isinstance(kind, DecimalType):
        # Over nothing the sum is null, and so is the quotient.
        return DOUBLE, lambda c: pc.divide(c[0], pc.max_element_wise(c[1], 1).cast(pa.float64()))
    result = DecimalType(min(38, kind.precision + 4), min(38, kind.scale + 4))
    unit = Decimal(1).scaleb(-result.scale)

    def finish(columns: PartialColumns) -> pa.Array:
        pairs = zip(*(column.to_pylist() for column in columns), strict=True)
        cells = [
            None
            if added is None or not number
            else _EXACT.divide(added, number).quantize(unit, ROUND_HALF_UP, _EXACT)
            for added, number in pairs
        ]
        return pa.array(cells, result.arrow)

    return result, finish


def first_or_last(merge: str) -> Callable[[FunctionCall], Parts]:
    """The first or last value, null or not, and whether there was one; the flag skips nulls."""

    def parts(call: FunctionCall) -> Parts:
        counts = "kept AND x1 IS NOT NULL" if call.flag else "kept"

        def seen(columns: PartialColumns) -> pa.Array:
            return (
                _is_there(columns) if call.flag else pa.array([True] * len(columns[0]), pa.bool_())
            )

        # In a struct, a null that counts is not one that `true` skips.
        picked = f"{merge}_value(CASE WHEN {counts} THEN struct(x1 AS v) END, true).v"
        return Parts(
            (
                Partial("", call.inputs[0], picked, _alone),
                Partial("_seen", BOOLEAN, f"coalesce(max({counts}), false)", seen, False),
            ),
            merge,
            from_value=_seen_value,  # null is a value that was seen, or there was none
        )

    return parts


def best_by(merge: str, best: str) -> Callable[[FunctionCall], Parts]:
    """The value whose order is the best, and that order."""

    def value(columns: PartialColumns) -> pa.Array:
        absent = columns[1].is_null().to_numpy(zero_copy_only=False)
        return columns[0].take(pa.array(np.arange(len(absent)), mask=absent))

    def parts(call: FunctionCall) -> Parts:
        kind, order = call.inputs
        return Parts(
            (
                Partial("", kind, f"{merge}(x1, x2)", value),
                Partial("_by", order, f"{best}(x2)", lambda c: c[1]),
            ),
            merge,
        )

    return parts


def array_of(merge: str) -> Callable[[FunctionCall], Parts]:
    """An array of all values, or of the distinct ones."""

    def parts(call: FunctionCall) -> Parts:
        held = ArrayType(call.inputs[0], contains_null=False)

        def row(columns: PartialColumns) -> pa.Array:
            there = _is_there(columns).to_numpy(zero_copy_only=False)
            offsets = pa.array(np.concatenate([[0], np.cumsum(there)]), pa.int32())
            return pa.ListArray.from_arrays(offsets, columns[0].drop_null(), type=held.arrow)

        partial = Partial("", held, f"collect_{merge}(x1)", row, [])

        def elements(value: Any) -> Row | None:
            repeats = merge == "set" and len(set(map(repr, value or ()))) < len(value or ())
            return None if value is None or repeats else (value,)

        return Parts((partial,), merge, from_value=elements)

    return parts


def distinct_estimate(call: FunctionCall) -> Parts:
    """An estimate, and the registers it is of; the flag is the error that is asked for.

    Spark passes on which register each value belongs to, and its rank there: no more pairs than
    registers have ranks, however many values there are. Their estimate is made by merging.
    """
    precision = precision_of(call.flag)
    start = registers.header(precision)
    pair = registers.pair_sql("xxhash64(x1)", precision)
    words = f"collect_set(CASE WHEN x1 IS NOT NULL THEN {pair} END)"
    texts = f"transform({words}, w -> lpad(hex(w), 8, '0'))"

    def cells(columns: PartialColumns) -> pa.Array:
        there = _is_there(columns).to_numpy(zero_copy_only=False)
        return registers.of_hashes(xxhash64(columns[:1]).view(np.uint64), there, precision)

    return Parts(
        (
            Partial(
                "",
                LONG,
                "count(x1) * 0",
                lambda c: pa.array(np.zeros(len(c[0]), np.int64)),
                0,
            ),
            Partial(
                REGISTERS,
                BINARY,
                f"concat(X'{start.hex()}', unhex(array_join({texts}, '')))",
                cells,
                start,
            ),
        ),
        "distinct",
        former=Former(("", "_sketch"), _estimated_sketches),
    )


def _estimated_sketches(columns: PartialColumns) -> PartialColumns:
    """What `distinct_estimate` keeps, of the sketches that earlier versions kept."""
    cells = registers.of_sketches(columns[1])
    kept, estimates = registers.merged(pa.nulls(len(cells), cells.type), cells)
    return [estimates, kept]


def moments(*, sample: bool, root: bool) -> Callable[[FunctionCall], Parts]:
    """Count, mean and squared deviations: a variance, or its root, of a sample or of all."""
    least, divisor = (1, "($_count - 1)") if sample else (0, "$_count")
    variance = f"$_square / {divisor}"
    result = f"sqrt({variance})" if root else variance
    text = f"CASE WHEN $_count > {least} THEN {result} END"

    def finish(columns: PartialColumns) -> pa.Array:
        number, square = (
            pc.fill_null(columns[at], 0.0).to_numpy(zero_copy_only=False) for at in (0, 2)
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            cells = square / (number - least)
            return pa.array(np.sqrt(cells) if root else cells, mask=number <= least)

    return lambda call: Parts(_MOMENTS, "moments", text, finish)


def _numbers(columns: PartialColumns) -> pa.Array:
    return columns[0].cast(pa.float64())


_MOMENTS = (
    Partial(
        "_count", DOUBLE, "CAST(count(x1) AS double)",
        lambda c: _is_there(c).cast(pa.float64()), 0.0,
    ),
    Partial("_mean", DOUBLE, "avg(CAST(x1 AS double))", _numbers),
    Partial(
        "_square", DOUBLE, "var_pop(CAST(x1 AS double)) * CAST(count(x1) AS double)",
        # The deviation of one number from itself, which for infinity is not a number.
        lambda c: pc.subtract(_numbers(c), _numbers(c)),
    ),
)  # fmt: skip


def _is_there(columns: PartialColumns) -> pa.Array:
    return columns[0].is_valid()
