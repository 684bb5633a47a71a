"""Columns of Spark's as operators use them: key columns, windows, and how names are written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType, TimestampNTZType, TimestampType

from holdfast.reserved import FreeNames

DELAY = "spark.watermarkDelayMs"
WINDOW = "spark.timeWindow"
SESSION = "spark.sessionWindow"


@dataclass(frozen=True)
class KeyColumn:
    """A key column as the state stores it: a window takes two columns, its start and its end."""

    field: StructField
    parts: tuple[str, ...]

    @property
    def is_window(self) -> bool:
        """Whether the column is a window."""
        return len(self.parts) == 2

    def columns(self, name: str | None = None) -> list[Column]:
        """The stored columns, computed from the original one; `name` is its name if it differs."""
        source = F.col(quote_column(self.field.name if name is None else name))
        if not self.is_window:
            return [source.alias(self.parts[0])]
        start, end = self.parts
        return [source.getField("start").alias(start), source.getField("end").alias(end)]

    def restored(self) -> Column:
        """The original column with its metadata, computed from the stored ones."""
        if not self.is_window:
            return with_metadata(F.col(quote_column(self.parts[0])), self.field)
        start, end = (F.col(quote_column(part)) for part in self.parts)
        return with_metadata(F.struct(start.alias("start"), end.alias("end")), self.field)


def keys_of(fields: list[StructField], names: FreeNames) -> list[KeyColumn]:
    """The stored form of key columns; the parts of windows get free names from `names`."""
    keys = []
    for field in fields:
        if is_window(field):
            start, end = (names.give(f"{field.name}_{end}") for end in ("start", "end"))
            keys.append(KeyColumn(field, (start, end)))
        else:
            keys.append(KeyColumn(field, (field.name,)))
    return keys


def event_time_ordinal(keys: list[KeyColumn]) -> int | None:
    """The stored column that the watermark evicts by: the event time, or its window's end."""
    ordinal = 0
    for key in keys:
        if DELAY in (key.field.metadata or {}):
            return ordinal + len(key.parts) - 1
        ordinal += len(key.parts)
    return None


def is_window(field: StructField) -> bool:
    """Whether a column is a window made by Spark's functions."""
    kind = field.dataType
    times = (TimestampType, TimestampNTZType)
    marks = field.metadata or {}
    return (
        (WINDOW in marks or SESSION in marks)
        and isinstance(kind, StructType)
        and kind.names == ["start", "end"]
        and all(isinstance(part.dataType, times) for part in kind.fields)
    )


def with_metadata(column: Column, field: StructField) -> Column:
    """A column with a field's name and metadata; Spark marks event times in the metadata."""
    if field.metadata:
        return column.alias(field.name, metadata=field.metadata)
    return column.alias(field.name)


def made_of(columns: Mapping[str, str]) -> dict[str, str]:
    """The expressions behind columns, in the form that `Operator.columns` returns."""
    return {f"column {name}": text for name, text in columns.items()}


def nullable(fields: list[StructField], *, keep_metadata: bool = False) -> StructType:
    """A schema of these columns, all nullable, without metadata unless `keep_metadata` is set."""
    return StructType(
        [
            StructField(f.name, f.dataType, True, f.metadata if keep_metadata else None)
            for f in fields
        ]
    )


def quote_column(name: str) -> str:
    """A column name as Spark's parser takes it literally."""
    return "`" + name.replace("`", "``") + "`"
