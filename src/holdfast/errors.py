"""Errors, one class for each thing a caller can do about them.

    HoldfastError
    ├── Unavailable       the storage did not answer: try again
    ├── Conflict          another writer committed first: stop, reopen
    ├── Corruption        bytes on disk are not what was written: `holdfast verify`
    ├── VersionNotFound   that version was never committed, or is cleaned up
    ├── Closed            the store was aborted or its provider closed
    ├── InvalidArgument   the call cannot be right as it stands (also a ValueError)
    ├── IllegalState      the call came at the wrong time (also a RuntimeError)
    └── ArithmeticOverflow  a sum left its type's range (also an ArithmeticError)

Every error carries a `condition`, a stable name that scripts may match on: ours start with
STATE_STORE_, others are Spark's own. `CONDITIONS` lists them all. A message never contains a
value of the state.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.schemes import remote_names

CONDITIONS: dict[str, tuple[str, str]] = {
    "STATE_STORE_UNAVAILABLE": (
        "The storage under the root did not answer, or refused for now.",
        "Try again; if it lasts, check the root with `holdfast doctor ROOT`.",
    ),
    "STATE_STORE_CONFLICT": (
        "Another writer has committed this version, or another driver has taken over the stream.",
        "Stop this writer: the other one continues. Reopen to continue from the newest version.",
    ),
    "STATE_STORE_CORRUPTION": (
        "A file is missing, cut short or altered, and no intact copy of its data is left.",
        "Run `holdfast verify ROOT`, then continue from an older version that verifies.",
    ),
    "STATE_STORE_VERSION_NOT_FOUND": (
        "The version was never committed, or retention has removed it.",
        "`holdfast history ROOT` lists the versions that can be opened.",
    ),
    "STATE_STORE_CLOSED": (
        "The store was aborted, or its provider or versioned store is closed.",
        "Ask the provider or versioned store for a new store.",
    ),
    "STATE_STORE_INVALID_ARGUMENT": (
        "An argument cannot be right.",
        "The message names it and says what is accepted.",
    ),
    "STATE_STORE_INVALID_SETTING": (
        "A setting is unknown or has a value that does not fit its type or range.",
        "The settings page lists every name, type and default.",
    ),
    "STATE_STORE_INVALID_SCHEMA": (
        "A schema cannot be read, or has a type that cannot be used there.",
        "The message names the column; maps cannot be keys, collated strings neither.",
    ),
    "STATE_STORE_SCHEMA_MISMATCH": (
        "The schema differs from the one the state was written with.",
        "Use the stored schema, shown in the message, or a new root.",
    ),
    "STATE_STORE_WRONG_PAIR": (
        "A query's state and Spark's checkpoint were not made together, or one of them is older.",
        "Use the pair that belongs together; the message shows both sides.",
    ),
    "STATE_STORE_UNSUPPORTED_FORMAT": (
        "The file was written in a format version this release does not know.",
        "Upgrade holdfast to a release that reads it.",
    ),
    "STATE_STORE_HASH_MISMATCH": (
        "This build computes other key hashes than the state was written with.",
        "Do not write with it: lookups would miss. Install the version that wrote the state.",
    ),
    "STATE_STORE_READ_ONLY": (
        "The root has no proven create-if-absent, so it can only be read.",
        f"Write to a local root, or to one on {remote_names()}.",
    ),
    "STATE_STORE_ACCESS_DENIED": (
        "The storage refused: credentials are missing or wrong, or they lack a permission.",
        "Set credentials that may do what the message says; trying again does not help.",
    ),
    "STATE_STORE_NOT_A_STORE": (
        "The folder holds no Holdfast state.",
        "Check the path; for a query it is `<checkpointLocation>/holdfast`.",
    ),
    "STATE_STORE_NOT_A_VIEW": (
        "The table named for a view is not this state's: Holdfast did not make it, or for another.",
        "Name another table, or drop that one if nobody needs it; the view makes and fills it.",
    ),
    "STATE_STORE_VIEW_ROW_TOO_LARGE": (
        "A row is larger than an item of DynamoDB may be.",
        "Keep less in the column that the message names, or put the view in Cassandra.",
    ),
    "STATE_STORE_UNFINISHED_COPY": (
        "The root is being copied to by `holdfast copy`, or was when that ended halfway.",
        "Run the same `holdfast copy` again; it goes on where it was. Or copy to another place.",
    ),
    "STATE_STORE_NOT_ON_EXECUTORS": (
        "The executors' Python lacks Holdfast, or a package that its tasks import.",
        "Install it there, or ship it; the page on streams has the commands.",
    ),
    "STATE_STORE_ILLEGAL_STATE": (
        "The call is not allowed in the store's present state.",
        "A store takes updates only until it is committed or aborted.",
    ),
    "ARITHMETIC_OVERFLOW": (
        "The sum of a batch and the state does not fit its type, and ANSI mode is on.",
        "Nothing of the batch was committed. Cast the column to a wider type.",
    ),
    "STATE_STORE_COMMIT_FAILED": (
        "The version could not be committed; the cause is chained.",
        "Nothing of it is visible. Remove the cause and run the batch again.",
    ),
}


class HoldfastError(Exception):
    """The root of every error Holdfast raises on purpose."""

    default_condition: ClassVar[str] = "STATE_STORE_ILLEGAL_STATE"

    def __init__(self, message: str, *, condition: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.condition = condition or self.default_condition
        if self.condition not in CONDITIONS:
            raise KeyError(f"{self.condition} is not listed in errors.CONDITIONS")

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.condition))


class Unavailable(HoldfastError):
    """The storage did not answer or refused for now. Trying again may help."""

    default_condition = "STATE_STORE_UNAVAILABLE"


class Conflict(HoldfastError):
    """Another writer committed this version first. Stop; do not try again."""

    default_condition = "STATE_STORE_CONFLICT"


class Corruption(HoldfastError):
    """Stored bytes are not the bytes that were written, and no intact copy is left."""

    default_condition = "STATE_STORE_CORRUPTION"


class VersionNotFound(HoldfastError):
    """The version was never committed, or retention has removed it."""

    default_condition = "STATE_STORE_VERSION_NOT_FOUND"


class Closed(HoldfastError):
    """The store, provider or versioned store has been closed or aborted."""

    default_condition = "STATE_STORE_CLOSED"


class InvalidArgument(HoldfastError, ValueError):
    """The call cannot be right as it stands."""

    default_condition = "STATE_STORE_INVALID_ARGUMENT"


class IllegalState(HoldfastError, RuntimeError):
    """The call came at the wrong time."""

    default_condition = "STATE_STORE_ILLEGAL_STATE"


class ArithmeticOverflow(HoldfastError, ArithmeticError):
    """A sum left the range of its type."""

    default_condition = "ARITHMETIC_OVERFLOW"


def _rebuild(cls: type[HoldfastError], message: str, condition: str) -> HoldfastError:
    return cls(message, condition=condition)
