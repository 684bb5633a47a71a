"""The aggregate functions: one table, with a row for each.

To add a function, add its row to `FUNCTIONS`. The operator, the panes of sliding windows, the test
driver, the text of refusals and the list in docs/streams.md all come from it. How a function is
taken apart is in `parts`, how its columns merge in `merging.KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates import parts
from holdfast.streams.aggregates.parts import FunctionCall, Parts
from holdfast.types import (
    ArrayType,
    AtomicType,
    DataType,
    DecimalType,
    MapType,
    StringType,
    StructType,
)


@dataclass(frozen=True)
class InputRule:
    """What an input may be: which types, and why others are refused."""

    allows: Callable[[DataType], bool]
    why: str = ""


_INTEGRAL = frozenset(map(AtomicType, ("byte", "short", "integer", "long")))


def _is_number(kind: DataType) -> bool:
    return isinstance(kind, DecimalType) or kind in _INTEGRAL or kind in parts.FRACTIONAL


def _is_hashed(kind: DataType) -> bool:
    """Whether Spark's `xxhash64` hashes cells as its count of distinct values does."""
    plain = StringType()
    return not any(
        isinstance(part, MapType)
        or (isinstance(part, StringType) and part.collation != plain.collation)
        for part in kind.walk()
    )


ANY = InputRule(lambda kind: True)
NUMBERS = InputRule(_is_number, "it takes numbers")
INTEGERS = InputRule(_INTEGRAL.__contains__, "it takes integers")
BOOLEANS = InputRule(lambda kind: kind == parts.BOOLEAN, "it takes booleans")
ORDERED = InputRule(
    lambda kind: not isinstance(kind, (StructType, ArrayType, MapType)),
    "it compares structs, arrays or maps, where max_by and min_by go by one column",
)


HASHED = InputRule(_is_hashed, "it takes no maps, and strings of the collation UTF8_BINARY alone")


@dataclass(frozen=True)
class Flag:
    """An argument beside the inputs, which is a constant.

    `getter` is the method of Spark's expression that has it, `read` makes it of SQL, `words` is
    how the definition of a query tells it.
    """

    getter: str
    default: Any
    read: Callable[[str], Any]
    words: Callable[[Any], str]


SKIPS_NULLS = Flag(
    "ignoreNulls",
    default=False,
    read=lambda text: text.lower() == "true",
    words=lambda flag: "without nulls" if flag else "with nulls",
)
ERROR = Flag(
    "relativeSD", default=0.05, read=float, words=lambda flag: f"with an error of {flag:g}"
)


@dataclass(frozen=True)
class AggregateFunction:
    """One aggregate function.

    `names` are its names in SQL, the one in refusals and documents first; `node` is the class of
    Spark's plan; `takes` are its inputs, or, `repeated`, each of any number of them. `by_order`
    says that the value depends on the order of rows, at least among equal ones, and `slow` that
    merging takes a while for each row; neither is done by panes.
    """

    names: tuple[str, ...]
    node: str
    apart: Callable[[FunctionCall], Parts]
    takes: tuple[InputRule, ...] = (ANY,)
    repeated: bool = False
    flag: Flag | None = None
    by_order: bool = False
    slow: bool = False
    may_overflow: bool = False
    """Whether Spark tells how it takes an overflow; null in its place is refused."""

    @property
    def name(self) -> str:
        """What it is called."""
        return self.names[0]

    @property
    def by_pane(self) -> bool:
        """Whether rows of sliding windows may be summed up by panes for it."""
        return not (self.by_order or self.slow)

    def take_apart(self, call: FunctionCall) -> Parts:
        """The call's partial columns. Raises `InvalidArgument` for types it does not take."""
        takes = self.takes * len(call.inputs) if self.repeated else self.takes
        for take, kind in zip(takes, call.inputs, strict=True):
            if not take.allows(kind):
                raise unsupported_call(call.text, f"{take.why}, and an input is {kind}")
        if self.flag is not None and call.flag is None:
            call = replace(call, flag=self.flag.default)
        return self.apart(call)


_row = AggregateFunction
FUNCTIONS = (
    _row(("sum",), "Sum", parts.sum_of, (NUMBERS,), may_overflow=True),
    _row(("count",), "Count", parts.count, repeated=True),
    _row(("regr_count",), "RegrCount", parts.count, (NUMBERS, NUMBERS)),
    _row(("count_if",), "CountIf", parts.count_if, (BOOLEANS,)),
    _row(("avg", "mean"), "Average", parts.average, (NUMBERS,), may_overflow=True),
    _row(("min",), "Min", parts.itself("min", "min(x1)"), (ORDERED,)),
    _row(("max",), "Max", parts.itself("max", "max(x1)"), (ORDERED,)),
    _row(("bool_and", "every"), "BoolAnd", parts.itself("min", "bool_and(x1)"), (BOOLEANS,)),
    _row(("bool_or", "any", "some"), "BoolOr", parts.itself("max", "bool_or(x1)"), (BOOLEANS,)),
    _row(("bit_and",), "BitAndAgg", parts.itself("bit_and", "bit_and(x1)"), (INTEGERS,)),
    _row(("bit_or",), "BitOrAgg", parts.itself("bit_or", "bit_or(x1)"), (INTEGERS,)),
    _row(("bit_xor",), "BitXorAgg", parts.itself("bit_xor", "bit_xor(x1)"), (INTEGERS,)),
    _row(("first", "first_value"), "First", parts.first_or_last("first"),
         flag=SKIPS_NULLS, by_order=True),
    _row(("any_value",), "AnyValue", parts.first_or_last("first"),
         flag=SKIPS_NULLS, by_order=True),
    _row(("last", "last_value"), "Last", parts.first_or_last("last"),
         flag=SKIPS_NULLS, by_order=True),
    _row(("variance", "var_samp"), "VarianceSamp", parts.moments(sample=True, root=False),
         (NUMBERS,)),
    _row(("var_pop",), "VariancePop", parts.moments(sample=False, root=False), (NUMBERS,)),
    _row(("stddev", "stddev_samp", "std"), "StddevSamp", parts.moments(sample=True, root=True),
         (NUMBERS,)),
    _row(("stddev_pop",), "StddevPop", parts.moments(sample=False, root=True), (NUMBERS,)),
    _row(("collect_list", "array_agg"), "CollectList", parts.array_of("list"),
         by_order=True, slow=True),
    _row(("collect_set",), "CollectSet", parts.array_of("set"), (ORDERED,), slow=True),
    _row(("max_by",), "MaxBy", parts.best_by("max_by", "max"), (ANY, ORDERED), by_order=True),
    _row(("min_by",), "MinBy", parts.best_by("min_by", "min"), (ANY, ORDERED), by_order=True),
    _row(("approx_count_distinct",), "HyperLogLogPlusPlus", parts.distinct_estimate,
         (HASHED,), flag=ERROR, slow=True),
)  # fmt: skip
BY_NAME = {name: function for function in FUNCTIONS for name in function.names}
BY_NODE = {function.node: function for function in FUNCTIONS}


def unsupported_call(call: str, why: str) -> InvalidArgument:
    """The error for a call that no stream can compute."""
    known = ", ".join(sorted(function.name for function in FUNCTIONS))
    return InvalidArgument(
        f"{call} is not supported on a stream yet: {why}. Supported are {known}. Collect the "
        "values with collect_list or collect_set and compute it from them in a select after agg, "
        "or keep what it needs in a processor."
    )
