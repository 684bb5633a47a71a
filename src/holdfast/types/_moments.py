"""Days and moments outside the years 1 to 9999, which Python's own types cannot hold.

Spark's types hold years up to some 294,000. Such a cell is a `numpy.datetime64`, in days for a
date and in microseconds for a timestamp; a `timestamp` is in UTC.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Literal

import numpy as np

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
YEARS = ((datetime.min - _EPOCH) // _MICROSECOND, (datetime.max - _EPOCH) // _MICROSECOND)
"""The first and the last microsecond since 1970 that a datetime holds."""
DAYS = ((date.min - _EPOCH.date()).days, (date.max - _EPOCH.date()).days)
"""The first and the last day since 1970 that a date holds."""
_FAR = re.compile(
    r"([+-]\d{4,7}|0000)-\d\d-\d\d(?P<clock>[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(?P<utc>Z|\+00:00)?)?"
)


def is_far(cell: object, unit: str) -> bool:
    """Whether a cell is a day ("D") or a moment ("us") that Python's own type cannot hold."""
    if not isinstance(cell, np.datetime64) or np.isnat(cell) or np.datetime_data(cell) != (unit, 1):
        return False
    low, high = YEARS if unit == "us" else DAYS
    return not low <= far_number(cell) <= high


def far_number(cell: np.datetime64) -> int:
    """How many of its unit a day or moment is after 1970."""
    return int(cell.astype(np.int64))


def moment(milliseconds: int) -> datetime | np.datetime64:
    """A moment as a datetime in UTC, or as `numpy.datetime64` where that is out of range."""
    if YEARS[0] <= milliseconds * 1000 <= YEARS[1]:
        return _EPOCH.replace(tzinfo=UTC) + timedelta(milliseconds=milliseconds)
    return np.datetime64(milliseconds * 1000, "us")


def far_text(cell: np.datetime64) -> str:
    """A day or moment in ISO 8601, years after 9999 with a plus sign as Java and Spark write them.

    Fractions of a second are there only where there are some.
    """
    head, dot, fraction = _signed(cell).partition(".")
    return head if not fraction.strip("0") else f"{head}{dot}{fraction}"


def moment_text(milliseconds: int) -> str:
    """A moment in UTC to the millisecond, such as 2026-01-31T12:00:00.000Z, whatever its year."""
    return _signed(np.datetime64(milliseconds, "ms")) + "Z"


def _signed(cell: np.datetime64) -> str:
    """Numpy's text, with four digits at least and a sign where there are more."""
    text = str(cell)
    year, dash, rest = text.removeprefix("-").partition("-")
    sign = "-" if text.startswith("-") else "+" if len(year) > 4 else ""
    return f"{sign}{year.zfill(4)}{dash}{rest}"


def parse_far(text: str, unit: Literal["D", "us"]) -> np.datetime64 | None:
    """What `far_text` wrote, or None for text of another form. Raises ValueError as a parser does.

    A moment may have a Z or a +00:00 at its end.
    """
    match = _FAR.fullmatch(text)
    if match is None:
        return None
    if (unit == "D") != (match["clock"] is None):
        raise ValueError(f"not of the unit {unit}")
    plain = text.removeprefix("+").removesuffix(match["utc"] or "")
    parsed: np.datetime64 = np.datetime64(plain, unit)
    return parsed
