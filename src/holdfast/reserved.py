"""Names of columns: those that the store adds beside a user's own, and a maker of free ones."""

from __future__ import annotations

from collections.abc import Iterable

HASH = "_hash"
"""The hash of the key."""
DEAD = "_dead"
"""Whether the key was removed."""
EXPIRES = "_expires"
"""When the row expires, in milliseconds since 1970."""
FOUND = "_found"
"""Which of the keys asked for exist."""
RESERVED_PREFIXES = (HASH, DEAD, EXPIRES, FOUND)
"""No column of a user's may begin with one of these."""


class FreeNames:
    """Finds column names that are still free, compared as Spark compares names."""

    def __init__(self, taken: Iterable[str], *, case_sensitive: bool) -> None:
        self._fold = str if case_sensitive else str.lower
        self._taken = set(map(self._fold, taken))

    def give(self, name: str) -> str:
        """Return `name` itself if it is free, or else a similar name. It is taken from then on."""
        if name.startswith(RESERVED_PREFIXES):
            name = f"column{name}"
        while self._fold(name) in self._taken:
            name += "_"
        self._taken.add(self._fold(name))
        return name
