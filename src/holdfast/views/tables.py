"""What views in databases have in common: how their tables are made, owned, checked and named."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from functools import cached_property

from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import Field
from holdfast.views.ownership import Note, check_columns, check_note, check_owner, columns_text
from holdfast.views.view import ENCODED, KEY, View, ViewProgress

_MOST_LOOKS = 10
"""How often a view is looked at that others of its owner are just making."""


class TableView(View):
    """A view that is a table of its own, a second one for encoded keys, and a note beside them."""

    name: str
    """What the table is called."""
    _owner: str = ""
    _has_seen_encoded = False
    """Whether the table of encoded keys was seen to be there."""

    # -- what a database does its own way --------------------------------------------------------

    @abstractmethod
    def _note(self) -> Note | None:
        """What is noted of the view, None where nothing is."""

    @abstractmethod
    def _make_notes(self) -> None:
        """Make the table of notes, unless it is there."""

    @abstractmethod
    def _claim(self, before: Note | None, note: Note) -> bool:
        """Note a view where nothing is noted, or `before` still is; whether this call did it.

        It may be noted all the same, by an earlier try whose reply was lost.
        """

    @abstractmethod
    def _note_encoded(self) -> None:
        """Note that there is a table of encoded keys."""

    @abstractmethod
    def _found(self, table: str) -> dict[str, str] | None:
        """A table's columns as `_shape` has them, None where there is no table."""

    @abstractmethod
    def _shape(self, *, by_columns: bool) -> dict[str, str]:
        """What the columns of a table are that the database knows of."""

    @abstractmethod
    def _create(self, table: str, *, by_columns: bool) -> None:
        """Make a table of rows, unless it is there."""

    def _complete(self, table: str) -> None:
        """Do what a crash may have left undone when a table was made."""

    # -- making it -----------------------------------------------------------------------------

    def prepare(self, owner: str, root: str) -> ViewProgress:
        location, schema = self.spec.location, self.spec.schema
        for _ in range(_MOST_LOOKS):
            note, found = self._note(), self._found(self.name)
            if note is None and found is not None:
                note = self._note()  # another may have noted it and made it just now
            check_note(note, owner, schema, location, has_table=found is not None)
            self._owner = owner
            if note is not None and found is not None:
                check_columns(found, self._shape(by_columns=self.is_by_columns), self.name)
                return self._completed(note.standing)
            if self._made(note, Note(owner, root, columns_text(schema))):
                return ViewProgress()
        raise Unavailable(
            f"Other processes note the view {location} again and again. Nothing is lost: try again."
        )

    def _completed(self, standing: ViewProgress) -> ViewProgress:
        if standing.through is None:
            self._complete(self.name)
        return self._with_encoded(standing) if standing.has_encoded else standing

    def _made(self, before: Note | None, note: Note) -> bool:
        """Claim the name, then make the table: a claim without a table is made good later.

        False when the same owner has noted something else meanwhile, or this in an earlier try:
        then it has to be looked at again, for the view may be at work.
        """
        if self._found(self._table_name(encoded=True)) is not None:
            raise InvalidArgument(
                f"There is no table of the view {self.spec.location}, but one called "
                f"{self._table_name(encoded=True)!r}, of an earlier view perhaps. Nothing was "
                "touched. Drop it, or name another table.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._make_notes()
        if not self._claim(before, note):
            there = self._note()
            if there is not None and there.owner == note.owner:
                return False
            raise InvalidArgument(
                f"Another query has just claimed the view {self.spec.location}. Give each its own.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._create(self.name, by_columns=self.is_by_columns)
        return True

    def _with_encoded(self, standing: ViewProgress) -> ViewProgress:
        """How far the view is, once its table of encoded keys is seen to be as it was made."""
        table = self._table_name(encoded=True)
        found = self._found(table)
        if found is not None:
            check_columns(found, self._shape(by_columns=False), table)
            self._complete(table)
            self._has_seen_encoded = True
            return standing
        # Somebody dropped it, or a crash came before it was made: the view has to be filled. That
        # is noted first, for a crash may come now, too.
        empty = replace(standing, through=None, commit_id=None)
        if standing != empty and self.note(standing, empty) != empty:
            raise Unavailable(
                f"The view {self.spec.location} lacks its table {table!r}, and another process is "
                "writing to it. Try again."
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
                "key takes, and there is one that is not its own. Rename that one, or name another "
                "table for the view.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._note_encoded()
        self._create(table, by_columns=False)
        self._has_seen_encoded = True

    def standing(self) -> ViewProgress:
        note = self._note()
        if note is None:
            raise InvalidArgument(
                f"Nothing is noted of the view {self.spec.location} any more: somebody removed it. "
                "Drop its tables and start again; then it is made and filled anew.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        check_owner(note, self._owner, self.spec.location)
        if not note.standing.has_encoded:
            self._has_seen_encoded = False  # the view may have been begun anew
        elif not self._has_seen_encoded:
            # It is noted before it is made, and making it may have failed.
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
        """The columns of the state beside its primary key."""
        by_columns = self.is_by_columns and not encoded
        keys = () if by_columns else self.spec.schema.keys.names
        return [*keys, *self.spec.schema.values.names]

    @cached_property
    def _fields(self) -> dict[str, Field]:
        schema = self.spec.schema
        return {field.name: field for field in (*schema.keys, *schema.values)}
