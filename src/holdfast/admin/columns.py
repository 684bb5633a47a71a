"""The columns of stores as a repair takes them: what each is, and which are set together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from holdfast.admin.repair_rules import StoreRules
from holdfast.engine.files.manifest import Manifest
from holdfast.reading.json import JsonBody


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """One column of a store. Field names are the keys of the command line's JSON."""

    name: str
    type: str
    nullable: bool
    place: Literal["key", "value"]
    aggregate: str | None
    """The call of the aggregate that it is part of."""
    set_with: tuple[str, ...] | None
    """The columns that `--partials` sets together; None for a column that is set by its value."""

    @property
    def repaired(self) -> str:
        """How a repair sets it, in words."""
        if self.place == "key":
            return "–"
        if self.set_with is None:
            return "by its value"
        others = ", ".join(name for name in self.set_with if name != self.name)
        return f"with {others} (--partials)" if others else "with --partials"


@dataclass(frozen=True, slots=True)
class StoreColumns:
    """The columns of one store, those of the key first."""

    operator: int
    store: str
    columns: tuple[ColumnInfo, ...]


def store_columns(
    manifest: Manifest, operator: int | None = None, store: str | None = None
) -> list[StoreColumns]:
    """The columns of a version's stores, or of the chosen ones."""
    return [
        StoreColumns(number, name, tuple(_columns(StoreRules(manifest, number, name))))
        for number, stores in sorted(manifest.operators.items())
        for name in sorted(stores)
        if operator in (None, number) and store in (None, name)
    ]


def columns_json(location: str, version: int, stores: Sequence[StoreColumns]) -> JsonBody:
    """The columns of some stores in the shapes that JSON can hold. Keys are stable."""
    return {"location": location, "version": version, "stores": [asdict(each) for each in stores]}


def _columns(rules: StoreRules) -> Iterator[ColumnInfo]:
    for field in rules.entry.key_schema:
        yield ColumnInfo(field.name, str(field.type), field.nullable, "key", None, None)
    for field in rules.values:
        aggregate = rules.aggregate_of(field.name)
        is_alone = aggregate is None or (aggregate.is_set_by_value and field.name == aggregate.name)
        yield ColumnInfo(
            field.name,
            str(field.type),
            field.nullable,
            "value",
            None if aggregate is None else aggregate.call or None,
            None if aggregate is None or is_alone else aggregate.columns,
        )
