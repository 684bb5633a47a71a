"""What may be repaired in a store: told by its columns and by the definition of its query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from holdfast.engine.files.manifest import Manifest, PartitionEntry, StoreEntry
from holdfast.engine.partition.ranges import index_number
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import TIMERS
from holdfast.reading.figures import store_infos
from holdfast.reading.meanings import bound_text
from holdfast.streams.aggregates.stored import StoredAggregate, stored_aggregates
from holdfast.streams.processors.variables import PENDING
from holdfast.streams.stores.contract import EXPIRES_AT
from holdfast.streams.tasks.deduplication import SEEN
from holdfast.types import Row, RowCodec, Schema, moment_text

_SESSIONS = "sessionWindowStateStoreSaveExec"
_DEDUPLICATION, _WITHIN_WATERMARK = "dedupe", "dedupeWithinWatermark"
_ALL_ROWS = (0,)
"""The only key of an aggregation without grouping columns."""


@dataclass(frozen=True)
class StoreRules:
    """The rules of one store of a version.

    With `partials` aggregates are set by all of their stored columns, without it by their values.
    """

    manifest: Manifest
    operator: int
    name: str
    partials: bool = False

    @cached_property
    def entry(self) -> StoreEntry:
        """The store in the version."""
        return self.manifest.operators[self.operator][self.name]

    @cached_property
    def shape(self) -> StoreShape:
        """What follows from its columns."""
        return StoreShape.of_entry(self.entry)

    @property
    def values(self) -> Schema:
        """Its value columns."""
        return self.entry.value_schema

    @property
    def definition(self) -> Mapping[str, str]:
        """What the query says of the operator; empty for a store without a query."""
        told = self.manifest.scope.get("operators", ())
        found: Mapping[str, str] = told[self.operator] if self.operator < len(told) else {}
        return found

    @property
    def title(self) -> str:
        """What kind of operator it is of; empty where that is not known."""
        return self.definition.get("operator", "")

    @cached_property
    def aggregates(self) -> tuple[StoredAggregate, ...]:
        """The aggregates that its columns are made of, if they are."""
        return stored_aggregates(self.definition, self.values)

    def aggregate_of(self, column: str) -> StoredAggregate | None:
        """The aggregate that a stored column is part of."""
        return next((each for each in self.aggregates if column in each.columns), None)

    # -- values --------------------------------------------------------------------------------

    def value(self, cells: Mapping[str, Any], before: Row | None) -> Row:
        """The value to store: these cells, and the others as they are, or as in a new key.

        Raises InvalidArgument where that is not determined, or does not fit the columns.
        """
        given = self._stored(cells)
        names = self.values.names
        others = self._new() if before is None else dict(zip(names, before, strict=True))
        row = {**others, **given}
        if missing := [field for field in self.values if field.name not in row]:
            lacking = next((field for field in missing if not field.nullable), None)
            if lacking is not None:
                raise InvalidArgument(
                    f"The key is new, and its column {lacking.name!r} cannot be null. Give it."
                )
        return RowCodec(self.values).encode(tuple(row.get(name) for name in names))

    def _new(self) -> dict[str, Any]:
        """The cells of a key that is new, as far as they are known."""
        if self.name == TIMERS:
            return {PENDING: True}
        if self.title == _DEDUPLICATION:
            return {SEEN: True}
        found: dict[str, Any] = {}
        for aggregate in self.aggregates:
            found |= zip(aggregate.columns, aggregate.nothing, strict=True)
        return found

    def _stored(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """The cells to store for those that were given."""
        if not self.aggregates:
            return dict(cells)
        found: dict[str, Any] = {}
        for aggregate in self.aggregates:
            given = [name for name in aggregate.columns if name in cells]
            if self.partials or aggregate.parts is None:
                self._check_whole(aggregate, given)
                found |= {name: cells[name] for name in given}
            elif given:
                found |= self._from_value(aggregate, given, cells)
        return found

    def _check_whole(self, aggregate: StoredAggregate, given: list[str]) -> None:
        if not given or (len(given) == len(aggregate.columns) and self.partials):
            return
        lacking = [name for name in aggregate.columns if name not in given]
        what = aggregate.call or "several aggregates"
        if lacking:
            raise InvalidArgument(
                f"{given[0]!r} is a part of {what}, and {lacking[0]!r} is not given. Give all of "
                f"{', '.join(aggregate.columns)} with --partials (partials=True)."
            )
        raise self._needs_partials(aggregate, given[0])

    def _from_value(
        self, aggregate: StoredAggregate, given: list[str], cells: Mapping[str, Any]
    ) -> dict[str, Any]:
        stored = aggregate.cells_of(cells[given[0]]) if given == [aggregate.name] else None
        if stored is None:
            raise self._needs_partials(aggregate, given[0])
        return dict(zip(aggregate.columns, stored, strict=True))

    def _needs_partials(self, aggregate: StoredAggregate, given: str) -> InvalidArgument:
        """The refusal of a value that does not say what to store."""
        columns = ", ".join(aggregate.columns)
        what = aggregate.call or "several aggregates"
        return InvalidArgument(
            f"What is given for {given!r} does not determine the stored columns of {what}. Give "
            f"all of them with --partials (partials=True): {columns}."
        )

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse names that are no stored columns, with the way to set what they stand for."""
        for name in names:
            if name in self.values.names:
                continue
            finished = next((each for each in self.aggregates if each.name == name), None)
            if finished is not None:
                raise self._needs_partials(finished, name)
            raise InvalidArgument(
                f"There is no column {name!r} in the value, which has "
                f"{', '.join(self.values.names)}."
            )

    # -- keys ----------------------------------------------------------------------------------

    def check_key(self, key: Row, part: PartitionEntry, *, is_new: bool) -> None:
        """Refuse to set a key that nobody would see, or with which the query could not continue."""
        if is_new and self.title == _SESSIONS:
            raise InvalidArgument(
                "There is no such session, and one cannot be added: it could overlap others, which "
                "the query would then join. Repair a session that is there."
            )
        if is_new and self.definition.get("keys") == "none" and key != _ALL_ROWS:
            raise InvalidArgument("The aggregation has no groups: its only key is 0.")
        index = self.shape.key_index
        if index is None or part.evict is None:
            return
        number = index_number(self.shape, key[index])
        if number is not None and number <= part.evict:
            column = self.shape.key_schema.fields[index]
            raise InvalidArgument(
                f"The cell of column {column.name!r} is not after {self._bound(part.evict)}, up to "
                "which keys are evicted: nobody would see the row. Choose a later one."
            )

    def _bound(self, bound: int) -> str:
        """A bound of the store as people read it."""
        stores = store_infos(self.manifest)
        place = self.operator, self.name
        return next(bound_text(i, bound) for i in stores if (i.operator, i.store) == place)

    # -- expiry --------------------------------------------------------------------------------

    def expiry(
        self,
        given_ms: int | None,
        value: Row,
        before_ms: int | None,
        part: PartitionEntry,
        *,
        is_new: bool,
        has_ttl: bool,
    ) -> int | None:
        """When a row that is set expires: as it did, as was given, or as its value says.

        Raises InvalidArgument where a new row needs an expiry, and where it has expired.
        """
        expires = before_ms if given_ms is None else given_ms
        if self.title == _WITHIN_WATERMARK:
            expires = self._expiry_of_value(given_ms, value)
        elif is_new and expires is None and has_ttl and self.definition:
            raise InvalidArgument(
                "Rows of this store expire, and the key is new. Say when it does, as "
                '"expires": "2026-01-31T12:00:00Z" beside key and value (column _expires in files).'
            )
        if expires is not None and part.expire is not None and expires <= part.expire:
            raise InvalidArgument(
                f"It would expire at {moment_text(expires)}, and what expires up to "
                f"{moment_text(part.expire)} is gone: nobody would see the row."
            )
        return expires

    def _expiry_of_value(self, given_ms: int | None, value: Row) -> int:
        at_us = dict(zip(self.values.names, value, strict=True))[EXPIRES_AT]
        if given_ms is not None or at_us is None:
            raise InvalidArgument(
                f"A key of a deduplication within the watermark expires as its column "
                f"{EXPIRES_AT!r} says. Give that, in microseconds."
            )
        return -(-int(at_us) // 1000)
