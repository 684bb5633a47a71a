"""State variables as a processor sees them, one key at a time.

A lookup in the store costs nearly the same for one key as for a thousand. So the keys of a chunk
share one read and one write: the state of all of them is read when the first one asks for it, and
their changes are written when the chunk is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.reserved import EXPIRES, FOUND, HASH
from holdfast.streams.aggregates.grouping import codes_of
from holdfast.streams.processors.forms import StateForm, rank
from holdfast.streams.processors.variables import Variable
from holdfast.streams.stores.contract import TaskStore
from holdfast.streams.tasks.task import StoreSpec
from holdfast.types import Row, RowCodec, Schema

_KEYS_AT_FIRST, _KEYS_AT_A_TIME = 100, 2_000
"""How many keys have their lists or maps in memory: at first, while their length is unknown, and
at most."""
_ENTRIES_AT_A_TIME = 200_000
"""How many entries those keys should have together."""
_Entry = tuple[Row, Row | None, int | None]
"""The entry's own key, its value (None: removed), and when it expires."""


class Cursor:
    """Where a task is: the keys of the chunk, the current one of them, and the time.

    `expires_from` is the time that a TTL is counted from, in ms; None if entries never expire.
    """

    def __init__(self, version: int) -> None:
        self.keys: pa.Table = pa.table({})
        self.at = -1
        self.expires_from: int | None = 0
        self._next_position = version << 32

    def position(self) -> int:
        """A number above all earlier ones, in this version and in those before."""
        self._next_position += 1
        return self._next_position


class StateVariable:
    """What all kinds of variables have in common."""

    def __init__(
        self, variable: Variable, spec: StoreSpec, store: TaskStore, cursor: Cursor
    ) -> None:
        self._variable = variable
        self._store = store
        self._cursor = cursor
        self._codec = RowCodec(variable.values)
        self._form = StateForm(variable.values)
        self._names = spec.value_schema.names
        self._key_names = spec.key_schema.names
        self.updated = 0
        self.removed = 0

    def begin(self) -> None:
        """Start a chunk: the cursor has new keys."""
        raise NotImplementedError

    def end(self) -> None:
        """Write the changes of the chunk."""
        raise NotImplementedError

    def _expiry(self) -> int | None:
        ttl, start = self._variable.ttl_ms, self._cursor.expires_from
        return None if ttl is None or start is None else start + ttl

    def _put(self, keys: pa.Table, values: list[Row], expiries: list[int | None]) -> None:
        """Put rows; `keys` has the store's key columns, and `_hash` if it is known."""
        columns = dict(zip(keys.column_names, keys.columns, strict=True))
        columns |= zip(self._names, self._codec.to_arrow(values), strict=True)
        if self._variable.ttl_ms is not None:
            columns[EXPIRES] = pa.array(expiries, pa.int64())
        self._store.put_many(pa.table(columns))
        self.updated += len(values)

    def _remove(self, keys: pa.Table) -> None:
        self._store.remove_many(keys)
        self.removed += keys.num_rows


class ValueState(StateVariable):
    """One value for each key."""

    def begin(self) -> None:
        self._values: list[Row | None] | None = None
        self._changes: dict[int, Row | None] = {}
        self._expiries: dict[int, int | None] = {}

    def exists(self) -> bool:
        """Whether the key has a value."""
        return self._held() is not None

    def get(self) -> Row | None:
        """The key's value, or None."""
        value = self._held()
        return value if value is None else self._form.show(value)

    def _held(self) -> Row | None:
        values = self._values
        if values is None:
            values = self._load()
        return values[self._cursor.at]

    def update(self, newValue: Any) -> None:
        """Set the key's value."""
        at = self._cursor.at
        value = self._form.take(newValue)
        self._changes[at] = value
        if self._values is not None:
            self._values[at] = value
        if self._variable.ttl_ms is not None:
            self._expiries[at] = self._expiry()

    def clear(self) -> None:
        """Remove the key's value."""
        at = self._cursor.at
        self._changes[at] = None
        if self._values is not None:
            self._values[at] = None

    def _load(self) -> list[Row | None]:
        found = self._store.get_many(self._cursor.keys)
        rows = self._codec.from_arrow([found.column(name) for name in self._names], found.num_rows)
        values: list[Row | None] = list(rows)
        for at in np.flatnonzero(~found.column(FOUND).to_numpy()).tolist():
            values[at] = None
        for at, value in self._changes.items():
            values[at] = value
        self._values = values
        return values

    def end(self) -> None:
        puts = [(at, value) for at, value in self._changes.items() if value is not None]
        gone = [at for at, value in self._changes.items() if value is None]
        if puts:
            keys = _taken(self._cursor.keys, [at for at, _ in puts])
            expiries = [self._expiries.get(at) for at, _ in puts]
            self._put(keys, [value for _, value in puts], expiries)
        if gone:
            self._remove(_taken(self._cursor.keys, gone))


