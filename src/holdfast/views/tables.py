"""What views in all databases share: how their tables are created, owned, checked and named."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property

from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import Field
from holdfast.views.ownership import Note, check_columns, check_note, check_owner, columns_text
from holdfast.views.view import ENCODED, KEY, View, ViewProgress

_MOST_LOOKS = 10
"""How often to look at a view that other processes of its owner are just creating."""


class TableView(View):
    """A view that consists of a table, a second one for encoded keys, and a note about both."""

    name: str
    """The name of the table."""
    _owner: str = ""
    _has_seen_encoded = False
    """Whether the table of encoded keys is known to exist."""

    # -- what differs between databases ----------------------------------------------------------

    @abstractmethod
    def _note(self) -> Note | None:
        """The note about the view; None without one."""

    @abstractmethod
    def _make_notes(self) -> None:
        """Create the table of notes unless it exists."""

    @abstractmethod
    def _claim(self, before: Note | None, note: Note) -> bool:
        """Write `note` if there is none, or `before` is still there; return whether this call did.

        After False the note may be there all the same, from an earlier try whose reply was lost.
        """

    @abstractmethod
    def _note_encoded(self) -> None:
        """Note that the view has a table of encoded keys."""

    @abstractmethod
    def _found(self, table: str) -> dict[str, str] | None:
        """A table's columns in the form of `_shape`; None where there is no table."""

    @abstractmethod
    def _shape(self, *, by_columns: bool) -> dict[str, str]:
        """The columns that the database defines for a table, with their types and roles."""

    @abstractmethod
    def _create(self, table: str, *, by_columns: bool) -> None:
        """Create a table of rows unless it exists."""

    def _complete(self, table: str) -> None:
        """Do what a crash may have left undone when a table was created."""

    # -- creating it ---------------------------------------------------------------------------

    def prepare(self, owner: str, root: str) -> ViewProgress:
        location, schema = self.spec.location, self.spec.schema
        for _ in range(_MOST_LOOKS):
            note, found = self._note(), self._found(self.name)
            if note is None and found is not None:
                note = self._note()  # another process may have noted and created it just now
            check_note(note, owner, schema, location, has_table=found is not None)
            self._owner = owner
            if note is not None and found is not None:
                check_columns(found, self._shape(by_columns=self.is_by_columns), self.name)
                return self._completed(note.standing)
            if self._made(note, Note(owner, root, columns_text(schema))):
                return ViewProgress()
        raise Unavailable(
            f"Other processes keep changing the note of the view {location}. Nothing is lost. Try "
            "again."
        )

    def _completed(self, standing: ViewProgress) -> ViewProgress:
        if standing.through is None:
            self._complete(self.name)
        return self._with_encoded(standing) if standing.has_encoded else standing

    def _made(self, before: Note | None, note: Note) -> bool:
        """Claim the name, then create the table; a claim without a table is completed later.

        In this order two states cannot both take a table for theirs. Returns False when the same
        owner has noted something else since, or this in an earlier try: then the note must be read
        again, because the view may already be in use.
        """
        if self._found(self._table_name(encoded=True)) is not None:
            raise InvalidArgument(
                f"The table of the view {self.spec.location} does not exist, but a table "
                f"{self._table_name(encoded=True)!r} does, perhaps of an earlier view. Nothing was "
                "changed. Drop it, or name another table.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._make_notes()
        if not self._claim(before, note):
            there = self._note()
            if there is not None and there.owner == note.owner:
                return False
            raise InvalidArgument(
                f"Another query has just claimed the view {self.spec.location}. Give each query a "
                "view of its own.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._create(self.name, by_columns=self.is_by_columns)
        return True

    def _with_encoded(self, standing: ViewProgress) -> ViewProgress:
        """How far the view is, after checking its table of encoded keys, or creating it again."""
        table = self._table_name(encoded=True)
        found = self._found(table)
        if found is not None:
            check_columns(found, self._shape(by_columns=False), table)
            self._complete(table)
            self._has_seen_encoded = True
            return standing
        # Somebody dropped it, or a crash came before it was created: the view must be filled again.
        # That is noted before anything else, because a crash may come now as well.
        empty = replace(standing, through=None, commit_id=None)
        if standing != empty and self.note(standing, empty) != empty:
            raise Unavailable(
                f"The view {self.spec.location} lacks its table {table!r}, and another process is "
                "writing to the view. Try again."
            )
        self._create(table, by_columns=False)
        self._has_seen_encoded = True
        return empty

    def add_encoded(self) -> None:
        table, note = self._table_name(encoded=True), self._note()
        is_noted = note is not None and note.standing.has_encoded
        if not is_noted and self._found(table) is not None:
            raise InvalidArgument(
                f"The view {self.spec.location} needs a table {table!r} for keys that no primary "
                "key can hold, and there is one that is not the view's. Rename that one, or name "
                "another table for the view.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._note_encoded()
        self._create(table, by_columns=False)
        self._has_seen_encoded = True

    def standing(self) -> ViewProgress:
        note = self._note()
        if note is None:
            raise InvalidArgument(
                f"The note about the view {self.spec.location} was removed. Drop the view's tables "
                "and start again: then it is created and filled again.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        check_owner(note, self._owner, self.spec.location)
        if not note.standing.has_encoded:
            self._has_seen_encoded = False  # the view may have been created again
        elif not self._has_seen_encoded:
            # It is noted before it is created, and creating it may have failed.
            return self._with_encoded(note.standing)
        return note.standing

    # -- names ---------------------------------------------------------------------------------

    def _table_name(self, *, encoded: bool) -> str:
        return self.name + ENCODED if encoded else self.name

    def _key_names(self, *, encoded: bool) -> list[str]:
        """The columns of a table's primary key."""
        by_columns = self.is_by_columns and not encoded
        return list(self.spec.schema.keys.names) if by_columns else [KEY]

    def _other_names(self, *, encoded: bool) -> list[str]:
        """The columns of the state that are not in the primary key."""
        by_columns = self.is_by_columns and not encoded
        keys = () if by_columns else self.spec.schema.keys.names
        return [*keys, *self.spec.schema.values.names]

    @cached_property
    def _fields(self) -> dict[str, Field]:
        schema = self.spec.schema
        return {field.name: field for field in (*schema.keys, *schema.values)}
