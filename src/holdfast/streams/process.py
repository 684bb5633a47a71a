"""What makes a PySpark worker process fast at small tasks.

The tasks of a small batch take a few milliseconds, so the fixed costs that PySpark and Linux add to
every task decide how many versions a query can make per second. Three of them can be avoided here:
a full garbage collection after each task (`settle`), frequent collections during a task
(`seldom_collecting`), and delayed acknowledgements on the connection to the JVM (`acknowledge`).
"""

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
    """Exclude what is loaded now from later garbage collections.

    PySpark collects garbage after every task. With all of Arrow and numpy loaded, that takes longer
    than a small task. Called at the end of the first task of each `kind`, when everything that such
    a task imports is loaded; frozen objects are never looked at again.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def seldom_collecting() -> Iterator[None]:
    """Collect garbage less often inside the block.

    A task makes many rows and keeps them for a while. With Python's own thresholds it would spend
    half its time traversing them again and again. Cycles are still found, only later.
    """
    before = gc.get_threshold()
    if before[0]:  # the user has turned collection off
        gc.set_threshold(*_SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def acknowledge() -> None:
    """Send TCP ACKs to the JVM immediately (TCP_QUICKACK).

    The JVM writes a task in two pieces. Its socket uses Nagle's algorithm, so it sends the second
    piece only after the first one is acknowledged, and Linux delays that acknowledgement by 40 ms
    in the hope of sending it along with data. Linux resets the option by itself, so it is set again
    around each task. Nothing happens if the two processes are not connected by TCP, or if a default
    timeout is set, which Python would apply to the connection as soon as it wraps it in a socket.
    """
    if socket.getdefaulttimeout() is not None:
        return
    for number in _connections():
        _with_socket(number, lambda own: own.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1))


@functools.cache
def _connections() -> tuple[int, ...]:
    """The file descriptors of the process's TCP connections; none except on Linux."""
    if not hasattr(socket, "TCP_QUICKACK") or not _OWN_FILES.is_dir():
        return ()
    numbers = [int(entry.name) for entry in _OWN_FILES.iterdir()]
    internet = (socket.AF_INET, socket.AF_INET6)
    return tuple(n for n in numbers if _with_socket(n, lambda own: own.family in internet))


def _with_socket(number: int, use: Callable[[socket.socket], T]) -> T | None:
    """Call `use` with a socket that stays open; None if the descriptor is not a socket any more."""
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