class _Collection(StateVariable):
    """Many entries for each key, each with a key of its own."""

    def __init__(
        self, variable: Variable, spec: StoreSpec, store: TaskStore, cursor: Cursor
    ) -> None:
        super().__init__(variable, spec, store, cursor)
        self._prefix = spec.prefix
        fields = spec.key_schema.fields[self._prefix :]
        own = variable.keys or Schema(type(spec.key_schema.struct)(fields))
        self._own, self._own_form = RowCodec(own), StateForm(own)
        self._has_ttl = variable.ttl_ms is not None
        self._keys_at_a_time = min(_KEYS_AT_FIRST, _KEYS_AT_A_TIME)

    def begin(self) -> None:
        self._loaded: dict[int, dict[Row, _Entry]] = {}
        self._changes: dict[int, dict[Row, _Entry]] = {}

    def entries(self) -> dict[Row, _Entry]:
        """The key's entries by their own keys; the caller must not change them."""
        found = self._loaded.get(self._cursor.at)
        return self._load() if found is None else found

    def set(self, own: Row, value: Row | None) -> None:
        """Put an entry; a value of None removes it."""
        at = self._cursor.at
        ends = None if value is None or not self._has_ttl else self._expiry()
        entry = own, value, ends
        name = own if self._own.plain else self._own.hashable(own)
        changes = self._changes.get(at)
        if changes is None:
            changes = self._changes[at] = {}
        changes[name] = entry
        loaded = self._loaded.get(at)
        if loaded is not None:
            _apply(loaded, name, entry)

    def clear(self) -> None:
        """Remove all entries."""
        for own, _, _ in list(self.entries().values()):
            self.set(own, None)

    def exists(self) -> bool:
        """Whether the key has an entry."""
        return bool(self.entries())

    def _load(self) -> dict[Row, _Entry]:
        """Read the entries of the current key and some after it; those before it are done."""
        first = self._cursor.at
        keys = self._cursor.keys.slice(first, self._keys_at_a_time)
        found: list[dict[Row, _Entry]] = [{} for _ in range(keys.num_rows)]
        known = HASH in keys.column_names
        wanted = [HASH] if known else self._key_names[: self._prefix]
        table = self._store.prefix_table(keys.select(wanted))
        if table.num_rows:
            self._sort_in(found, table, keys)
        fitting = _ENTRIES_AT_A_TIME * keys.num_rows // max(table.num_rows, 1)
        self._keys_at_a_time = min(max(fitting, 1), _KEYS_AT_A_TIME)
        self._loaded = {first + place: entries for place, entries in enumerate(found)}
        for at, entries in self._loaded.items():
            for name, entry in self._changes.get(at, {}).items():
                _apply(entries, name, entry)
        return self._loaded[first]

    def _sort_in(self, found: list[dict[Row, _Entry]], table: pa.Table, keys: pa.Table) -> None:
        """Sort rows of the store under the keys they belong to."""
        groups, own = self._key_names[: self._prefix], self._key_names[self._prefix :]
        wanted = keys.select(groups)
        both = pa.concat_tables([wanted, table.select(groups).cast(wanted.schema)])
        codes = codes_of([both.column(name).combine_chunks() for name in groups])
        owner = np.full(int(codes.max()) + 1, -1, np.int64)
        owner[codes[: wanted.num_rows]] = np.arange(wanted.num_rows)
        owners = owner[codes[wanted.num_rows :]]
        own_keys = self._own.from_arrow([table.column(name) for name in own])
        values = self._codec.from_arrow([table.column(n) for n in self._names], len(own_keys))
        for at, key, value in zip(owners.tolist(), own_keys, values, strict=True):
            if at >= 0:
                found[at][self._own.hashable(key)] = key, value, None

    def end(self) -> None:
        changed = [(at, *entry) for at, own in self._changes.items() for entry in own.values()]
        puts = [change for change in changed if change[2] is not None]
        gone = [change for change in changed if change[2] is None]
        if puts:
            keys = self._keys([p[0] for p in puts], [p[1] for p in puts])
            self._put(keys, [p[2] for p in puts if p[2] is not None], [p[3] for p in puts])
        if gone:
            self._remove(self._keys([g[0] for g in gone], [g[1] for g in gone]))

    def _keys(self, at: list[int], own: list[Row]) -> pa.Table:
        groups = self._key_names[: self._prefix]
        keys = _taken(self._cursor.keys.select(groups), at)
        for name, column in zip(
            self._key_names[self._prefix :], self._own.to_arrow(own), strict=True
        ):
            keys = keys.append_column(name, column)
        return keys


