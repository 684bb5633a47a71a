"""Names of columns that the store adds beside a user's own; no key or value may have them."""

from __future__ import annotations

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
