"""Aggregate functions without Spark: the partial columns of rows, and what becomes of them.

The columns have the names, types and values that Spark computes for a stream, so that state is
the same. A row's partials are those of a batch of this row alone; merging does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.hashing.spark_hash import xxhash64
from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.aggregates.sketches import header, precision_of
from holdfast.types import ArrayType, AtomicType, DataType, DecimalType, Field, MapType, StructType

PartialColumns = list[pa.Array]
_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*\Z")
_LONG, _DOUBLE, _BOOLEAN = AtomicType("long"), AtomicType("double"), AtomicType("boolean")
_INTEGRAL = frozenset(map(AtomicType, ("byte", "short", "integer", "long")))
_FRACTIONAL = frozenset(map(AtomicType, ("float", "double")))
_EXACT = Context(prec=80)
_RSD = 0.05
"""Spark's own error of approx_count_distinct."""


@dataclass(frozen=True)
class Aggregate:
    """One aggregate function taken apart.

    `fields` are its columns in state. `of_rows` makes them of the columns `inputs`, row by row,
    or of any column where there are none; `nothing` are their cells before any row. `finish`
    makes the function's value of them.
    """

    fields: tuple[Field, ...]
    kind: str
    of_rows: Callable[[PartialColumns], PartialColumns]
    nothing: tuple[Any, ...]
    inputs: tuple[str, ...]
    finish: Callable[[PartialColumns], pa.Array] = lambda columns: columns[0]

    @property
    def merge(self) -> Merge:
        """How the columns are merged."""
        return Merge(self.kind, tuple(field.name for field in self.fields))


@dataclass(frozen=True)
class _Call:
    """A function as it was asked for: its text, the output's name, what stands in brackets."""

    text: str
    name: str
    inputs: tuple[Field, ...]
    flags: tuple[str, ...]

    def aggregate(
        self,
        kind: str,
        columns: Mapping[str, DataType],
        of_rows: Callable[[PartialColumns], PartialColumns],
        nothing: tuple[Any, ...],
        **more: Any,
    ) -> Aggregate:
        """The aggregate whose columns are named after this one's."""
        fields = tuple(Field(f"{self.name}{end}", kept) for end, kept in columns.items())
        names = tuple(field.name for field in self.inputs)
        return Aggregate(fields, kind, of_rows, nothing, names, **more)

    def type(self, *wanted: DataType) -> DataType:
        """The type of the first input; where some are wanted, one of them."""
        field = self.inputs[0]
        if wanted and field.type not in wanted:
            raise self.refusal(f"column {field.name!r} is {field.type}")
        return field.type

    def number(self) -> DataType:
        """The type of the first input, which has to be a number's."""
        kind = self.inputs[0].type
        return kind if isinstance(kind, DecimalType) else self.type(*_INTEGRAL, *_FRACTIONAL)

    def ordered(self, at: int = 0) -> DataType:
        """The type of an input whose values are compared."""
        kind = self.inputs[at].type
        if isinstance(kind, (StructType, ArrayType, MapType)):
            raise self.refusal("it compares structs, arrays or maps")
        return kind

    def refusal(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"{self.text} cannot be run here: {why}.")


def parse_aggregate(name: str, text: str, columns: dict[str, Field]) -> Aggregate:
    """The aggregate of a text such as "sum(profit)", as the output column `name`.

    Refused by name where it is no function of columns alone, or none that is known here.
    """
    found = _CALL.match(text)
    if found is None:
        raise InvalidArgument(
            f"{text!r} is no aggregate function of columns. Push rows that have what it is to go "
            "over as a column, and write sum(column)."
        )
    function, inside = found[1].lower(), [part.strip() for part in found[2].split(",")]
    if function not in _FUNCTIONS:
        known = ", ".join(sorted(_FUNCTIONS))
        raise InvalidArgument(f"{text} cannot be run here: there are {known}.")
    build, wanted = _FUNCTIONS[function]
    given = [] if inside == ["*"] or inside == ["1"] else inside
    count = len(given) if function == "count" else wanted
    inputs = [part.strip("`") for part in given[:count]]
    for unknown in [part for part in inputs if part not in columns]:
        raise InvalidArgument(
            f"{text} asks for {unknown!r}, which is none of the columns {', '.join(columns)}."
        )
    call = _Call(text, name, tuple(columns[part] for part in inputs), tuple(given[count:]))
    if len(inputs) != count or len(call.flags) > (function in _WITH_FLAG):
        raise call.refusal(f"{function} takes {wanted} column{'s'[: wanted != 1]}")
    return build(call)


