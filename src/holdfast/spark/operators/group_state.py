"""applyInPandasWithState: the user's function with a GroupState, run where the state is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from pyspark.sql import Column, DataFrame
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import Row, StructType, TimestampType

from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.spark.operators.keyed import KeyedOperator
from holdfast.spark.operators.operator import TaskSettings, ViewSource, nullable
from holdfast.streams.clock import EVENT_TIME, NO_TIME, PROCESSING_TIME, Clock
from holdfast.streams.processors.pandas import PandasFrames
from holdfast.streams.tasks.group_state import STATE, STORE, GroupStateTask, held_as
from holdfast.streams.tasks.task import Task
from holdfast.types import parse_schema

_MODES = {
    GroupStateTimeout.NoTimeout: NO_TIME,
    GroupStateTimeout.ProcessingTimeTimeout: PROCESSING_TIME,
    GroupStateTimeout.EventTimeTimeout: EVENT_TIME,
}
_TIMEOUTS = {mode: timeout for timeout, mode in _MODES.items()}


def checked_timeout(timeout: str) -> str:
    """The time mode of a GroupStateTimeout. Raises InvalidArgument for any other text."""
    if timeout not in _MODES:
        raise InvalidArgument(f"The timeout must be one of {', '.join(_MODES)}, not {timeout!r}.")
    return _MODES[timeout]


class GroupStates(KeyedOperator):
    """Calls a function with the rows of each key, as DataFrames, and the key's state."""

    title = "applyInPandasWithState"

    def __init__(
        self,
        before: DataFrame,
        groupings: tuple[Column, ...],
        after: DataFrame,
        output_mode: str,
        time_mode: str,
        function: Callable[..., Any],
        state: StructType,
    ) -> None:
        super().__init__(before, groupings, after, output_mode, time_mode)
        self._function = function
        self._state = nullable(state.fields)
        schema = parse_schema(self._state)
        schema.check_value()
        self._variable = held_as(schema)

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        return {STORE: self._variable.shape(self._rows.keys)}

    def shown(self, variable: str | None) -> ViewSource:
        return replace(super().shown(variable), store=STORE, values=(STATE,))

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        clock = self._clock(settings)
        return GroupStateTask(
            store=settings.stores[STORE],
            base_version=settings.base_version,
            function=self._function,
            new_state=NewState(clock, self._state),
            variable=self._variable,
            keys=self._rows.key_names,
            rows=PandasFrames(
                self._rows.columns,
                self._output_schema,
                settings.zone,
                is_wide=False,
                is_strict=True,
            ),
            clock=clock,
            outbox=settings.outbox,
        )


@dataclass(frozen=True)
class NewState:
    """Makes the GroupState of a key. It is pickled to the workers."""

    clock: Clock
    schema: StructType

    def __call__(self, value: tuple[Any, ...] | None, has_timed_out: bool) -> HeldGroupState:
        """The state of a key with this value; None: the key has no state."""
        watermark = self.clock.watermark_ms
        shown = None if value is None else changed_times(self.schema, _naive, value)
        return HeldGroupState(
            optionalValue=shown,  # type: ignore[arg-type]
            batchProcessingTimeMs=self.clock.processing_ms,
            eventTimeWatermarkMs=GroupState.NO_TIMESTAMP if watermark is None else watermark,
            timeoutConf=_TIMEOUTS[self.clock.mode],
            hasTimedOut=has_timed_out,
            watermarkPresent=watermark is not None,
            defined=value is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=GroupState.NO_TIMESTAMP,
            keyAsUnsafe=b"",
            valueSchema=self.schema,
        )


class HeldGroupState(GroupState):
    """PySpark's GroupState, which also says afterwards what the function did to it."""

    def update(self, newValue: Any) -> None:
        """Set the state, as PySpark's method does but without importing its test utilities."""
        if newValue is None:
            super().update(newValue)  # type: ignore[arg-type]  # raises
        self._value = Row(*map(_python, newValue))
        self._defined, self._updated, self._removed = True, True, False

    @property
    def value(self) -> tuple[Any, ...] | None:
        """The current value."""
        held = self.getOption
        return None if held is None else changed_times(self._value_schema, _aware, held)

    @property
    def is_changed(self) -> bool:
        """Whether it was updated or removed."""
        return self._updated or self._removed

    @property
    def timeout_ms(self) -> int | None:
        """When the key times out, if the function set that."""
        moment = self._timeout_timestamp
        return None if moment == GroupState.NO_TIMESTAMP else int(moment)


def changed_times(
    schema: StructType, change: Callable[[Any], Any], value: tuple[Any, ...]
) -> tuple[Any, ...]:
    """A row with `change` applied to each of its timestamps."""
    places = [
        n for n, field in enumerate(schema.fields) if isinstance(field.dataType, TimestampType)
    ]
    if not places:
        return value
    return tuple(change(cell) if n in places else cell for n, cell in enumerate(value))


def _naive(cell: datetime | None) -> datetime | None:
    """A timestamp as PySpark passes it: without a zone, in local time."""
    return None if cell is None else cell.astimezone().replace(tzinfo=None)


def _aware(cell: Any) -> Any:
    return cell.astimezone() if isinstance(cell, datetime) and cell.tzinfo is None else cell


def _python(cell: Any) -> Any:
    """A cell without numpy's and pandas' types."""
    if isinstance(cell, np.generic):
        return cell.tolist()
    for name in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(cell, name):
            return getattr(cell, name)()
    return cell
