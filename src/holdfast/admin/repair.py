"""Repair: some keys of one store are changed from outside, as one new version of the root.

plan = holdfast.admin.repair("checkpoint", set={"key": ("u17",), "value": {"total": 3}})
plan.keys                   # each key with its value before and after
plan.run()

The version has an ordinary delta, so views, change feeds, diffs and histories follow.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.admin.plan import Lines, OperationPlan, OperationResult, driver_line
from holdfast.admin.repair_changes import ChangeFinder, KeyChange
from holdfast.admin.repair_commit import (
    check_deliverable,
    check_delivered,
    check_own,
    commit,
    is_of_query,
)
from holdfast.admin.repair_input import RepairInput
from holdfast.admin.repair_rules import StoreRules
from holdfast.admin.site import Location, Site, open_site
from holdfast.engine.files.manifest import Manifest
from holdfast.errors import InvalidArgument
from holdfast.reading import Progress
from holdfast.reading.cells import field_text, row_json
from holdfast.reading.json import JsonBody
from holdfast.types import Row, Schema

_SHOWN_KEYS = 20
"""How many keys `lines` shows; `json` has all."""
_LONGEST = 60
"""How much of a cell `lines` shows."""


@dataclass(frozen=True, slots=True)
class RepairedKey:
    """A key that a repair touches; None before says that it is new, None after that it goes."""

    key: Row
    """As people read it: the entries of a list are counted from 0."""
    before: Row | None
    after: Row | None


@dataclass(frozen=True)
class RepairPlan(OperationPlan):
    """A repair of some keys of one store, as version `version`."""

    root: str
    version: int
    operator: int
    store: str
    keys: tuple[RepairedKey, ...]
    """Each key that is set or removed."""
    deliver: bool
    reason: str | None
    kind: str = "repair"
    fences: bool = True
    site: Site = field(repr=False, compare=False, kw_only=True)
    base: Manifest = field(repr=False, compare=False, kw_only=True)
    changes: Mapping[int, Sequence[KeyChange]] = field(repr=False, compare=False, kw_only=True)
    """What is written, by partition."""

    @property
    def removed(self) -> int:
        """How many keys go."""
        return sum(each.after is None for each in self.keys)

    def lines(self) -> Lines:
        name = f"operator {self.operator}, store {self.store}"
        lines = [
            ("root", self.root),
            ("version", f"{self.base.version} becomes {self.version}"),
            (name if self._is_query else "store", self._count),
        ]
        rules = StoreRules(self.base, self.operator, self.store)
        for number, each in enumerate(self.keys[:_SHOWN_KEYS], 1):
            lines.append((f"key {number}", _told(each, rules)))
        if len(self.keys) > _SHOWN_KEYS:
            lines.append(("more", f"{len(self.keys) - _SHOWN_KEYS:,} keys; --json shows all"))
        if self._is_query:
            lines.append(("delivery", self._delivery))
        return [*lines, driver_line(self.site.age_ms(self.base))]

    @property
    def _is_query(self) -> bool:
        return is_of_query(self.base)

    @property
    def _count(self) -> str:
        written = len(self.keys) - self.removed
        return f"{_keys(written)} set, {_keys(self.removed)} removed"

    @property
    def _delivery(self) -> str:
        if not self.deliver:
            return "nothing is sent downstream"
        return (
            "the next start of the query sends the rows that are set downstream first; in append "
            "mode a window is sent when it closes"
        )

    def json(self) -> JsonBody:
        entry = self.base.operators[self.operator][self.store]
        keys, values = entry.key_schema, entry.value_schema
        listed = [
            {
                "key": row_json(keys, each.key),
                "before": None if each.before is None else row_json(values, each.before),
                "after": None if each.after is None else row_json(values, each.after),
            }
            for each in self.keys
        ]
        names = ("kind", "root", "version", "operator", "store", "deliver", "reason")
        body: JsonBody = {name: getattr(self, name) for name in names}
        age_ms = self.site.age_ms(self.base)
        return {**body, "newest_age_ms": age_ms, "removed": self.removed, "keys": listed}

    def run(self, progress: Progress | None = None) -> OperationResult:
        detail = {
            "operator": self.operator,
            "store": self.store,
            "set": len(self.keys) - self.removed,
            "removed": self.removed,
            "deliver": self.deliver,
        }
        entry = self.site.entry(self.kind, self.version, self.reason, detail)
        place = self.operator, self.store

        def publish() -> Manifest:
            return commit(
                self.site, self.base, place, self.changes, entry.json(), deliver=self.deliver
            )

        made = self.site.carry_out(entry, self.base, publish)
        summary = f"version {made.version} has the repair: {self._count}"
        return OperationResult(self.kind, self.root, made.version, summary, detail)


def repair(
    location: Location,
    *,
    set: Any = None,  # noqa: A002 - the word for it, as in SQL
    delete: Any = None,
    delete_where: Any = None,
    rows: pa.Table | str | os.PathLike[str] | None = None,
    partials: bool = False,
    deliver: bool = False,
    operator: int | None = None,
    store: str | None = None,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
    checkpoint: Location | None = None,
) -> RepairPlan:
    """Plan to set or remove keys of one store, as a new version. Nothing is changed before `run`.

    `location` is a query's checkpoint, its stateLocation, or a store's folder; `operator` and
    `store` choose where there are several stores. Where the state is not in the checkpoint, name
    that as `checkpoint`.

    `set` is {"key": …, "value": {…}}, a list of those, or JSON text of either; a key is given as
    for `get`, and columns that a value leaves out stay. "expires" beside them says when the row
    expires, as a time or in ms. `delete` is a key or a list of keys, `delete_where` a filter as
    for `scan`. `rows` is an Arrow table, or a file (.parquet, .jsonl, .csv), with key and value
    columns. Aggregates are set by their values; with `partials` by all of their stored columns.
    With `deliver` the next start of the query sends the rows that are set to its sink.

    A driver that runs stops with Conflict. Raises InvalidArgument for what does not fit the
    store or would change nothing, and IllegalState where the newest version is not known to be
    delivered.
    """
    site = open_site(location, checkpoint, options)
    given = RepairInput(set, delete, delete_where, rows)
    return plan_repair(
        site,
        given,
        operator=operator,
        store=store,
        partials=partials,
        deliver=deliver,
        reason=reason,
    )


def plan_repair(
    site: Site,
    given: RepairInput,
    *,
    operator: int | None = None,
    store: str | None = None,
    partials: bool = False,
    deliver: bool = False,
    reason: str | None = None,
) -> RepairPlan:
    """Plan a repair of a root that is open. The arguments are those of `repair`."""
    base = site.newest()
    chosen = site.root.store(operator, store)
    check_own(site, base, (chosen.operator, chosen.name))
    if is_of_query(base):
        check_delivered(site, base)
    rules = StoreRules(base, chosen.operator, chosen.name, partials)
    if deliver:
        check_deliverable(site, base, rules)
    reader = chosen.at(base.version)
    found = ChangeFinder(reader, rules, keep_equal=deliver)
    changes = list(found.of(given))
    if not changes:
        raise InvalidArgument(
            "Nothing would change: no key is given that is there, or has another value. Nothing "
            "was written."
        )
    by_partition: dict[int, list[KeyChange]] = {}
    for change in changes:
        by_partition.setdefault(change.partition, []).append(change)
    return RepairPlan(
        site.location,
        base.version + 1,
        chosen.operator,
        chosen.name,
        tuple(RepairedKey(found.shown(each), each.before, each.after) for each in changes),
        deliver,
        reason,
        site=site,
        base=base,
        changes=by_partition,
    )


def _keys(count: int) -> str:
    return f"{count:,} key{'' if count == 1 else 's'}"


def _told(each: RepairedKey, rules: StoreRules) -> str:
    """A key with what becomes of it, in words."""
    key = ", ".join(_texts(rules.entry.key_schema, each.key).values())
    before = None if each.before is None else _texts(rules.values, each.before)
    after = None if each.after is None else _texts(rules.values, each.after)
    if after is None:
        cells = [f"{name} {cell}" for name, cell in (before or {}).items()]
        return f"{key}: removed ({', '.join(cells)})"
    if before is None:
        return f"{key}: new, {', '.join(f'{name} {cell}' for name, cell in after.items())}"
    cells = [
        f"{name} {before[name]} → {cell}" for name, cell in after.items() if cell != before[name]
    ]
    return f"{key}: {', '.join(cells) or 'as it was'}"


def _texts(schema: Schema, row: Row) -> dict[str, str]:
    pairs = zip(schema, row, strict=True)
    return {column.name: _shortened(field_text(column, cell)) for column, cell in pairs}


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
