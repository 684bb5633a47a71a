"""The GroupState that a function of applyInPandasWithState gets: PySpark's own.

It imports PySpark, which every worker has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import Row, StructType

from holdfast.errors import InvalidArgument
from holdfast.streams.clock import EVENT_TIME, NO_TIME, PROCESSING_TIME, Clock

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


@dataclass(frozen=True)
class NewState:
    """Makes the GroupState of a key. It is pickled to the workers."""

    clock: Clock
    schema: StructType

    def __call__(self, value: tuple[Any, ...] | None, has_timed_out: bool) -> HeldGroupState:
        """The state of a key with this value; None: the key has no state."""
        watermark = self.clock.watermark_ms
        return HeldGroupState(
            optionalValue=value,  # type: ignore[arg-type]
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
        return self.getOption

    @property
    def is_changed(self) -> bool:
        """Whether it was updated or removed."""
        return self._updated or self._removed

    @property
    def timeout_ms(self) -> int | None:
        """When the key times out, if the function set that."""
        moment = self._timeout_timestamp
        return None if moment == GroupState.NO_TIMESTAMP else int(moment)


def _python(cell: Any) -> Any:
    """A cell without numpy's and pandas' types."""
    if isinstance(cell, np.generic):
        return cell.tolist()
    for name in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(cell, name):
            return getattr(cell, name)()
    return cell