# -- the functions -----------------------------------------------------------------------------


def _sum(call: _Call) -> Aggregate:
    kind = _sum_type(call)
    if not isinstance(kind, DecimalType):
        return call.aggregate("sum", {"": kind}, lambda c: [c[0].cast(kind.arrow)], (None,))
    return call.aggregate(
        "sum_seen",
        {"": kind, "_seen": _BOOLEAN},
        lambda c: [c[0].cast(kind.arrow), _valid(c[0])],
        (None, None),
    )


def _sum_type(call: _Call) -> DataType:
    kind = call.number()
    if isinstance(kind, DecimalType):
        return DecimalType(min(38, kind.precision + 10), kind.scale)
    return _DOUBLE if kind in _FRACTIONAL else _LONG


def _count(call: _Call) -> Aggregate:
    def of_rows(columns: PartialColumns) -> PartialColumns:
        present = _valid(columns[0])
        for column in columns[1:]:
            present = pc.and_(present, _valid(column))
        return [present.cast(pa.int64())]

    return call.aggregate("count", {"": _LONG}, of_rows, (0,))


def _count_if(call: _Call) -> Aggregate:
    call.type(_BOOLEAN)
    return call.aggregate(
        "count", {"": _LONG}, lambda c: [pc.fill_null(c[0], False).cast(pa.int64())], (0,)
    )


def _average(call: _Call) -> Aggregate:
    kind = call.number()
    total = _sum_type(call) if isinstance(kind, DecimalType) else _DOUBLE
    return call.aggregate(
        "sum_count",
        {"_sum": total, "_count": _LONG},
        lambda c: [c[0].cast(total.arrow), _valid(c[0]).cast(pa.int64())],
        (None, 0),
        finish=_decimal_quotient(kind) if isinstance(kind, DecimalType) else _quotient,
    )


def _quotient(columns: PartialColumns) -> pa.Array:
    total, count = columns
    # Over nothing the sum is null, and so is the quotient.
    return pc.divide(total, pc.max_element_wise(count, 1).cast(pa.float64()))


def _decimal_quotient(kind: DecimalType) -> Callable[[PartialColumns], pa.Array]:
    precision, scale = min(38, kind.precision + 4), min(38, kind.scale + 4)
    unit = Decimal(1).scaleb(-scale)

    def finish(columns: PartialColumns) -> pa.Array:
        pairs = zip(*(column.to_pylist() for column in columns), strict=True)
        cells = [
            _EXACT.divide(total, count).quantize(unit, ROUND_HALF_UP, _EXACT) if count else None
            for total, count in pairs
        ]
        return pa.array(cells, pa.decimal128(precision, scale))

    return finish


def _itself(kind: str, *wanted: DataType) -> Callable[[_Call], Aggregate]:
    """A function whose partial of a row is the cell."""

    def build(call: _Call) -> Aggregate:
        held = call.type(*wanted) if wanted else call.ordered()
        return call.aggregate(kind, {"": held}, lambda c: c[:1], (None,))

    return build


def _first_or_last(kind: str) -> Callable[[_Call], Aggregate]:
    def build(call: _Call) -> Aggregate:
        ignores_nulls = [flag.lower() for flag in call.flags] == ["true"]

        def of_rows(columns: PartialColumns) -> PartialColumns:
            seen = _valid(columns[0]) if ignores_nulls else pa.array([True] * len(columns[0]))
            return [columns[0], seen.cast(pa.bool_())]

        types = {"": call.type(), "_seen": _BOOLEAN}
        return call.aggregate(kind, types, of_rows, (None, False))

    return build


def _moments(finish: Callable[[Any, Any], Any]) -> Callable[[_Call], Aggregate]:
    def of_rows(columns: PartialColumns) -> PartialColumns:
        cell = columns[0].cast(pa.float64())
        # The deviation of one number from itself, which for infinity is not a number.
        return [_valid(cell).cast(pa.float64()), cell, pc.subtract(cell, cell)]

    def finished(columns: PartialColumns) -> pa.Array:
        count, _, square = (
            pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False) for column in columns
        )
        with np.errstate(invalid="ignore", divide="ignore"):
            cells, there = finish(count, square)
        return pa.array(cells, mask=~there)

    def build(call: _Call) -> Aggregate:
        call.number()
        types = {"_count": _DOUBLE, "_mean": _DOUBLE, "_square": _DOUBLE}
        return call.aggregate("moments", types, of_rows, (0.0, None, None), finish=finished)

    return build


