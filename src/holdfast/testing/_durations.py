"""Durations as Spark writes them: "5 minutes", "1 hour 30 seconds"."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

from holdfast.errors import InvalidArgument

_UNITS_US = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_PART = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([a-z]+)\s*")


def micros(length: str | timedelta) -> int:
    """A duration in microseconds. Raises InvalidArgument for other text, and months or years."""
    if isinstance(length, timedelta):
        return length // timedelta(microseconds=1)
    text = length.strip().lower().removeprefix("interval").strip()
    total, at = Fraction(0), 0
    while at < len(text):
        part = _PART.match(text, at)
        unit = None if part is None else _UNITS_US.get(part[2].removesuffix("s"))
        if part is None or unit is None:
            raise _refusal(length)
        total += Fraction(part[1]) * unit
        at = part.end()
    if not text or total.denominator != 1:
        raise _refusal(length)
    return int(total)


def _refusal(length: str) -> InvalidArgument:
    return InvalidArgument(
        f"{length!r} is not a duration. Write it in weeks, days, hours, minutes, seconds, "
        "milliseconds or microseconds: '5 minutes', '1 hour 30 seconds'."
    )
