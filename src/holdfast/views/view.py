"""What a view is to those who keep it up to date."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.types import Field, Schema
from holdfast.views.keys import odd_keys

KEY, VERSION = "_key", "_version"
"""Columns of a view: a key as text, and the version its row is of."""
DELETED, EXPIRES_ATTRIBUTE = "_deleted", "_expires_at"
"""Attributes of a row in DynamoDB that is gone: that it is, and when its item may go, too."""
_OWN = (KEY, VERSION, DELETED, EXPIRES_ATTRIBUTE)
ENCODED = "_encoded"
"""What the name of the table with keys as text ends with."""
_ROWS_AT_A_TIME = 2_000


@dataclass(frozen=True)
class ViewSchema:
    """The columns of a view's rows. Refuses names that views use themselves."""

    keys: Schema
    values: Schema

    def __post_init__(self) -> None:
        names = [*self.keys.names, *self.values.names]
        for name in names:
            if name in _OWN:
                raise InvalidArgument(
                    f"A view cannot have a column {name!r}, for it has one of its own: rename it."
                )
            if names.count(name) > 1:
                raise InvalidArgument(
                    f"A view cannot have two columns {name!r}: give one another name, with "
                    "alias() for instance."
                )
        if not self.keys.names:
            raise InvalidArgument("A view needs a key, and this state has none.")

    def difference(self, other: ViewSchema) -> str:
        """What differs, in words; empty when nothing does."""
        parts = [
            self.keys.describe_difference(other.keys),
            self.values.describe_difference(other.values),
        ]
        return "; ".join(part for part in parts if part)


def is_unbounded(field: Field) -> bool:
    """Whether a column's cells have no largest size."""
    kind = field.type.arrow
    nested = pa.types.is_nested(kind)
    return bool(nested or pa.types.is_string(kind) or pa.types.is_binary(kind))


@dataclass(frozen=True)
class ChangeCounts:
    """What became of some changes."""

    written: int = 0
    removed: int = 0
    odd: int = 0
    """Rows left out, for their keys need the table of encoded keys, and there is none yet."""

    def __add__(self, other: ChangeCounts) -> ChangeCounts:
        return ChangeCounts(
            self.written + other.written, self.removed + other.removed, self.odd + other.odd
        )


@dataclass(frozen=True)
class ViewSpec:
    """Where a view is and what its rows are; goes to every task."""

    location: str
    schema: ViewSchema
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How the database is reached; it may hold credentials."""
    retry_timeout_ms: int = 60_000


@dataclass(frozen=True)
class BegunVersion:
    """A version of which rows may be in a view, and the commit that made it."""

    version: int
    commit_id: str


@dataclass(frozen=True)
class ViewProgress:
    """How far a view has come."""

    through: int | None = None
    """The version it shows; None before the first, and when it has to be filled."""
    has_encoded: bool = False
    commit_id: str | None = None
    """Which commit made that version; None where nobody noted it."""
    filled: int | None = None
    """The version that it was last filled whole with. Rows of older ones are stale."""
    begun: BegunVersion | None = None
    """The latest version of which rows may be there; None where nobody noted one."""


class View(ABC):
    """A table of typed rows in a database.

    Changes are idempotent and may come in any order: a row of an older version never takes the
    place of one of a newer. Requires, but for `prepare`: the driver has called `prepare`.
    """

    spec: ViewSpec
    number_sizes: tuple[float, float]
    """The least and the greatest size of a float that a key column holds."""
    is_by_columns: bool
    """Whether the key columns are the primary key; otherwise `_key` is."""

    @abstractmethod
    def prepare(self, owner: str, root: str) -> ViewProgress:
        """Make the table where there is none, for this `owner` alone.

        Raises InvalidArgument for a table that is not Holdfast's, that shows another state or that
        has other columns, and says what differs; then nothing was touched. `root` is for people.
        """

    @abstractmethod
    def add_encoded(self) -> None:
        """Make the table of keys that no primary key takes."""

    @abstractmethod
    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        """Put rows of a version; `encoded` is whether their keys are put as text."""

    @abstractmethod
    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        """Remove the keys of some rows, as of a version."""

    @abstractmethod
    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        """Remove every row of an older version; return how many those were."""

    @abstractmethod
    def standing(self) -> ViewProgress:
        """How far the view has come, by what is noted now.

        Raises InvalidArgument when it is another state's meanwhile.
        """

    @abstractmethod
    def note(self, before: ViewProgress, after: ViewProgress) -> ViewProgress:
        """Keep how far the view has come, if that is still `before`; return what is noted then.

        What was begun is compared and kept only where it changes: others may have begun a later
        version. Whether keys are encoded is not noted by this, but by `add_encoded`.
        """

    def check(self, rows: pa.Table) -> None:  # noqa: B027 - most have no limit
        """Refuse rows that the database has no room for, naming the column."""

    @property
    def has_limits(self) -> bool:
        """Whether `check` may refuse something."""
        return False

    def apply(
        self,
        version: int,
        upserts: pa.Table | None,
        deletes: pa.Table | None,
        *,
        has_encoded: bool,
    ) -> ChangeCounts:
        """Put and remove rows of a version. Each key comes once in all that is applied of one.

        Odd keys go to the table of encoded ones where `has_encoded`; where not, they are counted
        and left out.
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
        """Rows whose key goes into the main table, and the others."""
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
