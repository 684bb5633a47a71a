"""What tests ask about processes."""

from __future__ import annotations

import os


def is_alive(pid: int) -> bool:
    """Whether there is such a process, zombies included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
