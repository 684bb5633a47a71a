"""State changed from outside: the handle of one key, and what a test sets or deletes by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa

from holdfast.engine.hashing.spark_hash import KeyHasher, partition_of
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.errors import InvalidArgument
from holdfast.reserved import HASH
from holdfast.streams.clock import TimerValues
from holdfast.streams.processors.handle import Handle, state_class
from holdfast.streams.processors.states import (
    Cursor,
    ListState,
    MapState,
    StateVariable,
    Timers,
    ValueState,
)
from holdfast.streams.processors.variables import TIMER_VARIABLE, TIMERS, Kind, Variable
from holdfast.streams.stores.contract import TaskStore
from holdfast.testing._keyed import KeyedWork
from holdfast.testing._work import WorkSettings
from holdfast.types import RowCodec, one_array


class KeyHandle(Handle):
    """The handle of one key, with the state variables and timers of a processor as they are.

    It has what a processor's handle has, so a test may also pass it to `init`. Variables have to be
    those of the processor; their schemas and TTLs are the processor's own, and may be left out.
    """

    def __init__(self, edit: KeyEdit) -> None:
        super().__init__(edit.clock.mode, None, edit.timers, edit.query)
        self.close_init()
        self._edit = edit

    @property
    def timerValues(self) -> TimerValues:
        """The time as the processor would get it now."""
        return self._edit.clock.values

    def getValueState(
        self, stateName: str, schema: Any = None, ttlDurationMs: int | None = None
    ) -> ValueState:
        """The key's value."""
        return cast(ValueState, self._edit.state(stateName, "value"))

    def getListState(
        self, stateName: str, schema: Any = None, ttlDurationMs: int | None = None
    ) -> ListState:
        """The key's list."""
        return cast(ListState, self._edit.state(stateName, "list"))

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Any = None,
        valueSchema: Any = None,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        """The key's map."""
        return cast(MapState, self._edit.state(stateName, "map"))

    def deleteIfExists(self, stateName: str) -> None:
        """Nothing: the driver's state has only the variables that the processor asks for."""


class KeyEdit:
    """All stores of an operator at one version, opened to change the state of one key."""

    def __init__(self, work: KeyedWork, setting: WorkSettings, key: Any) -> None:
        self.clock = work.clock(setting.marks, work.schema)
        self.query = setting.query
        self._variables = work.variables
        self._keys = _key_table(work, key)
        own = int(partition_of(self._keys.column(HASH).to_numpy(), work.partitions)[0])
        self._stores: list[TaskStore] = []
        self._states: dict[str, StateVariable] = {}
        cursor = Cursor(setting.base_version + 1)
        cursor.keys, cursor.at = self._keys, 0
        cursor.expires_from = self.clock.now_ms or 0
        for name, spec in setting.stores.items():
            opened = [spec.open(index, setting.base_version) for index in range(work.partitions)]
            self._stores += opened
            variable = TIMER_VARIABLE if name == TIMERS else self._variables[name]
            if self.clock.now_ms is not None and variable.ttl_ms is not None:
                opened[own].expire(self.clock.now_ms)
            state = state_class(variable.kind)(variable, spec, opened[own], cursor)
            state.begin()
            self._states[name] = state

    @property
    def timers(self) -> Timers | None:
        """The timers of the key, with a time mode."""
        return cast("Timers | None", self._states.get(TIMERS))

    def state(self, name: str, kind: Kind | None = None) -> StateVariable:
        """A state variable. Raises InvalidArgument if there is none of this name and kind."""
        variable = self._variables.get(name)
        if variable is None or kind not in (None, variable.kind):
            raise InvalidArgument(
                f"There is no {kind or 'state'} variable {name!r}, but {_told(self._variables)}."
            )
        return self._states[name]

    def set(self, name: str, value: Any) -> None:
        """Set what the variable holds: a value, a whole list, or a whole map."""
        state = self.state(name)
        if isinstance(state, ValueState):
            state.update(value)
            return
        cast("ListState | MapState", state).clear()
        if isinstance(state, MapState):
            for own, held in dict(value).items():
                state.updateValue(own, held)
        else:
            for held in value:
                cast(ListState, state).appendValue(held)

    def delete(self, name: str) -> None:
        """Remove what the variable holds."""
        cast("ValueState | ListState | MapState", self.state(name)).clear()

    def set_group_state(self, name: str, value: Any) -> None:
        """Set the value of a GroupState; its timeout stays."""
        held = cast(ValueState, self.state(name, "value"))
        before = held.get()
        held.update((value, None if before is None else before[1]))

    def prepared(self) -> list[PreparedPartition]:
        """The changes, ready to be committed; none if nothing has changed."""
        for state in self._states.values():
            state.end()
        for store in self._stores:
            store.commit()
        parts = [store.prepared for store in self._stores]
        return parts if any(part.delta is not None for part in parts) else []


def _key_table(work: KeyedWork, key: Any) -> pa.Table:
    """A key as the stores have it; a single column's may come as its cell."""
    codec = RowCodec(work.grouping)
    row = codec.encode(key if isinstance(key, (tuple, list, dict)) else (key,))
    columns = [one_array(column) for column in codec.to_arrow([row])]
    hashes = KeyHasher(work.grouping, len(columns)).hash_columns(columns)
    return pa.table([*columns, pa.array(hashes)], names=[*work.grouping.names, HASH])


def _told(variables: Mapping[str, Variable]) -> str:
    told = ", ".join(f"{name!r} ({variable.kind})" for name, variable in variables.items())
    return told or "the processor has none"
