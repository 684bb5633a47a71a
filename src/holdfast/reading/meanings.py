"""What columns and bounds of stored state mean to people beyond their types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np

from holdfast.ids import TIMERS
from holdfast.reading.model import StoreInfo
from holdfast.types import (
    MILLISECONDS,
    AtomicType,
    Schema,
    StructType,
    far_text,
    moment_text,
)

_LONG = AtomicType("long")
_UNITS: dict[str, Literal["D", "us"]] = {"date": "D", "timestamp": "us", "timestamp_ntz": "us"}


def key_meanings(store: str, keys: Schema) -> Schema:
    """The columns of a store's key with their meanings, also where it was made without them."""
    *others, last = keys.fields
    if store != TIMERS or last.type != _LONG or last.meaning is not None:
        return keys
    return Schema(StructType((*others, last.meaning_that(MILLISECONDS))))


def bound_text(store: StoreInfo, bound: int) -> str:
    """A bound on a store's index column as a cell of it: a time where the column holds times."""
    if store.key_index_ordinal is None:
        return f"{bound:,}"
    field = key_meanings(store.store, store.key_schema).fields[store.key_index_ordinal]
    kind = str(field.type)
    if field.meaning == MILLISECONDS:
        return moment_text(bound)
    if kind not in _UNITS:
        return f"{bound:,}"
    moment = np.datetime64(bound, _UNITS[kind])
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
