"""The contract of a view: a table in a database that is kept up to date from versions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.types import Field, Schema
from holdfast.views.keys import odd_keys

KEY, VERSION = "_key", "_version"
"""Columns of a view: a key as text, and the version that a row is of."""
DELETED, EXPIRES_ATTRIBUTE = "_deleted", "_expires_at"
"""Attributes that mark a removed row in DynamoDB, and say when its item may also be removed."""
_OWN = (KEY, VERSION, DELETED, EXPIRES_ATTRIBUTE)
ENCODED = "_encoded"
"""The suffix in the name of the table whose keys are text."""
_ROWS_AT_A_TIME = 2_000


@dataclass(frozen=True)
class ViewSchema:
    """The key and value columns of a view's rows.

    Raises InvalidArgument for a column that views use themselves, a name that comes twice, and a
    state without keys.
    """

    keys: Schema
    values: Schema

    def __post_init__(self) -> None:
        names = [*self.keys.names, *self.values.names]
        for name in names:
            if name in _OWN:
                raise InvalidArgument(
                    f"A view cannot have a column {name!r}: views use that name. Rename the column."
                )
            if names.count(name) > 1:
                raise InvalidArgument(
                    f"A view cannot have two columns {name!r}. Rename one of them, for instance "
                    "with alias()."
                )
        if not self.keys.names:
            raise InvalidArgument("A view needs a key, and this state has none.")

    def difference(self, other: ViewSchema) -> str:
        """Describe how another schema differs; empty when it does not."""
        parts = [
            self.keys.describe_difference(other.keys),
            self.values.describe_difference(other.values),
        ]
        return "; ".join(part for part in parts if part)


def is_unbounded(field: Field) -> bool:
    """Whether the cells of a column may be of any size."""
    kind = field.type.arrow
    nested = pa.types.is_nested(kind)
    return bool(nested or pa.types.is_string(kind) or pa.types.is_binary(kind))


@dataclass(frozen=True)
class ChangeCounts:
    """How many rows were written and removed, and how many were left out."""

    written: int = 0
    removed: int = 0
    odd: int = 0
    """Rows left out: their keys need the table of encoded keys, which does not exist yet."""

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.written + other.written, self.removed + other.removed, self.odd + other.odd
        )


@dataclass(frozen=True)
class ViewSpec:
    """Where a view is and what its rows are; every task gets it.

    `location` is the address of the table, `schema` its columns. Requests are retried for
    `retry_timeout_ms` while the database does not answer.
    """

    location: str
    schema: ViewSchema
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Options of the database's client; they may include credentials."""
    retry_timeout_ms: int = 60_000


@dataclass(frozen=True)
class BegunVersion:
    """A version whose rows may be in a view, and the commit that made it."""

    version: int
    commit_id: str


@dataclass(frozen=True)
class ViewProgress:
    """Which versions a view shows, as it is noted in the database."""

    through: int | None = None
    """The version the view shows; None before the first one, and when it must be filled again."""
    has_encoded: bool = False
    """Whether the table of encoded keys is part of the view."""
    commit_id: str | None = None
    """The commit that made that version; None without one, or where an earlier release noted it."""
    filled: int | None = None
    """The version with which the view was last filled whole. Rows of older ones are stale."""
    begun: BegunVersion | None = None
    """The latest version whose rows may be there; None where an earlier release noted none."""


