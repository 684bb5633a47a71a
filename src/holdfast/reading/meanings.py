"""What columns and bounds of stored state mean to people beyond their types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from holdfast.ids import TIMERS
from holdfast.reading.model import StoreInfo
from holdfast.types import far_text, moment_text

_UNITS = {"date": "D", "timestamp": "us", "timestamp_ntz": "us"}


def bound_text(store: StoreInfo, bound: int) -> str:
    """A bound on a store's index column as a cell of it: a time where the column holds times."""
    if store.store == TIMERS:
        return moment_text(bound)
    if store.key_index_ordinal is None:
        return str(bound)
    kind = str(store.key_schema.fields[store.key_index_ordinal].type)
    if kind not in _UNITS:
        return f"{bound:,}"
    moment = np.datetime64(bound, "D" if kind == "date" else "us")
    return far_text(moment) + ("Z" if kind == "timestamp" else "")


def timed(found: Mapping[str, object]) -> dict[str, object]:
    """Facts of a manifest with times for those that are in milliseconds; 0 is none yet."""
    told: dict[str, object] = {}
    for name, fact in found.items():
        if name.endswith("_ms") and isinstance(fact, int):
            told[name.removesuffix("_ms")] = _moment_or_none(fact)
        elif name == "inputs" and isinstance(fact, (list, tuple)):
            told[name] = f"[{', '.join(map(_moment_or_none, fact))}]"
        else:
            told[name] = fact
    return told


def _moment_or_none(at_ms: int) -> str:
    return moment_text(at_ms) if at_ms else "–"
