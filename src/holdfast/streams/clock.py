"""The time of a version, for operators and processors."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.errors import InvalidArgument

NO_TIME, PROCESSING_TIME, EVENT_TIME = "none", "processingtime", "eventtime"
TIME_MODES = (NO_TIME, PROCESSING_TIME, EVENT_TIME)
NO_MOMENT = -1


def checked_time_mode(time_mode: str) -> str:
    """A time mode in lower case. Raises InvalidArgument for any other text."""
    mode = time_mode.lower()
    if mode not in TIME_MODES:
        raise InvalidArgument(
            f"The time mode must be None, ProcessingTime or EventTime, not {time_mode!r}."
        )
    return mode


@dataclass(frozen=True)
class LateFilter:
    """Rows whose `column` is at or below `upto_us` are late; null is never late."""

    column: str
    upto_us: int


@dataclass(frozen=True, slots=True)
class TimerValues:
    """The time of a version by the clock and by the watermark; -1 if there is none."""

    processing_ms: int = NO_MOMENT
    watermark_ms: int = NO_MOMENT

    def getCurrentProcessingTimeInMs(self) -> int:
        """The time of the version by the clock."""
        return self.processing_ms

    def getCurrentWatermarkInMs(self) -> int:
        """The watermark of the version."""
        return self.watermark_ms


@dataclass(frozen=True, slots=True)
class ExpiredTimerInfo:
    """The timer that has fired."""

    expiry_ms: int = NO_MOMENT

    def getExpiryTimeInMs(self) -> int:
        """The time it was registered for."""
        return self.expiry_ms


@dataclass(frozen=True)
class Clock:
    """The time of a version in the operator's time mode; all in ms.

    `watermark_ms` is None for a query without a watermark. In event time, rows whose `time_column`
    is at or below `late_ms` are dropped.
    """

    mode: str
    processing_ms: int
    watermark_ms: int | None
    late_ms: int = 0
    time_column: str | None = None

    @property
    def now_ms(self) -> int | None:
        """Timers fire and entries expire at or below this time; None without a time mode."""
        if self.mode == PROCESSING_TIME:
            return self.processing_ms
        return self.watermark_ms if self.mode == EVENT_TIME else None

    @property
    def values(self) -> TimerValues:
        """The time as a processor gets it."""
        if self.mode == NO_TIME:
            return TimerValues()
        watermark = NO_MOMENT if self.watermark_ms is None else self.watermark_ms
        return TimerValues(self.processing_ms, watermark)

    @property
    def late(self) -> LateFilter | None:
        """Which rows are dropped."""
        if self.mode != EVENT_TIME or self.time_column is None:
            return None
        return LateFilter(self.time_column, self.late_ms * 1000)
