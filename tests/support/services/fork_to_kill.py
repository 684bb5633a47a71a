"""Forks by the command line, and stops at one call of a phase until it is killed.

python fork_to_kill.py PHASE CALL SOURCE NEW_CHECKPOINT VERSION
"""

from __future__ import annotations

import sys
import time
from typing import Any

from holdfast.backends.local import LocalStorage
from holdfast.cli import main

PHASES = {
    "journal": ("create_if_absent", "operations/"),
    "mark": ("create_if_absent", "versions/copying"),
    "tag": ("create_if_absent", "tags/fork-"),
    "files": ("adopt", ""),
    "sources": ("open_writer", "sources/"),
    "offsets": ("create_if_absent", "offsets/"),
    "query": ("create_if_absent", "metadata"),
    "manifest": ("create_if_absent", "versions/"),
    "end": ("delete", ""),
}
"""The method of a storage, and how the paths begin that belong to the phase."""


def stop_at(phase: str, number: int) -> None:
    """Have the call with this number sleep: an even one before its work is done, an odd one after.

    Where the phase has fewer calls, the command goes through.
    """
    name, start = PHASES[phase]
    real, seen = getattr(LocalStorage, name), [0]

    def call(self: LocalStorage, *given: Any) -> Any:
        path = given[1] if name == "adopt" else given[0]
        is_meant = path.startswith(start)
        seen[0] += is_meant
        if not is_meant or seen[0] != number // 2 + 1:
            return real(self, *given)
        result = real(self, *given) if number % 2 else None
        print(f"phase {phase}, {'after' if number % 2 else 'before'} {path}", flush=True)
        time.sleep(600)
        return result

    setattr(LocalStorage, name, call)


if __name__ == "__main__":
    stop_at(sys.argv[1], int(sys.argv[2]))
    source, new, version = sys.argv[3:]
    sys.argv = ["holdfast", "fork", source, new, "--at", version, "--yes"]
    main()
