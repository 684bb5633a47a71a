"""The aggregate functions of the differential suite, and how state keeps them on both sides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Cells = list[Any]


@dataclass(frozen=True)
class Kept:
    """How one function's buffer is compared: its width on both sides, Spark's form of it in ours.

    Without `ours` only Spark can read its buffer.
    """

    native_width: int
    ours_width: int
    ours: Callable[[Cells], Cells] | None
    unify: Callable[[Cells], Cells] = lambda cells: cells


def _none_if_empty(cells: Cells) -> Cells:
    """(sum, is empty) of a decimal sum."""
    return [None if cells[1] else cells[0]]


def _average(cells: Cells) -> Cells:
    """(sum, count); the sum of nothing is 0 in Spark's state and null in ours."""
    return [cells[0] if cells[1] else None, cells[1]]


def _moments(cells: Cells) -> Cells:
    """(count, mean, squared deviations), of nothing all 0 in Spark's state.

    Where the deviations are not a number, the mean is infinite or none by the order rows came in.
    """
    if not cells[0]:
        return [0.0, None, None]
    return [cells[0], "nan", "nan"] if str(cells[2]) == "nan" else cells


def _same(cells: Cells) -> Cells:
    return cells


_ONE = Kept(1, 1, _same)
_DECIMAL_SUM = Kept(2, 2, _none_if_empty, lambda cells: cells[:1])
_AVERAGE = Kept(2, 2, _average, _average)
_MOMENTS = Kept(3, 3, _moments, _moments)
_PAIR = Kept(2, 2, _same)
_OPAQUE = Kept(1, 1, None)
# 512 registers of 6 bits in 52 longs, and ours: an estimate and the registers.
_REGISTERS = Kept(52, 2, None)


@dataclass(frozen=True)
class Function:
    """An aggregate of the suite, whose text in SQL is its name."""

    kept: tuple[Kept, ...]
    by_arrival: bool = False
    """Whether it depends on the order in which rows come."""


def _sql(text: str, *kept: Kept, **more: Any) -> tuple[str, Function]:
    return text, Function(kept, **more)


AGGREGATES: dict[str, Function] = dict([
    _sql("count(*)", _ONE),
    _sql("count(s)", _ONE),
    _sql("count(n, x)", _ONE),
    _sql("regr_count(n, x)", _ONE),
    _sql("count_if(n > 3)", _ONE),
    _sql("sum(n)", _ONE),
    _sql("sum(x)", _ONE),
    _sql("sum(d)", _DECIMAL_SUM),
    _sql("sum(n) FILTER (WHERE flag)", _ONE),
    _sql("sum(i) / count(i)", _ONE, _ONE),
    _sql("avg(n)", _AVERAGE),
    _sql("avg(x)", _AVERAGE),
    _sql("avg(d)", _AVERAGE),
    *[_sql(f"{name}({column})", _ONE)
      for name in ("min", "max")
      for column in ("n", "i", "x", "d", "s", "day", "at", "flag", "raw")],
    _sql("stddev(n)", _MOMENTS),
    _sql("stddev_pop(d)", _MOMENTS),
    _sql("variance(i)", _MOMENTS),
    _sql("var_pop(x)", _MOMENTS),
    _sql("collect_list(n)", _OPAQUE),
    _sql("collect_list(x)", _OPAQUE),
    _sql("collect_set(s)", _OPAQUE),
    _sql("collect_set(d)", _OPAQUE),
    _sql("bool_and(flag)", _ONE),
    _sql("bool_or(flag)", _ONE),
    _sql("bit_and(n)", _ONE),
    _sql("bit_or(i)", _ONE),
    _sql("bit_xor(n)", _ONE),
    # The order values are unique: a tie may go either way in Spark.
    _sql("max_by(s, u)", _PAIR),
    _sql("min_by(d, u)", _PAIR),
    _sql("approx_count_distinct(i)", _REGISTERS),
    # All rows of a batch have the same b; of others the order within a batch is not defined.
    _sql("first(b)", _PAIR, by_arrival=True),
    _sql("last(b)", _PAIR, by_arrival=True),
    _sql("first(b, true)", _PAIR, by_arrival=True),
    _sql("any_value(b)", _PAIR, by_arrival=True),
])  # fmt: skip
