"""State and checkpoint belong together: each notes the other's id, and a wrong pair is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import SparkSession

from holdfast.engine.manifest import Manifest
from holdfast.errors import IllegalState, InvalidArgument
from holdfast.spark.private import hadoop

Definition = Mapping[str, str]
AGGREGATE = "aggregate "
"""How the definition of an aggregate begins; its name follows."""
_NOTE = "holdfast-state"
"""The file in Spark's checkpoint that holds the id of its state."""

_CONDITION = "STATE_STORE_WRONG_PAIR"


def new_scope(state_id: str, definitions: Sequence[Definition]) -> dict[str, Any]:
    """What the manifests of a query say about it."""
    return {"kind": "query", "id": state_id, "operators": [dict(d) for d in definitions]}


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


def note_pair(session: SparkSession, checkpoint: str, manifest: Manifest) -> None:
    """Leave the state's id in the checkpoint."""
    hadoop.create_if_absent(session, f"{checkpoint}/{_NOTE}", f"{manifest.scope.get('id', '')}\n")


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
    seen = "none" if last is None else f"{last['id']}: {last['offsets']!r}"
    raise IllegalState(
        f"Spark brings batch {batch['id']}, with the offsets {batch['offsets']!r}. The state's "
        f"last batch is {seen}. The checkpoint {checkpoint} and the state {root} do not belong "
        "together; nothing was changed.",
        condition=_CONDITION,
    )


def check_same_query(
    stored: Sequence[Definition], now: Sequence[Definition], root: str, *, may_add: bool
) -> None:
    """Refuse a query whose operators do something else than those that made the state.

    More aggregates than before are no other query when the user says so (`may_add`).
    """
    for number, (before, after) in enumerate(zip(stored, now, strict=False)):
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
