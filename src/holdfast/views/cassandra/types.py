"""Spark's types in CQL, and cells as Cassandra's driver takes and returns them."""

from __future__ import annotations

from collections.abc import ItemsView, Iterable
from typing import Any

from holdfast.types import ArrayType, DataType, MapType, StructType
from holdfast.views.mapping import Convert, TypeMapping, is_atomic, is_leaf, leaf_of, nullsafe

_FIRST_DAY = 1 << 31
"""CQL's number for 1970-01-01."""


class Pairs:
    """A map as the driver takes it; unlike in a dict, its keys need not be hashable."""

    def __init__(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        self._pairs = list(pairs)

    def __len__(self) -> int:
        return len(self._pairs)

    def items(self) -> list[tuple[Any, Any]]:
        """The pairs."""
        return self._pairs


def cql(kind: DataType) -> TypeMapping:
    """A type in CQL."""
    if is_leaf(kind):
        return _leaf(kind)
    if isinstance(kind, ArrayType):
        return _array(_boxed(cql(kind.element), kind.contains_null))
    if isinstance(kind, MapType):
        return _map(_boxed(cql(kind.key), False), _boxed(cql(kind.value), kind.value_contains_null))
    assert isinstance(kind, StructType)
    if not kind.fields:
        return TypeMapping("boolean", lambda cell: True, lambda cell: ())
    return _tuple([cql(field.type) for field in kind.fields])


def _leaf(kind: DataType) -> TypeMapping:
    name = leaf_of(kind).cql
    if is_atomic(kind, "date"):
        return TypeMapping(name, _FIRST_DAY.__add__, lambda cell: cell.days_from_epoch)
    if name == "time":
        return TypeMapping(name, None, lambda cell: cell.nanosecond_time)
    return TypeMapping(name)


def _boxed(inner: TypeMapping, may_be_null: bool) -> TypeMapping:
    """A cell of a list or map, wrapped in a tuple if it may be null."""
    if not may_be_null:
        return inner
    encode, decode = nullsafe(inner.encode), nullsafe(inner.decode)
    return TypeMapping(
        f"frozen<tuple<{inner.type}>>", lambda cell: (encode(cell),), lambda cell: decode(cell[0])
    )


def _array(element: TypeMapping) -> TypeMapping:
    encode, decode = element.encode or _same, element.decode or _same
    # Where an element may be null, `_boxed` has wrapped it in a tuple.
    return TypeMapping(
        f"frozen<list<{element.type}>>",
        lambda cell: [encode(part) for part in cell],
        lambda cell: [decode(part) for part in cell],
    )


def _map(key: TypeMapping, value: TypeMapping) -> TypeMapping:
    to_key, to_value = key.encode or _same, value.encode or _same
    from_key, from_value = key.decode or _same, value.decode or _same
    return TypeMapping(
        f"frozen<map<{key.type}, {value.type}>>",
        lambda cell: Pairs((to_key(k), to_value(v)) for k, v in cell),
        lambda cell: [(from_key(k), from_value(v)) for k, v in _items(cell)],
    )


def _items(found: Any) -> ItemsView[Any, Any]:
    items: ItemsView[Any, Any] = found.items()
    return items


def _tuple(parts: list[TypeMapping]) -> TypeMapping:
    encoders = [nullsafe(part.encode) for part in parts]
    decoders = [nullsafe(part.decode) for part in parts]
    return TypeMapping(
        f"frozen<tuple<{', '.join(part.type for part in parts)}>>",
        lambda cell: tuple(encode(part) for encode, part in zip(encoders, cell, strict=True)),
        lambda cell: tuple(decode(part) for decode, part in zip(decoders, cell, strict=True)),
    )


def _same(cell: Any) -> Any:
    return cell


def quote_cql(name: str) -> str:
    """The name of a column or table, quoted for CQL."""
    return '"' + name.replace('"', '""') + '"'


__all__ = ["Convert", "Pairs", "cql", "quote_cql"]
