"""The exit codes scripts may rely on."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.errors import HoldfastError


class Exit(IntEnum):
    """What a command ends with."""

    meaning: str

    def __new__(cls, code: int, meaning: str) -> Exit:
        member = int.__new__(cls, code)
        member._value_ = code
        member.meaning = meaning
        return member

    OK = (0, "all is well; for diff: no difference")
    FOUND = (1, "verify found damage, doctor a failed check, diff a difference")
    USAGE = (2, "the call cannot be right: an unknown option, a cell that does not fit its column")
    NOT_FOUND = (3, "there is no such root, version, tag or key")
    DAMAGED = (4, "what was asked for is damaged or half copied, and cannot be read")
    UNAVAILABLE = (5, "the storage did not answer; try again")
    FAULT = (70, "a fault in holdfast itself")
    INTERRUPTED = (130, "stopped by Ctrl-C, or by a no to the question whether to go on")

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
