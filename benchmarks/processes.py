"""What processes cost: private memory and descriptors of this one and those below it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

MiB = 1 << 20


def descendants(pid: int) -> Iterator[int]:
    """The processes below a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread ended meanwhile
            for child in task.read_text().split():
                yield int(child)
                yield from descendants(int(child))


def python_mib() -> float:
    """Private memory of this process and of the Pythons below it."""
    return _sum(anonymous_bytes, java=False) / MiB


def jvm_mib() -> float:
    """Private memory of the JVMs below this process."""
    return _sum(anonymous_bytes, java=True) / MiB


def cpu_s() -> float:
    """The CPU time of this process and of all below it, those that have ended included."""
    ticks = sum(_sum(_cpu_ticks, java=java) for java in (False, True))
    return ticks / os.sysconf("SC_CLK_TCK")


def descriptors() -> int:
    """Open descriptors of this process and of all below it."""
    return sum(_sum(_descriptors, java=java) for java in (False, True))


def anonymous_bytes(pid: int) -> int:
    """The private memory of a process."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def _cpu_ticks(pid: int) -> int:
    """Of a process and of its children that ended, as fields 14 to 17 of `stat` have them."""
    behind_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return sum(map(int, behind_name.split()[11:15]))


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _sum(figure: Callable[[int], int], *, java: bool) -> int:
    total = 0
    for pid in (os.getpid(), *descendants(os.getpid())):
        with contextlib.suppress(OSError):  # ended meanwhile
            if ("java" in os.readlink(f"/proc/{pid}/exe")) == java:
                total += figure(pid)
    return total


def size_of(path: Path) -> int:
    """A file's size, 0 where it is gone."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder."""
    return [path for path in folder.rglob("*") if path.is_file()]