class View(ABC):
    """A table of typed rows in a database.

    Changes are idempotent and may come in any order, because a row of an older version never
    replaces one of a newer version. A step that failed is simply done again, by anyone.

    A key that no primary key can hold, such as one with a null, is *odd*: its row goes to a second
    table, where the key is text (*encoded*). That table is made when the first such key comes.

    Every method raises Unavailable when the database does not answer for `retry_timeout_ms`, and
    InvalidArgument when it refuses the request. Tasks call `check` and `apply`, which calls `write`
    and `remove`; the driver calls the rest. Requires, for all but `prepare`: the driver has called
    `prepare`.
    """

    spec: ViewSpec
    number_sizes: tuple[float, float]
    """The smallest and the largest absolute value of a float that a key column can hold."""
    is_by_columns: bool
    """Whether the key columns are the primary key; otherwise `_key` is."""

    @abstractmethod
    def prepare(self, owner: str, root: str) -> ViewProgress:
        """Create the table if there is none, and return how far the view is.

        `owner` identifies the state; the table then belongs to it alone. `root` is what messages
        to others call that state. Raises InvalidArgument when the table is not Holdfast's, shows
        another state or has other columns; the message says what differs, and nothing was changed.
        """

    @abstractmethod
    def add_encoded(self) -> None:
        """Create the table of encoded keys, and note that the view has it.

        Raises InvalidArgument when there is a table of that name which is not the view's.
        """

    @abstractmethod
    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        """Put rows, with all key and value columns, as of `version`.

        `encoded` chooses the table of encoded keys. A row of a later version stays as it is.
        """

    @abstractmethod
    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        """Remove the keys of `rows` as of `version`; other columns are ignored.

        `encoded` chooses the table of encoded keys. A row of a later version stays.
        """

    @abstractmethod
    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        """Remove every row that is older than `version`; return how many it removed.

        With `has_encoded` the table of encoded keys is included. It reads the whole table.
        """

    @abstractmethod
    def standing(self) -> ViewProgress:
        """Return how far the view is, as it is noted in the database now.

        Raises InvalidArgument when the view has since become that of another state.
        """

    @abstractmethod
    def note(self, before: ViewProgress, after: ViewProgress) -> ViewProgress:
        """Note `after` if the database still has `before`; return what is noted afterwards.

        A result other than `after` means that another process noted something first. `begun` is
        compared and written only where it changes, since others may have begun a later version.
        `has_encoded` is ignored here: `add_encoded` notes it.
        """

    def check(self, rows: pa.Table) -> None:  # noqa: B027 - most have no limit
        """Raise InvalidArgument for rows that are too large for the database, naming the column."""

    @property
    def has_limits(self) -> bool:
        """Whether `check` may raise, so that rows must be checked before any is written."""
        return False

    def apply(
        self,
        version: int,
        upserts: pa.Table | None,
        deletes: pa.Table | None,
        *,
        has_encoded: bool,
    ) -> ChangeCounts:
        """Put `upserts` and remove the keys of `deletes`, as of `version`; return the counts.

        With `has_encoded`, odd keys go to the table of encoded keys; otherwise their rows are
        counted and left out. Requires: no key comes twice in all that is applied of a version.
        """
        done = ChangeCounts()
        for rows, work, is_put in ((deletes, self.remove, False), (upserts, self.write, True)):
            for part in _pieces(rows):
                done += self._worked(work, version, part, has_encoded, is_put=is_put)
        return done

    def _worked(
        self,
        work: Callable[..., None],
        version: int,
        rows: pa.Table,
        has_encoded: bool,
        *,
        is_put: bool,
    ) -> ChangeCounts:
        plain, odd = self._split(rows)
        if plain.num_rows:
            work(version, plain, encoded=False)
        if odd.num_rows and has_encoded:
            work(version, odd, encoded=True)
        left_out = 0 if has_encoded else odd.num_rows
        done = rows.num_rows - left_out
        if is_put:
            return ChangeCounts(written=done, odd=left_out)
        # What is not there need not be removed: a table is made for keys that are put.
        return ChangeCounts(removed=done)

    def _split(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        """Split rows into those whose key fits the main table and the others."""
        if not self.is_by_columns:
            return rows, rows.slice(0, 0)
        odd = odd_keys(self._keys(rows), self.number_sizes)
        if not odd.any():
            return rows, rows.slice(0, 0)
        return rows.filter(pa.array(~odd)), rows.filter(pa.array(odd))

    def _keys(self, rows: pa.Table) -> Sequence[pa.ChunkedArray]:
        return [rows.column(name) for name in self.spec.schema.keys.names]


def _pieces(rows: pa.Table | None) -> Iterator[pa.Table]:
    if rows is not None:
        for start in range(0, rows.num_rows, _ROWS_AT_A_TIME):
            yield rows.slice(start, _ROWS_AT_A_TIME)
