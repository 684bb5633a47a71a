"""Aggregate functions without Spark: the partial columns of rows, and what becomes of them.

The columns have the names, types and values that Spark computes for a stream, so that state is
the same. A row's partials are those of a batch of this row alone; merging does the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates.functions import BY_NAME, AggregateFunction, unsupported_call
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.aggregates.parts import FunctionCall, PartialColumns, Parts
from holdfast.types import Field

_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*\Z")


@dataclass(frozen=True)
class Aggregate:
    """One aggregate of a query, as the output column `name`.

    `inputs` are the columns it goes over; none where it counts rows.
    """

    name: str
    inputs: tuple[str, ...]
    by_pane: bool
    """Whether rows of sliding windows may be summed up by panes."""
    parts: Parts

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its columns in state."""
        return tuple(
            Field(f"{self.name}{partial.suffix}", partial.type) for partial in self.parts.partials
        )

    @property
    def merge(self) -> Merge:
        """How the columns are merged."""
        return Merge(self.parts.merge, tuple(field.name for field in self.fields))

    @property
    def nothing(self) -> tuple[Any, ...]:
        """The cells of the columns before any row."""
        return tuple(partial.nothing for partial in self.parts.partials)

    def of_rows(self, columns: PartialColumns) -> PartialColumns:
        """Its columns row by row, of the columns `inputs`, or of any column if there are none."""
        return [partial.row(columns) for partial in self.parts.partials]

    def finish(self, columns: PartialColumns) -> pa.Array:
        """The function's values."""
        return self.parts.finish_columns(columns)


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
    function = BY_NAME.get(found[1].lower())
    if function is None:
        raise unsupported_call(text, f"{found[1]} is not known")
    inputs, flag = _arguments(function, text, [part.strip() for part in found[2].split(",")])
    for unknown in [part for part in inputs if part not in columns]:
        raise InvalidArgument(
            f"{text} asks for {unknown!r}, which is none of the columns {', '.join(columns)}."
        )
    types = [columns[part].type for part in inputs]
    parts = function.take_apart(FunctionCall(text, tuple(types), flag))
    return Aggregate(name, inputs, function.by_pane, parts)


def _arguments(
    function: AggregateFunction, text: str, given: list[str]
) -> tuple[tuple[str, ...], Any]:
    """The input columns of a call, and its flag."""
    if function.repeated:
        every_row = given in (["*"], ["1"])
        return () if every_row else tuple(part.strip("`") for part in given), None
    wanted = len(function.takes)
    inputs, flags = given[:wanted], given[wanted:]
    if len(inputs) != wanted or len(flags) > (function.flag is not None):
        raise InvalidArgument(
            f"{text} cannot be run here: {function.name} takes {wanted} column{'s'[: wanted != 1]}."
        )
    flag = function.flag.read(flags[0]) if function.flag and flags else None
    return tuple(part.strip("`") for part in inputs), flag
