"""Which state a view belongs to: what is noted beside its tables, and the checks of that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import InvalidArgument
from holdfast.types import parse_schema
from holdfast.views.view import BegunVersion, ViewProgress, ViewSchema

NOTES = "holdfast_views"
"""The table that notes the views of a keyspace, or of a region."""
RESERVED = "holdfast_"
"""The prefix of Holdfast's own tables."""
NOTE_FORMAT = 1
_BEFORE_FIRST = -1
"""The version that is noted while the view does not show any."""


@dataclass(frozen=True)
class Note:
    """What is noted about a view."""

    owner: str
    root: str
    columns: str
    standing: ViewProgress = field(default_factory=ViewProgress)


def noted_through(standing: ViewProgress) -> int:
    """The version that a view shows, as it is noted."""
    return _BEFORE_FIRST if standing.through is None else standing.through


def noted_begun(standing: ViewProgress) -> str | None:
    """The version that was begun, as it is noted."""
    begun = standing.begun
    return None if begun is None else f"{begun.version} {begun.commit_id}"


def noted_standing(
    through: int,
    has_encoded: bool,
    commit_id: str | None,
    filled: int | None,
    begun: str | None,
) -> ViewProgress:
    """How far a view is, from the fields of its note.

    Earlier releases noted neither `commit_id` nor `filled` nor `begun`.
    """
    latest = None
    if begun is not None:
        version, _, commit = begun.partition(" ")
        latest = BegunVersion(int(version), commit)
    if through == _BEFORE_FIRST:
        return ViewProgress(None, has_encoded, filled=filled, begun=latest)
    return ViewProgress(through, has_encoded, commit_id, filled, latest)


def columns_text(schema: ViewSchema) -> str:
    """The columns of a view as they are noted."""
    noted = {"format": NOTE_FORMAT, "keys": schema.keys.json(), "values": schema.values.json()}
    return json.dumps(noted, sort_keys=True)


def check_table_name(name: str) -> None:
    """Raise InvalidArgument for a view's table with the prefix of Holdfast's own tables."""
    if name.startswith(RESERVED):
        raise InvalidArgument(
            f"{name!r} cannot be the table of a view: names that begin with {RESERVED!r} belong to "
            "Holdfast's own tables. Choose another name."
        )


def check_notes(key: Mapping[str, str] | None, wanted: Mapping[str, str], location: str) -> None:
    """Raise InvalidArgument if another table, with the primary key `key`, has the notes' name."""
    if key and key != wanted:
        raise InvalidArgument(
            f"The view {location} cannot be created: the table {NOTES!r} there is not Holdfast's, "
            f"its primary key is {', '.join(map(repr, key))}. Nothing was changed. Move that table "
            "away, or put the view elsewhere.",
            condition="STATE_STORE_NOT_A_VIEW",
        )


def check_note(
    note: Note | None, owner: str, schema: ViewSchema, location: str, *, has_table: bool
) -> None:
    """Raise InvalidArgument for a table that belongs to others or has other columns."""
    if not has_table:
        return  # whatever was there is gone, and the name is free
    if note is None:
        raise InvalidArgument(
            f"The table of the view {location} exists, and no view of Holdfast created it. Nothing "
            "was changed. Name another table; the view creates it.",
            condition="STATE_STORE_NOT_A_VIEW",
        )
    check_owner(note, owner, location)
    known = json.loads(note.columns)
    if known["format"] != NOTE_FORMAT:
        raise InvalidArgument(
            f"The view {location} has format {known['format']}, and this release knows only "
            f"{NOTE_FORMAT}. Upgrade holdfast.",
            condition="STATE_STORE_UNSUPPORTED_FORMAT",
        )
    stored = ViewSchema(parse_schema(known["keys"]), parse_schema(known["values"]))
    if difference := schema.difference(stored):
        raise InvalidArgument(
            f"The view {location} has other columns than the state: {difference}. Nothing was "
            "changed. Name another table, or drop this one: then it is created and filled again.",
            condition="STATE_STORE_SCHEMA_MISMATCH",
        )


def check_owner(note: Note, owner: str, location: str) -> None:
    """Raise InvalidArgument for a view that shows other state."""
    if note.owner != owner:
        raise InvalidArgument(
            f"The view {location} shows other state: that of {note.root}, or of what was there "
            "before. Nothing was changed. Name another table, or drop this one: then the view is "
            "created and filled again.",
            condition="STATE_STORE_NOT_A_VIEW",
        )


def check_columns(found: dict[str, str], wanted: dict[str, str], table: str) -> None:
    """Raise InvalidArgument for a table whose columns are not those that the view created."""
    parts = [f"column {name!r} is missing" for name in wanted if name not in found]
    parts += [f"column {name!r} is not the view's" for name in found if name not in wanted]
    parts += [
        f"column {name!r} is {found[name]}, not {kind}"
        for name, kind in wanted.items()
        if name in found and found[name] != kind
    ]
    if parts:
        raise InvalidArgument(
            f"The table {table} was changed since a view of Holdfast created it: "
            f"{'; '.join(parts)}. Change it back, or drop it: then it is created and filled again.",
            condition="STATE_STORE_SCHEMA_MISMATCH",
        )
