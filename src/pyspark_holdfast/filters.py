"""Spark's filters, used to skip keys and partitions that cannot match.

A filter that cannot be used is ignored, because Spark applies all of them again.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
)

from holdfast.errors import InvalidArgument
from holdfast.reading.reader import VersionReader
from holdfast.reading.where import check_filter
from holdfast.store import Row
from holdfast.types import Field, Schema, StructType

_COMPARE: dict[type[Filter], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}
Places = dict[int, list[Row]]
_MOST_KEYS = 256
"""With more keys than this, reading the partition is faster."""


@dataclass
class KeyFilters:
    """The filters on columns of the key, by name, and those on `partition_id`."""

    columns: dict[str, list[Filter]] = field(default_factory=dict)
    places: list[Filter] = field(default_factory=list)

    @classmethod
    def of(cls, filters: Iterable[Filter], key_schema: Schema) -> KeyFilters:
        """The filters that can skip something."""
        found = cls()
        types = {column.name: column for column in key_schema.fields}
        for one in filters:
            path: tuple[str, ...] = getattr(one, "attribute", ())
            if path == ("partition_id",) and type(one) in (EqualTo, In):
                found.places.append(one)
            column = types.get(path[1]) if len(path) == 2 and path[0] == "key" else None
            if column is not None and _expression(one, column) is not None:
                found.columns.setdefault(column.name, []).append(one)
        return found

    def may_have(self, partition: int) -> bool:
        """Whether the filters on `partition_id` allow a partition."""
        return all(partition in _values(one) for one in self.places)

    def expression(self, key_schema: Schema) -> pc.Expression | None:
        """A filter for a scan, true for every row that may match; None if there is none."""
        found = None
        for column in key_schema.fields:
            for one in self.columns.get(column.name, []):
                part = _expression(one, column)
                found = part if found is None else found & part
        return found

    def wanted_keys(self, reader: VersionReader) -> Places | None:
        """The only keys that can match, by partition; None if the filters do not name keys."""
        return self._wanted(reader.key_schema, reader.partition_of)

    def wanted_prefixes(self, reader: VersionReader) -> Places | None:
        """The same of prefixes; None also where the store has none."""
        if reader.shape.prefix == 0:
            return None
        return self._wanted(reader.shape.prefix_shape.key_schema, reader.partition_of_prefix)

    def _wanted(self, schema: Schema, partition_of: Callable[[Row], int]) -> Places | None:
        choices = []
        for column in schema.fields:
            equal = [f for f in self.columns.get(column.name, []) if type(f) in (EqualTo, In)]
            if not equal:
                return None
            choices.append(min((_values(one) for one in equal), key=len))
        rows = list(itertools.islice(itertools.product(*choices), _MOST_KEYS + 1))
        if len(rows) > _MOST_KEYS:
            return None
        places: Places = {}
        try:
            for row in rows:
                places.setdefault(partition_of(row), []).append(row)
        except InvalidArgument:
            return None
        return places


def _values(one: Filter) -> list[Any]:
    """The cells that an equality allows, each once; null equals nothing."""
    given = one.value if isinstance(one, In) else [one.value]  # type: ignore[attr-defined]
    return [cell for cell in dict.fromkeys(given) if cell is not None]


def _expression(one: Filter, column: Field) -> Any:
    """A filter on one column for Arrow; None if Arrow has none that agrees with Spark.

    Spark compares floating-point numbers in a different way.
    """
    kind = column.type.arrow
    cells = pc.field(column.name)
    try:
        if isinstance(one, IsNull):
            found = cells.is_null()
        elif isinstance(one, IsNotNull):
            found = cells.is_valid()
        elif pa.types.is_nested(kind) or pa.types.is_floating(kind):
            return None
        elif isinstance(one, In):
            found = cells.isin(pa.array(_values(one), kind))
        elif type(one) in _COMPARE and one.value is not None:  # type: ignore[attr-defined]
            cell = pa.scalar(one.value, kind)  # type: ignore[attr-defined]
            found = _COMPARE[type(one)](cells, cell)
        else:
            return None
        return check_filter(found, StructType((column,)))
    except (pa.ArrowException, InvalidArgument, TypeError, ValueError, OverflowError):
        return None
