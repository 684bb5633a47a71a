"""The handle a processor gets: its state variables, its timers, and the query it runs in."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from holdfast.errors import IllegalState, InvalidArgument
from holdfast.streams.clock import NO_TIME
from holdfast.streams.processors.forms import deleted_error
from holdfast.streams.processors.states import (
    ListState,
    MapState,
    StateVariable,
    Timers,
    ValueState,
)
from holdfast.streams.processors.variables import Kind, Variable, new_variable


@dataclass(frozen=True, slots=True)
class QueryInfo:
    """The query, run and batch that a processor runs in."""

    query_id: str
    run_id: str
    batch_id: int

    def getQueryId(self) -> str:
        """The query's id, the same across restarts."""
        return self.query_id

    def getRunId(self) -> str:
        """This run's id."""
        return self.run_id

    def getBatchId(self) -> int:
        """Spark's batch id; in a version without data, that of the batch before it."""
        return self.batch_id


class Handle:
    """Gives a processor its state, as PySpark's StatefulProcessorHandle does."""

    def __init__(
        self,
        time_mode: str,
        open_variable: Callable[[Variable], StateVariable | None] | None = None,
        timers: Timers | None = None,
        query: QueryInfo | None = None,
    ) -> None:
        self._time_mode = time_mode
        self._open = open_variable
        self._timers = timers
        self._query = query
        self._is_open = True
        self._unopened: dict[str, _UnopenedVariable] = {}
        self.variables: dict[str, Variable] = {}
        self.deleted: list[str] = []
        self.states: list[StateVariable] = []
        self.registered = 0
        self.unregistered = 0

    def close_init(self) -> None:
        """End init(): from now on no variable can be added."""
        self._is_open = False
        if self._open is not None and self._unopened:
            names = ", ".join(map(repr, self._unopened))
            raise IllegalState(
                f"init() asked for {names} where the state is, but not when the query was planned. "
                "Have it ask for the same variables each time."
            )

    def getValueState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> ValueState:
        """A variable with one value for each key."""
        state = self._variable(stateName, "value", schema, None, ttlDurationMs)
        return cast(ValueState, state)

    def getListState(
        self, stateName: str, schema: Any, ttlDurationMs: int | None = None
    ) -> ListState:
        """A variable with a list for each key."""
        state = self._variable(stateName, "list", schema, None, ttlDurationMs)
        return cast(ListState, state)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> MapState:
        """A variable with a map for each key."""
        state = self._variable(stateName, "map", valueSchema, userKeySchema, ttlDurationMs)
        return cast(MapState, state)

    def _variable(
        self, name: str, kind: Kind, values: Any, keys: Any, ttl_ms: int | None
    ) -> StateVariable:
        self._check_init(f"The state variable {name!r} is asked for")
        if ttl_ms is not None and self._time_mode == NO_TIME:
            raise InvalidArgument(
                f"The state variable {name!r} has a TTL, but the time mode is None. Use the time "
                "mode ProcessingTime or EventTime."
            )
        if name in self.variables:
            raise InvalidArgument(
                f"The state variable {name!r} is requested twice. Use another name."
            )
        variable = new_variable(name, kind, values, keys, ttl_ms)
        self.variables[name] = variable
        state = None if self._open is None else self._open(variable)
        if state is None:
            unopened = self._unopened[name] = _UnopenedVariable(name, kind)
            return cast(StateVariable, unopened)
        self.states.append(state)
        return state

    def deleteIfExists(self, stateName: str) -> None:
        """Remove a variable with all its state, also one that this init() has got before."""
        self._check_init(f"The state variable {stateName!r} is to be deleted")
        self.deleted.append(stateName)
        if self.variables.pop(stateName, None) is not None:
            self._unopened.pop(stateName).is_deleted = True

    def _check_init(self, what: str) -> None:
        if not self._is_open:
            raise IllegalState(f"{what} outside of init().")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Have handleExpiredTimer called for this key when that time has come."""
        self._timed("registerTimer").register(expiryTimestampMs)
        self.registered += 1

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Remove a timer of this key."""
        self._timed("deleteTimer").delete(expiryTimestampMs)
        self.unregistered += 1

    def listTimers(self) -> Iterator[int]:
        """The timers of this key."""
        return self._timed("listTimers").list()

    def _timed(self, what: str) -> Timers:
        if self._time_mode == NO_TIME:
            raise IllegalState(
                f"{what} was called, but the time mode is None. Use the time mode ProcessingTime "
                "or EventTime."
            )
        if self._timers is None or self._is_open:
            raise IllegalState(f"{what} was called without a key: in init() or close().")
        return self._timers

    def getQueryInfo(self) -> QueryInfo:
        """The query, run and batch that the processor runs in."""
        return self._query or QueryInfo("", "", 0)


class _UnopenedVariable:
    """Stands for a variable without a current key, or a deleted one; every use is an error."""

    def __init__(self, name: str, kind: Kind) -> None:
        self._name, self._kind = name, kind
        self.is_deleted = False

    def __getattr__(self, what: str) -> Any:
        if what.startswith("_"):
            raise AttributeError(what)
        if self.is_deleted:
            raise deleted_error(self._name, self._kind, what)
        raise IllegalState(
            f"The state variable {self._name!r} was used without a key: in init() or close()."
        )


_KINDS: Mapping[str, type[StateVariable]] = {
    "value": ValueState,
    "list": ListState,
    "map": MapState,
    "timers": Timers,
}


def state_class(kind: Kind) -> type[StateVariable]:
    """The class of a kind of variable."""
    return _KINDS[kind]


def fresh(processor: Any) -> Any:
    """A copy of a processor for one task, so that tasks do not share its attributes."""
    try:
        return copy.deepcopy(processor)
    except Exception:  # deepcopy can fail on what cloudpickle still takes to the tasks
        return copy.copy(processor)


def variables_of(processor: Any, time_mode: str) -> Handle:
    """The variables that a processor asks for in init(), called on a copy and without state."""
    handle, processor = Handle(time_mode), fresh(processor)
    processor.init(handle)
    handle.close_init()
    close = getattr(processor, "close", None)
    if close is not None:
        close()
    return handle
