"""What makes a PySpark worker process quick at small tasks."""

from __future__ import annotations

import functools
import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
_OWN_FILES = Path("/proc/self/fd")
_SELDOM = (50_000, 20, 100)
"""Thresholds of the garbage collector while a task runs."""


@functools.cache
def settle(kind: str) -> None:
    """Spare the process the modules it has loaded when it looks for garbage.

    PySpark collects garbage after every task, which takes longer than a small task itself. Called
    at the end of the first task of a `kind`, when all it imports is there.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Have Python look for garbage less often.

    A task makes many rows and keeps them for a while: with Python's own thresholds half its time
    goes into looking at them again and again. Cycles are still found.
    """
    before = gc.get_threshold()
    if before[0]:  # whoever turned it off wants it off
        gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def acknowledge() -> None:
    """Have Linux tell the JVM at once what has arrived from it.

    The JVM sends a task in two pieces, the second one only after the first was acknowledged, and
    Linux takes 40 ms for that. Nothing happens where the two do not talk by TCP, nor where a
    default timeout is set: Python would give it to the connection.
    """
    if socket.getdefaulttimeout() is not None:
        return
    for number in _connections():
        _with_socket(number, lambda own: own.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1))


@functools.cache
def _connections() -> tuple[int, ...]:
    """The file descriptors of the process's TCP connections, as far as Linux shows them."""
    if not hasattr(socket, "TCP_QUICKACK") or not _OWN_FILES.is_dir():
        return ()
    numbers = [int(entry.name) for entry in _OWN_FILES.iterdir()]
    internet = (socket.AF_INET, socket.AF_INET6)
    return tuple(n for n in numbers if _with_socket(n, lambda own: own.family in internet))


def _with_socket(number: int, use: Callable[[socket.socket], T]) -> T | None:
    """Use a socket that stays somebody else's; None for what is no socket, or none any more."""
    try:
        own = socket.socket(fileno=number)
    except OSError:
        return None
    try:
        return use(own)
    except OSError:
        return None
    finally:
        own.detach()
