"""What every benchmark needs: timing, memory, the machine, and results as JSON and a table."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parent / "results"
_SAMPLE_S = 0.4
_QUIET = 0.85
"""The share of idle ticks above which the machine counts as quiet."""


@dataclass
class Figure:
    """One measured figure; `bar` is what it must reach, `holds` whether it did."""

    name: str
    value: float
    unit: str
    bar: str = ""
    holds: bool | None = None
    note: str = ""


class Report:
    """Figures of one run, printed as they come and written at the end."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._figures: list[Figure] = []

    def add(
        self,
        name: str,
        value: float,
        unit: str,
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        note: str = "",
    ) -> None:
        """Record a figure, with the bar it must reach where there is one."""
        bar, holds = "", None
        if at_least is not None:
            bar, holds = f"≥ {at_least:g}", value >= at_least
        if at_most is not None:
            bar, holds = f"≤ {at_most:g}", value <= at_most
        figure = Figure(name, round(value, 4), unit, bar, holds, note)
        self._figures.append(figure)
        mark = {True: "ok", False: "MISSED", None: ""}[holds]
        print(f"{name:<62} {value:>12,.3f} {unit:<10} {bar:<10} {mark}", flush=True)

    def write(self, stem: str) -> None:
        """Write `results/<stem>.json` and `.md`, with the command and the machine."""
        RESULTS.mkdir(exist_ok=True)
        facts = {"command": command(), "machine": machine()}
        body = {**facts, "figures": [asdict(figure) for figure in self._figures]}
        (RESULTS / f"{stem}.json").write_text(json.dumps(body, indent=1) + "\n")
        lines = [f"# {self._title}", "", f"`{facts['command']}`", "", str(facts["machine"]), ""]
        lines += ["| what | value | unit | bar | holds |", "|---|---:|---|---|---|"]
        for f in self._figures:
            holds = {True: "yes", False: "**no**", None: ""}[f.holds]
            cells = [f.name + _note(f.note), f"{f.value:,.3f}", f.unit, f.bar, holds]
            lines.append(f"| {' | '.join(cells)} |")
        (RESULTS / f"{stem}.md").write_text("\n".join(lines) + "\n")

    @property
    def all_hold(self) -> bool:
        """Whether no bar was missed."""
        return all(figure.holds is not False for figure in self._figures)


def _note(note: str) -> str:
    return f" ({note})" if note else ""


def command() -> str:
    """The command that made this run, as one would type it in the repository."""
    script = os.path.relpath(sys.argv[0])
    return " ".join(["python", script, *sys.argv[1:]])


def machine() -> str:
    """The machine in a line."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("holdfast", "numpy", "pyarrow"))
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory_gb:.0f} GiB, {platform.system()} "
        f"{platform.machine()}, Python {platform.python_version()}, {packages}"
    )


def use_one_core() -> None:
    """Keep this process and its children on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def warm_memory(gigabytes: int) -> None:
    """Touch memory once and give it back.

    On a virtual machine the first touch of a page is served by the host, at some 10 µs each; a
    machine that has been up for a while does not pay that, so no figure should.
    """
    touched = np.zeros(gigabytes << 30, np.uint8)
    touched[::4096] = 1


def wait_for_quiet(most_s: float = 20.0) -> None:
    """Wait until what ran before has ended: most of the machine's cores are idle."""
    until = time.monotonic() + most_s
    idle, total = _idle_and_total()
    while time.monotonic() < until:
        time.sleep(_SAMPLE_S)
        now_idle, now_total = _idle_and_total()
        if now_idle - idle > _QUIET * (now_total - total):
            return
        idle, total = now_idle, now_total


def _idle_and_total() -> tuple[int, int]:
    """The ticks all cores have spent idle, and in all, since the machine started."""
    first_line = Path("/proc/stat").read_text().partition("\n")[0]
    ticks = [int(text) for text in first_line.split()[1:9]]
    return ticks[3] + ticks[4], sum(ticks)


def timed(work: Callable[[], object]) -> float:
    """Seconds one call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def median_of(work: Callable[[], object], times: int) -> float:
    """The median time of some calls."""
    return statistics.median(timed(work) for _ in range(times))


def private_bytes() -> int:
    """Memory of this process that is not backed by a file."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise OSError("no Anonymous line in smaps_rollup")


@contextmanager
def peak_private_bytes() -> Iterator[list[int]]:
    """Watches private memory from a thread; the list holds the peak afterwards."""
    peak = [private_bytes()]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], private_bytes())

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
