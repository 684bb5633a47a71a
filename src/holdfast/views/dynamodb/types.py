"""Spark's types as attributes of DynamoDB, as boto3's client takes and returns them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from typing import Any

import numpy as np

from holdfast.types import ArrayType, DataType, DecimalType, MapType, StringType, StructType
from holdfast.views.keys import iso_date
from holdfast.views.mapping import TypeMapping, is_atomic, is_leaf, leaf_of

Attribute = dict[str, Any]
SMALLEST, GREATEST = 1e-130, 9.99e125
"""The smallest and the largest absolute value that N holds, besides 0."""
MOST_ITEM_BYTES = 400 * 1024
_NULL: Attribute = {"NULL": True}
_EXACT = Context(prec=76)


def attribute(kind: DataType) -> TypeMapping:
    """A type in DynamoDB. Its functions convert None to the attribute NULL and back."""
    made = _leaf(kind) if is_leaf(kind) else _nested(kind)
    encode, decode = made.encode, made.decode
    assert encode is not None
    assert decode is not None
    return TypeMapping(
        made.type,
        lambda cell: _NULL if cell is None else encode(cell),
        lambda found: None if "NULL" in found else decode(found),
    )


def _leaf(kind: DataType) -> TypeMapping:
    name = leaf_of(kind).dynamodb
    if is_atomic(kind, "float", "double"):
        return TypeMapping(name, _number, _from_number)
    if is_atomic(kind, "date"):
        return TypeMapping(name, lambda cell: {"S": iso_date(cell)}, _days)
    if is_atomic(kind, "interval"):
        return TypeMapping(
            name, lambda cell: _list(_integer, cell), lambda f: tuple(_parts(int, f))
        )
    if is_atomic(kind, "variant"):
        encode = lambda cell: {"L": [{"B": part} for part in cell]}  # noqa: E731 - one line
        return TypeMapping(name, encode, lambda f: tuple(part["B"] for part in f["L"]))
    if isinstance(kind, DecimalType):
        return TypeMapping(name, lambda cell: {"N": format(cell, "f")}, _from_decimal(kind.scale))
    if name == "N":
        return TypeMapping(name, _integer, lambda found: int(found["N"]))
    return TypeMapping(name, lambda cell: {name: cell}, lambda found: found[name])


def _nested(kind: DataType) -> TypeMapping:
    if isinstance(kind, ArrayType):
        element = attribute(kind.element)
        return TypeMapping("L", lambda cell: _list(element.encode, cell), _each(element.decode))
    if isinstance(kind, MapType):
        return _map(kind)
    assert isinstance(kind, StructType)
    names, parts = kind.names, [attribute(field.type) for field in kind.fields]
    return TypeMapping(
        "M",
        lambda cell: {"M": dict(zip(names, map(_encoded, parts, cell), strict=True))},
        lambda found: tuple(
            _decoded(part, found["M"][name]) for name, part in zip(names, parts, strict=True)
        ),
    )


def _map(kind: MapType) -> TypeMapping:
    key, value = attribute(kind.key), attribute(kind.value)
    pairs = TypeMapping(
        "L",
        lambda cell: {"L": [{"L": [_encoded(key, k), _encoded(value, v)]} for k, v in cell]},
        lambda found: [
            (_decoded(key, pair["L"][0]), _decoded(value, pair["L"][1])) for pair in found["L"]
        ],
    )
    if isinstance(kind.key, StringType):
        by_name = TypeMapping(
            "M",
            lambda cell: {"M": {k: _encoded(value, v) for k, v in cell}},
            lambda found: [(k, _decoded(value, v)) for k, v in found["M"].items()],
        )
        # Names of attributes must not be empty: a map with an empty key is a list of pairs.
        return TypeMapping(
            "M",
            lambda cell: _encoded(by_name if all(k for k, _ in cell) else pairs, cell),
            lambda found: _decoded(by_name if "M" in found else pairs, found),
        )
    return pairs


def _encoded(part: TypeMapping, cell: Any) -> Any:
    assert part.encode is not None
    return part.encode(cell)


def _decoded(part: TypeMapping, found: Any) -> Any:
    assert part.decode is not None
    return part.decode(found)


def _list(encode: Callable[[Any], Any] | None, cell: Any) -> Attribute:
    assert encode is not None
    return {"L": [encode(part) for part in cell]}


def _each(decode: Callable[[Any], Any] | None) -> Callable[[Attribute], list[Any]]:
    assert decode is not None
    return lambda found: [decode(part) for part in found["L"]]


def _parts(kind: type[int], found: Attribute) -> list[int]:
    return [kind(part["N"]) for part in found["L"]]


def _integer(cell: int) -> Attribute:
    return {"N": str(cell)}


def _number(cell: float) -> Attribute:
    size = abs(cell)
    if SMALLEST <= size <= GREATEST or (cell == 0 and math.copysign(1, cell) > 0):
        return {"N": repr(cell)}
    return {"S": "NaN" if math.isnan(cell) else repr(cell).replace("inf", "Infinity")}


def _from_number(found: Attribute) -> float:
    return float(found["N"] if "N" in found else found["S"])


def _from_decimal(scale: int) -> Callable[[Attribute], Decimal]:
    unit = Decimal(1).scaleb(-scale)
    return lambda found: Decimal(found["N"]).quantize(unit, context=_EXACT)


def _days(found: Attribute) -> int:
    return int(np.datetime64(found["S"], "D").astype(np.int64))


# -- how large an item is --------------------------------------------------------------------------


def item_bytes(item: Mapping[str, Attribute]) -> int:
    """The size of an item by DynamoDB's published rules, or more; never less."""
    return sum(name_bytes(name) + attribute_bytes(value) for name, value in item.items())


def name_bytes(name: str) -> int:
    """The size of an attribute's name."""
    return len(name.encode())


def attribute_bytes(value: Attribute) -> int:
    """The size of an attribute's value."""
    ((kind, cell),) = value.items()
    if kind == "S":
        return len(cell) if cell.isascii() else len(cell.encode())
    if kind == "B":
        return len(cell)
    if kind == "N":
        return len(cell) // 2 + 2
    if kind == "L":
        return 3 + sum(1 + attribute_bytes(part) for part in cell)
    if kind == "M":
        return 3 + sum(1 + name_bytes(n) + attribute_bytes(part) for n, part in cell.items())
    return 1
