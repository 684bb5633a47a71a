"""A state and its query belong together: what is noted of a query, and checked at each start."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates.stored import AGGREGATE

Definition = Mapping[str, str]
_RANDOM_VIEW = re.compile(r"\b_pyspark_[0-9a-f]{32}\.")
"""How PySpark's `sql` calls a frame that it is given: another name at every start."""
_LONGEST_TEXT = 300
"""How much of what a column is made of an error shows."""


def new_scope(
    state_id: str, definitions: Sequence[Definition], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """What the manifests of a query say about it."""
    operators = [dict(definition) for definition in definitions]
    return {"kind": "query", "id": state_id, "operators": operators, "columns": columns}


def check_same_query(
    stored: Sequence[Definition], now: Sequence[Definition], root: str, *, may_add: bool
) -> None:
    """Refuse a query whose operators do something else than those that made the state.

    More aggregates than before are no other query when the user says so (`may_add`).
    """
    pairs = zip(map(_comparable, stored), map(_comparable, now), strict=False)
    for number, (before, after) in enumerate(pairs):
        changed = [what for what in {**before, **after} if before.get(what) != after.get(what)]
        only_more = all(what.startswith(AGGREGATE) and what not in before for what in changed)
        if not changed or (only_more and may_add):
            continue
        changes = [
            f"{what} was {before.get(what, 'none')}, is {after.get(what, 'none')}"
            for what in changed
        ]
        way_out = (
            "To let the new ones start empty here, set the option newAggregates to empty; or "
            if only_more
            else "Undo the change, or "
        )
        which = number if len(now) > 1 else None
        raise _another_query(root, which, changes, f"{way_out}start with a new checkpoint.")


def _another_query(
    root: str, operator: int | None, changes: Sequence[str], advice: str
) -> InvalidArgument:
    which = "the query" if operator is None else f"operator {operator}"
    return InvalidArgument(
        f"The state in {root} was made by another query. In {which}: {'; '.join(changes)}. "
        f"{advice}",
        condition="STATE_STORE_SCHEMA_MISMATCH",
    )


def _comparable(definition: Definition) -> Definition:
    return {what: _RANDOM_VIEW.sub("", text) for what, text in definition.items()}


def check_same_columns(
    stored: Mapping[str, Any], now: Mapping[str, Any], root: str, *, may_change: bool
) -> None:
    """Refuse a query whose operators go by columns that are made of something else than before,
    unless the user says that these `may_change`, or whose aggregates are told something else.

    Another Spark or Holdfast may describe the same column in other words, and state of earlier
    versions of Holdfast describes none: what cannot be compared is taken.
    """
    is_same_wording = all(stored.get(what) == now[what] for what in ("spark", "wording"))
    is_comparable = is_same_wording and not may_change
    pairs = zip(stored.get("operators", ()), now["operators"], strict=False)
    for number, (before, after) in enumerate(pairs):
        changed = [
            what
            for what, text in after.items()
            if before.get(what, text) != text and (is_comparable or what.startswith(AGGREGATE))
        ]
        if not changed:
            continue
        changes = [
            f"{what} was {_shortened(before[what])}, is {_shortened(after[what])}"
            for what in changed
        ]
        way_out = (
            ""
            if any(what.startswith(AGGREGATE) for what in changed)
            else "; where the new columns mean the same, set the option changedColumns to accept"
        )
        which = number if len(now["operators"]) > 1 else None
        advice = f"Undo the change or start with a new checkpoint{way_out}."
        raise _another_query(root, which, changes, advice)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"
