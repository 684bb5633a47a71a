"""Roots on servers, as the tests of this folder pass them around."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage
from holdfast.errors import HoldfastError, InvalidArgument
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


def refusal(call: Callable[[], object]) -> HoldfastError:
    """What a call is refused with, at once: nothing of it is tried again."""
    started = time.monotonic()
    with pytest.raises(InvalidArgument) as refused:
        call()
    assert time.monotonic() - started < 45, "less than the time for what is tried again"
    return refused.value
