"""The exit codes that scripts can rely on."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError


class Exit(IntEnum):
    """The exit code of a command."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = (0, "success; for diff: no difference")
    FOUND = (1, "verify found damage, doctor a failed check, or diff a difference")
    USAGE = (2, "wrong usage: an unknown option, or a cell that does not fit its column")
    NOT_FOUND = (3, "no such root, version, tag or key")
    DAMAGED = (4, "the state is damaged or not completely copied, and cannot be read")
    UNAVAILABLE = (5, "the storage did not answer; try again")
    FAULT = (70, "a bug in holdfast")
    INTERRUPTED = (130, "stopped by Ctrl-C, or by answering no")

    @classmethod
    def of(cls, error: HoldfastError) -> Exit:
        """The exit code for an error, by its condition."""
        return _BY_CONDITION.get(error.condition, cls.USAGE)


_BY_CONDITION = {
    "STATE_STORE_NOT_A_STORE": Exit.NOT_FOUND,
    "STATE_STORE_VERSION_NOT_FOUND": Exit.NOT_FOUND,
    "STATE_STORE_CORRUPTION": Exit.DAMAGED,
    "STATE_STORE_UNSUPPORTED_FORMAT": Exit.DAMAGED,
    "STATE_STORE_HASH_MISMATCH": Exit.DAMAGED,
    "STATE_STORE_UNFINISHED_COPY": Exit.DAMAGED,
    "STATE_STORE_UNAVAILABLE": Exit.UNAVAILABLE,
}
