"""Which columns of a store belong to which aggregate, told by the definition of its query.

A query is not at hand where state is repaired: there is its definition, which names each aggregate
with the text of its call, and the stored columns with their types.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates.functions import BY_NAME, AggregateFunction
from holdfast.streams.aggregates.parts import BOOLEAN, DOUBLE, LONG, REGISTERS, FunctionCall, Parts
from holdfast.types import ArrayType, DataType, DecimalType, Row, Schema

AGGREGATE = "aggregate "
"""How the definition of an aggregate begins; its name follows."""
_KEPT = re.compile(r"(?P<call>.*) kept in (?P<columns>.*?)", re.DOTALL)
_FUNCTION = re.compile(r"\s*(?P<name>\w+)\s*\(")


@dataclass(frozen=True)
class StoredAggregate:
    """An aggregate in stored state: its call, and the columns it is kept in.

    `parts` is None where the columns cannot be told apart: then they only make sense together.
    """

    name: str
    """What its value is called: a stored column, where the value determines what is stored."""
    call: str
    columns: tuple[str, ...]
    parts: Parts | None

    @property
    def is_set_by_value(self) -> bool:
        """Whether some value of it says what to store."""
        return self.parts is not None and self.parts.from_value is not None

    def cells_of(self, value: Any) -> Row | None:
        """The cells of `columns` for a value; None where it does not determine them."""
        if self.parts is None or self.parts.from_value is None:
            return None
        found = self.parts.from_value(value)
        return None if found is None else found[: len(self.columns)]

    @property
    def nothing(self) -> Row:
        """The cells of `columns` before the first row of a key."""
        if self.parts is None:
            return (None,) * len(self.columns)
        # How many registers there are depends on a flag that the columns do not tell: null merges
        # as none.
        cells = (None if part.suffix == REGISTERS else part.nothing for part in self.parts.partials)
        return tuple(cells)[: len(self.columns)]


def stored_aggregates(definition: Mapping[str, str], values: Schema) -> tuple[StoredAggregate, ...]:
    """The aggregates of an operator, by its definition, over the value columns of its store.

    Columns that belong to none, or that do not look as they should, come as one aggregate without
    a name, which is set as a whole or not at all. Empty where the operator has no aggregates.
    """
    told = {
        what.removeprefix(AGGREGATE): text
        for what, text in definition.items()
        if what.startswith(AGGREGATE)
    }
    if not told:
        return ()
    types = {field.name: field.type for field in values}
    found: list[StoredAggregate] = []
    for name, text in told.items():
        aggregate = _stored(name, text, types)
        if aggregate is not None:
            found.append(aggregate)
    claimed = [column for aggregate in found for column in aggregate.columns]
    if len(set(claimed)) < len(claimed):
        found, claimed = [], []
    rest = tuple(name for name in types if name not in claimed)
    return (*found, *([StoredAggregate("", "", rest, None)] if rest else []))


def _stored(name: str, text: str, types: Mapping[str, DataType]) -> StoredAggregate | None:
    kept = _KEPT.fullmatch(text)
    call = text if kept is None else kept["call"]
    match = _FUNCTION.match(call)
    function = BY_NAME.get(match["name"].lower()) if match else None
    if function is None:
        return None
    listed = None if kept is None else kept["columns"].split(", ")
    for parts in _possible_parts(function, call, types, name, listed):
        columns = _columns(parts, name, listed, types)
        if columns is not None:
            shown = columns[0] if parts.from_value is not None else name
            return StoredAggregate(shown, call, columns, parts)
    return None


def _columns(
    parts: Parts, name: str, listed: Sequence[str] | None, types: Mapping[str, DataType]
) -> tuple[str, ...] | None:
    """The stored columns that these parts would be kept in; None where they are not there."""
    wanted = [f"{name}{part.suffix}" for part in parts.partials] if listed is None else listed
    if parts.former is not None:  # a definition still names the former columns
        before = listed or [f"{name}{suffix}" for suffix in parts.former.suffixes]
        today = [before[0], *(f"{name}{part.suffix}" for part in parts.partials[1:])]
        wanted = before if set(before) <= set(types) else today
    if len(wanted) != len(parts.partials):
        return None
    columns = []
    for column, part in zip(wanted, parts.partials, strict=True):
        if column in types and types[column] == part.type:
            columns.append(column)
        elif column in types or not part.later:
            return None
    return tuple(columns)


def _possible_parts(
    function: AggregateFunction,
    call: str,
    types: Mapping[str, DataType],
    name: str,
    listed: Sequence[str] | None,
) -> Iterator[Parts]:
    """The call taken apart for each of the types that its inputs may have had."""
    own = [
        kind
        for column, kind in types.items()
        if (column.startswith(name) if listed is None else column in listed)
    ]
    kinds = list(dict.fromkeys(each for kind in own for each in _inputs_behind(kind)))
    count = 1 if function.repeated else len(function.takes)
    for inputs in product([*kinds, LONG, DOUBLE, BOOLEAN], repeat=count):
        with suppress(InvalidArgument):
            yield function.take_apart(FunctionCall(call, inputs))


def _inputs_behind(kind: DataType) -> Iterator[DataType]:
    """Types of inputs of which a function may keep a column of this type."""
    yield kind
    if isinstance(kind, ArrayType):
        yield kind.element
    if isinstance(kind, DecimalType) and kind.precision > 10:
        yield DecimalType(kind.precision - 10, min(kind.scale, kind.precision - 10))
