"""Errors, one class for each thing a caller can do about them.

    HoldfastError
    ├── Unavailable       the storage did not answer: try again
    ├── Conflict          another writer committed first: stop, reopen
    ├── Corruption        bytes on disk are not what was written: `holdfast verify`
    ├── VersionNotFound   that version was never committed, or has been removed
    ├── Closed            the store was aborted or its provider closed
    ├── InvalidArgument   the call cannot be right as it stands (also a ValueError)
    ├── IllegalState      the call came at the wrong time (also a RuntimeError)
    └── ArithmeticOverflow  a sum left its type's range (also an ArithmeticError)

Every error carries a `condition`, a stable name that scripts may match on: ours start with
STATE_STORE_, others are Spark's own. `CONDITIONS` lists them all with their meaning and what to
do. A message never contains a value of the state.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.schemes import remote_names

CONDITIONS: dict[str, tuple[str, str]] = {
    "STATE_STORE_UNAVAILABLE": (
        "The storage under the root did not answer, or is refusing requests for now.",
        "Try again. If it lasts, check the root with `holdfast doctor ROOT`.",
    ),
    "STATE_STORE_CONFLICT": (
        "Another writer has committed this version, or another driver has taken over the stream.",
        "Stop this writer: the other one continues. Reopen to continue from the newest version.",
    ),
    "STATE_STORE_CORRUPTION": (
        "A file is missing, cut short or altered, and no intact copy of its data is left.",
        "`holdfast verify ROOT` lists the versions that are intact; `holdfast rollback CHECKPOINT "
        "--to intact` continues from the newest of them.",
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
        "An argument is not valid.",
        "The message names it and says what is accepted.",
    ),
    "STATE_STORE_INVALID_SETTING": (
        "A setting is unknown or has a value that does not fit its type or range.",
        "The settings page lists every name, type and default.",
    ),
    "STATE_STORE_INVALID_SCHEMA": (
        "A schema cannot be read, or has a type that cannot be used there.",
        "The message names the column. Maps and collated strings cannot be keys.",
    ),
    "STATE_STORE_SCHEMA_MISMATCH": (
        "The schema differs from the one the state was written with.",
        "Use the stored schema, shown in the message, or a new root.",
    ),
    "STATE_STORE_WRONG_PAIR": (
        "A query's state and Spark's checkpoint do not belong together, or one of them is older.",
        "Use the pair that belongs together; the message shows both sides.",
    ),
    "STATE_STORE_UNSUPPORTED_FORMAT": (
        "The file was written in a format version this release does not know.",
        "Upgrade holdfast to a release that reads it.",
    ),
    "STATE_STORE_HASH_MISMATCH": (
        "This build hashes keys differently from the one that wrote the state.",
        "Do not write with it: lookups would miss. Install the version that wrote the state.",
    ),
    "STATE_STORE_READ_ONLY": (
        "The storage of the root has no proven create-if-absent, so it can only be read.",
        f"Write to a local root, or to one on {remote_names()}.",
    ),
    "STATE_STORE_ACCESS_DENIED": (
        "The storage denied access: credentials are missing, wrong or lack a permission.",
        "Set credentials that may do what the message says. Trying again does not help.",
    ),
    "STATE_STORE_NOT_A_STORE": (
        "The folder holds no Holdfast state.",
        "Check the path. For a query, name its checkpoint or its stateLocation.",
    ),
    "STATE_STORE_NOT_A_VIEW": (
        "The table named for a view exists, and is not a view of this state.",
        "Name another table, or drop that one if nobody needs it: the view creates and fills it.",
    ),
    "STATE_STORE_VIEW_ROW_TOO_LARGE": (
        "A row is larger than DynamoDB allows an item to be.",
        "Store less in the column that the message names, or put the view in Cassandra.",
    ),
    "STATE_STORE_UNFINISHED_COPY": (
        "The root is the target of a `holdfast copy` that is running, or ended halfway.",
        "Run the same `holdfast copy` again: it resumes. Or copy to another place.",
    ),
    "STATE_STORE_NOT_ON_EXECUTORS": (
        "The executors' Python lacks Holdfast, or a package that its tasks import.",
        "Install it there, or ship it with the job; the page on streams has the commands.",
    ),
    "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE": (
        "A processor set a list state to an empty list, or appended one, which Spark rejects also.",
        "Remove the list with clear(), or leave the call out.",
    ),
    "STATE_STORE_ILLEGAL_STATE": (
        "The call is not allowed in the store's present state.",
        "A store takes updates only until it is committed or aborted.",
    ),
    "ARITHMETIC_OVERFLOW": (
        "The sum of a batch and the state does not fit its type, and ANSI mode is on.",
        "The batch was not committed. Cast the column to a wider type.",
    ),
    "STATE_STORE_COMMIT_FAILED": (
        "The version could not be committed; the cause is chained.",
        "None of its updates are visible. Remove the cause and run the batch again.",
    ),
}


class HoldfastError(Exception):
    """The base class of every error that Holdfast raises on purpose.

    `message` says what happened, to what, and what to do. `condition` is one of `CONDITIONS`, by
    default that of the class. Errors can be pickled, so they reach the driver as they are.
    """

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
    """The storage did not answer, or is refusing requests for now. Trying again may help."""

    default_condition = "STATE_STORE_UNAVAILABLE"


class Conflict(HoldfastError):
    """Another writer committed this version first. Stop, and do not try again."""

    default_condition = "STATE_STORE_CONFLICT"


class Corruption(HoldfastError):
    """Stored bytes are not those that were written, and there is no intact copy of them.

    `holdfast verify` lists the versions that are intact, and `holdfast rollback CHECKPOINT --to
    intact` continues from the newest of them.
    """

    default_condition = "STATE_STORE_CORRUPTION"


class VersionNotFound(HoldfastError):
    """The version was never committed, or retention has removed it."""

    default_condition = "STATE_STORE_VERSION_NOT_FOUND"


class Closed(HoldfastError):
    """The store was aborted, or its provider or versioned store is closed. Ask for a new one."""

    default_condition = "STATE_STORE_CLOSED"


class InvalidArgument(HoldfastError, ValueError):
    """An argument or a setting is not valid; the message names it."""

    default_condition = "STATE_STORE_INVALID_ARGUMENT"


class IllegalState(HoldfastError, RuntimeError):
    """The call is not allowed at this point, such as a put after a commit.

    A commit that failed raises it too, with the condition STATE_STORE_COMMIT_FAILED.
    """

    default_condition = "STATE_STORE_ILLEGAL_STATE"


class ArithmeticOverflow(HoldfastError, ArithmeticError):
    """A sum does not fit its type, and ANSI mode is on."""

    default_condition = "ARITHMETIC_OVERFLOW"


def _rebuild(cls: type[HoldfastError], message: str, condition: str) -> HoldfastError:
    return cls(message, condition=condition)