class ListState(_Collection):
    """A list for each key; entries are stored under ascending positions."""

    def get(self) -> Iterator[Row]:
        """The key's list."""
        entries = self.entries()
        held = [entries[name][1] for name in sorted(entries)]
        return iter([self._form.show(value) for value in held if value is not None])

    def put(self, newState: Any) -> None:
        """Set the key's list. Raises InvalidArgument if that is empty, as Spark does."""
        values = self._taken(newState)
        self.clear()
        self._append(values)

    def appendValue(self, newState: Any) -> None:
        """Add one value."""
        self._append([self._form.take(newState)])

    def appendList(self, newState: Any) -> None:
        """Add values. Raises InvalidArgument if there are none, as Spark does."""
        self._append(self._taken(newState))

    def _append(self, values: list[Row]) -> None:
        for value in values:
            self.set((self._cursor.position(),), value)

    def _taken(self, values: Any) -> list[Row]:
        taken = list(map(self._form.take, values))
        if not taken:
            raise InvalidArgument(
                f"The list state {self._variable.name!r} was given an empty list. Call clear() to "
                "remove what it holds.",
                condition="ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE",
            )
        return taken


class MapState(_Collection):
    """A map for each key."""

    def getValue(self, key: Any) -> Any:
        """The value under a key of the map as a Row, or None."""
        entry = self.entries().get(self._own.hashable(self._own_form.take(key)))
        value = None if entry is None else entry[1]
        return None if value is None else self._form.show_row(value)

    def containsKey(self, key: Any) -> bool:
        """Whether the map has the key."""
        return self._own.hashable(self._own_form.take(key)) in self.entries()

    def updateValue(self, key: Any, value: Any) -> None:
        """Set the value under a key of the map."""
        self.set(self._own_form.take(key), self._form.take(value))

    def iterator(self) -> Iterator[tuple[Row, Row]]:
        """Keys and values of the map, in the order of the keys: nulls first, NaN last."""
        shown, form = self._own_form.show, self._form
        entries = sorted(self.entries().values(), key=lambda entry: rank(entry[0]))
        return iter([(shown(own), form.show(held)) for own, held, _ in entries if held is not None])

    def keys(self) -> Iterator[Row]:
        """Keys of the map, in their order."""
        return iter([own for own, _ in self.iterator()])

    def values(self) -> Iterator[Row]:
        """Values of the map, in the order of the keys."""
        return iter([value for _, value in self.iterator()])

    def removeKey(self, key: Any) -> None:
        """Remove a key from the map."""
        self.set(self._own_form.take(key), None)


class Timers(_Collection):
    """The timers of each key."""

    lowest: int | None = None
    """The earliest time registered since this was last set to None."""

    def register(self, moment_ms: int) -> None:
        """Register a timer of the key."""
        moment = int(moment_ms)
        self.set((moment,), (True,))
        if self.lowest is None or moment < self.lowest:
            self.lowest = moment

    def delete(self, moment_ms: int) -> None:
        """Remove a timer of the key."""
        self.set((int(moment_ms),), None)

    def list(self) -> Iterator[int]:
        """The times of the key's timers, earliest first."""
        return iter(sorted(own[0] for own, _, _ in self.entries().values()))

    def due(self, upto_ms: int) -> pa.Table:
        """Keys with a timer at or before `upto_ms`, including those registered by this version."""
        tables = [table for table in self._store.evicted_tables(None, upto_ms) if table.num_rows]
        if not tables:
            return pa.table({})
        return pa.concat_tables(tables).drop_columns([self._names[0]])

    def earliest(self, now_ms: int) -> int | None:
        """The next timer of any key after those up to `now_ms` have fired.

        It may be a timer that was deleted: the store only knows the lowest index it ever had. Then
        a version runs for nothing.
        """
        late = self.lowest if self.lowest is not None and self.lowest <= now_ms else None
        return self._store.earliest_index(now_ms) if late is None else late

    @property
    def moment_name(self) -> str:
        """The column with the times of timers."""
        return self._key_names[-1]


def _apply(entries: dict[Row, _Entry], name: Row, entry: _Entry) -> None:
    if entry[1] is None:
        entries.pop(name, None)
    else:
        entries[name] = entry


def _taken(table: pa.Table, at: list[int]) -> pa.Table:
    return table.take(pa.array(at, pa.int64()))
