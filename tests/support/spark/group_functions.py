"""Functions that run through Spark's own applyInPandasWithState and through Holdfast, unchanged."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.errors import PySparkException

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "id string, what string, n long"
STATE = "n long, name string"
Frames = Iterable[pd.DataFrame]


def _frame(key: Any, what: Any, n: Any) -> pd.DataFrame:
    return pd.DataFrame({"n": [n], "id": [key[0]], "what": [str(what)]})


def counts(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """A running count."""
    n = state.get[0] if state.exists else 0
    n += sum(len(frame) for frame in frames)
    state.update((pd.Series([n]).sum(), str(key[0])))
    yield _frame(key, state, n)


def removal(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """A running count that starts anew once it is large; some calls change nothing."""
    size = sum(len(frame) for frame in frames)
    n = size + (state.getOption or (0,))[0]
    if size == 1:
        return
    if n > 12:
        state.remove()
    else:
        state.update((n, None))
    yield _frame(key, f"{state} {state.exists} {state.getOption}", n)


def quiet(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Counts until nothing has come for a while by the watermark, then says so and forgets."""
    if state.hasTimedOut:
        sizes = [(len(frame), list(frame.columns)) for frame in frames]
        held = state.getOption
        state.remove()
        if held is not None and held[0] > 4:
            state.setTimeoutTimestamp(state.getCurrentWatermarkMs() + 120_000)
        yield _frame(key, f"over {sizes} {held} {state.oldTimeoutTimestamp}", len(sizes))
        return
    latest = 0
    n = (state.getOption or (0,))[0]
    for frame in frames:
        n += len(frame)
        latest = max(latest, int(frame.ts.max().timestamp() * 1000))
    state.update((n, None))
    state.setTimeoutTimestamp(max(latest, state.getCurrentWatermarkMs()) + 60_000)
    yield _frame(key, state.getCurrentWatermarkMs(), n)


def columns(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Says what it was given: every cell of it, and its type in pandas."""
    for frame in frames:
        dtypes = [f"{name}: {frame[name].dtype}" for name in frame.columns]
        cells = sorted(str(row) for row in frame.itertuples(index=False, name=None))
        kinds = [type(cell).__name__ for cell in key]
        yield _frame(key, [kinds, frame.index, *dtypes, *cells], len(frame))


def refusals(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Does what it may not do, and says what it was told."""

    def told(call: Callable[[], Any]) -> str:
        try:
            return f"{call()}"
        except PySparkException as error:
            return f"{type(error).__name__} {error.getCondition()} {error.getMessageParameters()}"

    calls: list[Callable[[], Any]] = [
        lambda: state.get,
        lambda: state.getOption,
        lambda: state.update(None),
        lambda: state.setTimeoutDuration("5 s"),
        lambda: state.setTimeoutDuration(0),
        lambda: state.setTimeoutTimestamp(0),
        lambda: state.setTimeoutTimestamp(1000),
        lambda: state.getCurrentWatermarkMs(),
        lambda: state.remove(),
        lambda: state.exists,
    ]
    yield _frame(key, [told(call) for call in calls], 0)


def durations(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Waits until the next batch without rows of the key, or for a day."""
    held = state.getOption
    if state.hasTimedOut:
        state.remove()
        yield _frame(key, ["over", held, state.exists], None)
        return
    n = (held or (0,))[0] + sum(len(frame) for frame in frames)
    state.update((n, None))
    state.setTimeoutDuration(86_400_000 if n % 3 == 0 else 1)
    yield _frame(key, state.getCurrentProcessingTimeMs() > 0, n)


TYPES = (
    "n long, x double, d decimal(12,2), day date, at timestamp, raw binary, flag boolean, s string"
)
"""Spark fails on state with arrays here."""


def types(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Keeps many types, with nulls among them."""
    held = state.getOption
    n = (0 if held is None or held[0] is None else held[0]) + sum(len(frame) for frame in frames)
    if n % 4 == 0:
        state.update((None,) * 8)
    else:
        day, at = date(2024, 2, 29), datetime(2024, 2, 29, 12, 0, n % 60, 5)
        cells = (n, n / 4, Decimal(n) / 4, day, at, b"\x00\xff", n > 3, f"s{n}")
        state.update(cells)
    yield _frame(key, None if held is None else [_word(cell) for cell in held], n)


def _word(cell: Any) -> Any:
    if isinstance(cell, (bytes, bytearray)):
        return bytes(cell)
    return str(cell)


CASES: dict[str, tuple[Callable[..., Any], str, bool]] = {
    "counts": (counts, "NoTimeout", False),
    "removal": (removal, "NoTimeout", True),
    "event-time timeout": (quiet, "EventTimeTimeout", True),
    "clock timeout": (durations, "ProcessingTimeTimeout", False),
    "columns": (columns, "NoTimeout", False),
    "types": (types, "NoTimeout", False),
    "refusals": (refusals, "NoTimeout", False),
    "refusals in event time": (refusals, "EventTimeTimeout", True),
}
"""The function, its timeout, and whether there is a watermark."""


def by_clock(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Waits for a moment by the clock."""
    if state.hasTimedOut:
        state.remove()
        yield _frame(key, "over", None)
        return
    state.update((1, "waits"))
    state.setTimeoutDuration(2000)
    yield _frame(key, "waits", state.getCurrentProcessingTimeMs() > 0)


def mortal(
    key: Any, frames: Frames, state: Any, *, marker: str
) -> Iterator[pd.DataFrame]:  # pragma: no cover - runs in a worker that dies
    """A running count whose process ends, once, when it comes to its third batch."""
    n = (state.getOption or (0,))[0] + sum(len(frame) for frame in frames)
    if n > 20 and not os.path.exists(marker):
        open(marker, "x").close()
        os._exit(1)
    state.update((n, None))
    yield _frame(key, "counted", n)


def whole_frame(key: Any, frames: Frames, state: Any) -> Any:
    """Returns a DataFrame, not an iterator of them."""
    return _frame(key, "secret", 1)


def wrong_state(key: Any, frames: Frames, state: Any) -> Iterator[pd.DataFrame]:
    """Keeps what the state cannot hold."""
    state.update(("secret", "secret"))
    yield _frame(key, "", 1)
