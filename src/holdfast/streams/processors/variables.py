"""The state variables of a processor, and the stores that hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import TIMERS as TIMERS
from holdfast.ids import check_store_name
from holdfast.types import (
    LIST_POSITION,
    MILLISECONDS,
    AtomicType,
    Field,
    Schema,
    StructType,
    parse_schema,
)

POSITION = "position"
EXPIRY = "expiry_ms"
PENDING = "pending"
_LONG = AtomicType("long")
Kind = Literal["value", "list", "map", "timers"]


@dataclass(frozen=True)
class Variable:
    """A state variable: its name, its kind, and the columns of an entry.

    `keys` are the columns of a map's keys, and `ttl_ms` is how long an entry lasts.
    """

    name: str
    kind: Kind
    values: Schema
    keys: Schema | None = None
    ttl_ms: int | None = None

    def shape(self, grouping: Schema) -> StoreShape:
        """The shape of the variable's store, whose keys begin with the grouping key.

        A column whose name is taken gets another one.
        """
        own = self._own_keys
        taken = {field.name for field in grouping}
        keys = Schema(StructType((*grouping.fields, *_renamed(own, taken))))
        values = Schema(StructType(_renamed(self.values.fields, taken)))
        index = len(grouping) if self.kind == "timers" else None
        return StoreShape.of(keys, values, index, len(grouping) if own else 0)

    @cached_property
    def _own_keys(self) -> tuple[Field, ...]:
        if self.kind == "map":
            assert self.keys is not None
            return self.keys.fields
        if self.kind == "list":
            return (Field(POSITION, _LONG).meaning_that(LIST_POSITION),)
        if self.kind == "timers":
            return (Field(EXPIRY, _LONG).meaning_that(MILLISECONDS),)
        return ()


TIMER_VARIABLE = Variable(TIMERS, "timers", parse_schema(f"{PENDING} boolean"))


def _renamed(fields: Sequence[Field], taken: set[str]) -> tuple[Field, ...]:
    renamed = []
    for field in fields:
        name = field.name
        while name in taken:
            name += "_"
        taken.add(name)
        renamed.append(Field(name, field.type, field.nullable, field.metadata))
    return tuple(renamed)


def new_variable(
    name: str, kind: Kind, values: object, keys: object = None, ttl_ms: int | None = None
) -> Variable:
    """Make a variable as a processor asks for it. Raises InvalidArgument if it cannot be stored."""
    check_store_name(name)
    if name.startswith("$"):
        raise InvalidArgument(f"The state variable {name!r} must not start with '$'.")
    if ttl_ms is not None and ttl_ms <= 0:
        raise InvalidArgument(
            f"The TTL of the state variable {name!r} must be above 0 ms, not {ttl_ms}."
        )
    key_schema = None if keys is None else parse_schema(keys)
    if key_schema is not None:
        key_schema.check_key()
    value_schema = parse_schema(values)
    value_schema.check_value()
    return Variable(name, kind, value_schema, key_schema, ttl_ms)


def shown_variable(variables: Mapping[str, Variable], wanted: str | None) -> str:
    """The variable that a view shows: the wanted one, or the only value state.

    Raises InvalidArgument if that is not one value state.
    """
    single = [name for name, variable in variables.items() if variable.kind == "value"]
    there = ", ".join(f"{name} ({variable.kind})" for name, variable in variables.items())
    if wanted is None and len(single) == 1:
        return single[0]
    if wanted is None and single:
        raise InvalidArgument(
            f"The processor has several value states: {', '.join(single)}. Set the option "
            "viewVariable to the one that the view shows."
        )
    if wanted is not None and wanted not in variables:
        raise InvalidArgument(
            f"viewVariable is {wanted!r}, but the processor has {there or 'no state variables'}."
        )
    if wanted not in single:
        what = "the processor has none" if wanted is None else f"{wanted!r} is not one"
        raise InvalidArgument(
            f"A view shows a value state, but {what}; there are {there or 'no variables'}. Also "
            "store what other services need in a value state."
        )
    return str(wanted)


def shapes_of(
    variables: Mapping[str, Variable], grouping: Schema, *, has_time: bool
) -> dict[str, StoreShape]:
    """The stores of an operator: one for each variable, and one for timers with a time mode.

    An operator without variables has the store of timers as well, since it needs a store.
    """
    wanted = dict(variables)
    if has_time or not wanted:
        wanted[TIMERS] = TIMER_VARIABLE
    return {name: variable.shape(grouping) for name, variable in wanted.items()}
