"""State and checkpoint belong together: each notes the other's id, and a wrong pair is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from holdfast.engine.files.manifest import Manifest
from holdfast.errors import IllegalState, InvalidArgument
from holdfast.spark.interop import hadoop

Definition = Mapping[str, str]
AGGREGATE = "aggregate "
"""How the definition of an aggregate begins; its name follows."""
_NOTE = "holdfast-state"
"""The file in Spark's checkpoint that holds the id of its state."""

_SPARKS_OWN = ("metadata", "state")
"""What else Spark's own query leaves in its checkpoint, be it before the first batch."""
_RANDOM_VIEW = re.compile(r"\b_pyspark_[0-9a-f]{32}\.")
"""How PySpark's `sql` calls a frame that it is given: another name at every start."""
_LONGEST_TEXT = 300
"""How much of what a column is made of an error shows."""

_CONDITION = "STATE_STORE_WRONG_PAIR"


def new_scope(
    state_id: str, definitions: Sequence[Definition], columns: Mapping[str, Any]
) -> dict[str, Any]:
    """What the manifests of a query say about it."""
    operators = [dict(definition) for definition in definitions]
    return {"kind": "query", "id": state_id, "operators": operators, "columns": columns}


def check_pair(session: SparkSession, checkpoint: str, root: str, found: Manifest | None) -> None:
    """Refuse state that was not made with this checkpoint, or is gone."""
    noted = (hadoop.read_text(session, f"{checkpoint}/{_NOTE}") or "").strip()
    if found is None:
        if noted:
            raise IllegalState(
                f"The checkpoint {checkpoint} belongs to the state {noted}, and there is none in "
                f"{root}. Bring the state back, or start with a new checkpoint.",
                condition=_CONDITION,
            )
        return
    own = found.scope.get("id")
    if noted and noted != own:
        raise IllegalState(
            f"The checkpoint {checkpoint} belongs to the state {noted}; in {root} is the state "
            f"{own}. Give each query its own stateLocation.",
            condition=_CONDITION,
        )
    query_id = _spark_query_id(session, checkpoint)
    if found.batch is not None and found.batch["query_id"] != query_id:
        raise IllegalState(
            f"The state in {root} belongs to Spark's query {found.batch['query_id']}; the "
            f"checkpoint {checkpoint} is that of "
            f"{'a new query' if query_id is None else f'query {query_id}'}. Use the checkpoint "
            "it was made with, or another stateLocation.",
            condition=_CONDITION,
        )


def check_not_native(
    session: SparkSession, checkpoint: str, newest: Callable[[], Manifest | None]
) -> None:
    """Refuse a checkpoint that a query of Spark's own made. Nothing is written.

    Holdfast leaves its note before Spark writes a byte. State of its first versions has no id and
    left no note: it is known by Spark's query, as `check_pair` does. `newest` gives the newest
    version of the state, and is asked only where there is no note.
    """
    if hadoop.read_text(session, f"{checkpoint}/{_NOTE}") is not None:
        return
    logs = [hadoop.list_names(session, f"{checkpoint}/{name}") for name in ("offsets", "commits")]
    batches = [int(name) + 1 for names in logs for name in names if name.isdigit()]
    if not batches and not set(hadoop.list_names(session, checkpoint)).intersection(_SPARKS_OWN):
        return
    found = newest()
    if found is None or (found.batch is None and "id" in found.scope):
        count = max(batches, default=0)
        raise IllegalState(
            f"The checkpoint {checkpoint} was made by Spark's own streaming "
            f"({count} {'batch' if count == 1 else 'batches'}), and Holdfast has no state for it. "
            "Nothing was changed. Start with a new checkpoint location.",
            condition=_CONDITION,
        )


def is_noted(session: SparkSession, checkpoint: str) -> bool:
    """Whether state was made with this checkpoint; its first version is there before the note."""
    return hadoop.read_text(session, f"{checkpoint}/{_NOTE}") is not None


def note_pair(session: SparkSession, checkpoint: str, manifest: Manifest) -> None:
    """Leave the state's id in the checkpoint."""
    hadoop.create_if_absent(session, f"{checkpoint}/{_NOTE}", f"{manifest.scope.get('id', '')}\n")


def last_planned(session: SparkSession, checkpoint: str) -> int:
    """The newest batch in Spark's offset log, -1 if there is none."""
    names = hadoop.list_names(session, f"{checkpoint}/offsets")
    return max((int(name) for name in names if name.isdigit()), default=-1)


def check_next_batch(
    last: Mapping[str, Any] | None, batch: Mapping[str, Any], checkpoint: str, root: str
) -> bool:
    """Whether Spark brings a batch again that is committed; by its content, not its number alone.

    Refuses a batch that neither is the newest one again nor follows on it.
    """
    expected = 0 if last is None else last["id"] + 1
    if batch["id"] == expected:
        return False
    if last is not None and (batch["id"], batch["offsets"]) == (last["id"], last["offsets"]):
        return True
    seen = "none" if last is None else f"{last['id']}, up to {source_offsets(last)}"
    raise IllegalState(
        f"Spark brings batch {batch['id']}, up to {source_offsets(batch)}. The state's "
        f"last batch is {seen}. The checkpoint {checkpoint} and the state {root} do not belong "
        "together; nothing was changed.",
        condition=_CONDITION,
    )


def source_offsets(batch: Mapping[str, Any]) -> str:
    """Where the sources stood at the end of a batch, without Spark's settings beside them."""
    lines = (batch["offsets"] or "").splitlines()
    found = [line for line in lines if line not in ("", "v1", "v2") and not _is_settings(line)]
    return "; ".join(found) or "no known offsets"


def _is_settings(line: str) -> bool:
    return line.startswith("{") and '"batchWatermarkMs"' in line


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
        which = f"operator {number}" if len(now) > 1 else "the query"
        way_out = (
            "To let the new ones start empty here, set the option newAggregates to empty; or "
            if only_more
            else "Undo the change, or "
        )
        raise InvalidArgument(
            f"The state in {root} was made by another query. In {which}: {'; '.join(changes)}. "
            f"{way_out}start with a new checkpoint.",
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
        which = f"operator {number}" if len(now["operators"]) > 1 else "the query"
        way_out = (
            ""
            if any(what.startswith(AGGREGATE) for what in changed)
            else "; where the new columns mean the same, set the option changedColumns to accept"
        )
        raise InvalidArgument(
            f"The state in {root} was made by another query. In {which}: {'; '.join(changes)}. "
            f"Undo the change or start with a new checkpoint{way_out}.",
            condition="STATE_STORE_SCHEMA_MISMATCH",
        )


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def _spark_query_id(session: SparkSession, checkpoint: str) -> str | None:
    text = hadoop.read_text(session, f"{checkpoint}/metadata")
    return None if text is None else str(json.loads(text)["id"])


def moment_of(facts: Mapping[str, Any] | None) -> int | None:
    """When Spark planned a batch, in ms: the same each time it brings it."""
    if facts is None or not facts["offsets"]:
        return None
    for line in facts["offsets"].splitlines():
        if line.startswith("{") and "batchTimestampMs" in line:
            return int(json.loads(line)["batchTimestampMs"])
    return None
