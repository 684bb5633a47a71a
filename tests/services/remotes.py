"""Roots on servers, as the tests of this folder pass them around."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage
from servers import Server

Remote = tuple[Server, str, dict[str, str]]
"""The server, a root on it, and the options that lead to it."""

MEMORY = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder for a server that forces every write to its disk; in memory where there is that."""
    place = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="holdfast-", dir=place) as folder:
        yield Path(folder)


def opened(remote: Remote, conf: StateStoreConf = StateStoreConf.empty) -> Storage:
    """The storage itself, without the cache before it."""
    _, location, options = remote
    return open_storage(location, options, conf).source