def _best_by(kind: str) -> Callable[[_Call], Aggregate]:
    def of_rows(columns: PartialColumns) -> PartialColumns:
        value, order = columns
        absent = pc.is_null(order).to_numpy(zero_copy_only=False)
        return [value.take(pa.array(np.arange(len(value)), mask=absent)), order]

    def build(call: _Call) -> Aggregate:
        types = {"": call.type(), "_by": call.ordered(1)}
        return call.aggregate(kind, types, of_rows, (None, None))

    return build


def _collected(kind: str) -> Callable[[_Call], Aggregate]:
    def build(call: _Call) -> Aggregate:
        element = call.ordered() if kind == "set" else call.type()
        held = ArrayType(element, contains_null=False)

        def of_rows(columns: PartialColumns) -> PartialColumns:
            there = _valid(columns[0]).to_numpy(zero_copy_only=False)
            offsets = pa.array(np.concatenate([[0], np.cumsum(there)]), pa.int32())
            cells = columns[0].drop_null()
            return [pa.ListArray.from_arrays(offsets, cells, type=held.arrow)]

        return call.aggregate(kind, {"": held}, of_rows, ([],))

    return build


def _approximate_count(call: _Call) -> Aggregate:
    start = header(precision_of(float(call.flags[0]) if call.flags else _RSD))

    def of_rows(columns: PartialColumns) -> PartialColumns:
        there = _valid(columns[0])
        hashes = xxhash64(columns[:1]).tolist()
        sketches = [
            start + (number.to_bytes(8, "big", signed=True) if valid else b"")
            for number, valid in zip(hashes, there.to_pylist(), strict=True)
        ]
        return [there.cast(pa.int64()), pa.array(sketches, pa.binary())]

    call.ordered()
    types = {"": _LONG, "_sketch": AtomicType("binary")}
    return call.aggregate("distinct", types, of_rows, (0, start))


def _valid(column: pa.Array) -> pa.Array:
    return pc.is_valid(column)


def _sample(count: Any, square: Any) -> tuple[Any, Any]:
    return square / (count - 1), count > 1


def _population(count: Any, square: Any) -> tuple[Any, Any]:
    return square / count, count > 0


def _root(of: Callable[[Any, Any], tuple[Any, Any]]) -> Callable[[Any, Any], tuple[Any, Any]]:
    def finish(count: Any, square: Any) -> tuple[Any, Any]:
        variance, there = of(count, square)
        return np.sqrt(variance), there

    return finish


_WITH_FLAG = frozenset({"first", "last", "approx_count_distinct"})
_FUNCTIONS: dict[str, tuple[Callable[[_Call], Aggregate], int]] = {
    "sum": (_sum, 1),
    "count": (_count, 1),
    "count_if": (_count_if, 1),
    "avg": (_average, 1),
    "mean": (_average, 1),
    "min": (_itself("min"), 1),
    "max": (_itself("max"), 1),
    "bool_and": (_itself("min", _BOOLEAN), 1),
    "bool_or": (_itself("max", _BOOLEAN), 1),
    "bit_and": (_itself("bit_and", *_INTEGRAL), 1),
    "bit_or": (_itself("bit_or", *_INTEGRAL), 1),
    "bit_xor": (_itself("bit_xor", *_INTEGRAL), 1),
    "first": (_first_or_last("first"), 1),
    "last": (_first_or_last("last"), 1),
    "variance": (_moments(_sample), 1),
    "var_pop": (_moments(_population), 1),
    "stddev": (_moments(_root(_sample)), 1),
    "stddev_pop": (_moments(_root(_population)), 1),
    "collect_list": (_collected("list"), 1),
    "collect_set": (_collected("set"), 1),
    "max_by": (_best_by("max_by"), 2),
    "min_by": (_best_by("min_by"), 2),
    "approx_count_distinct": (_approximate_count, 1),
}
"""Each function, and how many columns it takes; count takes any number, and * for all rows."""
