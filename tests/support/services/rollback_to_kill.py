"""Rolls back by the command line, and dies by SIGKILL at one call of a storage.

python rollback_to_kill.py CALL CHECKPOINT VERSION
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from holdfast.backends.local import LocalStorage
from holdfast.cli import main

CALLS = ("create_if_absent", "delete", "read", "list", "size")


def die_at(number: int) -> None:
    """Die before an even call, and after an odd one; where there are fewer it goes through."""
    seen = 0

    def dying(name: str) -> Any:
        real = getattr(LocalStorage, name)

        def call(self: LocalStorage, *given: Any) -> Any:
            nonlocal seen
            seen += 1
            is_meant = seen == number // 2 + 1
            if is_meant and number % 2 == 0:
                print(f"before {name} {given[0]}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(self, *given)
            if is_meant:
                print(f"after {name} {given[0]}", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in CALLS:
        setattr(LocalStorage, name, dying(name))


if __name__ == "__main__":
    die_at(int(sys.argv[1]))
    checkpoint, version = sys.argv[2:]
    sys.argv = ["holdfast", "rollback", checkpoint, "--to", version, "--yes"]
    main()
