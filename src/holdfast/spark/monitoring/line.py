"""One live line for each running query: in a terminal or a notebook, never in a log file."""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text


def line_of(name: str, progress: Mapping[str, Any]) -> str:
    """A query's progress in one line of text."""
    rows = sum(operator["numRowsTotal"] for operator in progress["stateOperators"])
    watermark = progress.get("eventTime", {}).get("watermark")
    parts = [
        name,
        f"version {progress['version']}",
        f"{progress['inputRowsPerSecond']:,.0f} rows/s",
        f"{rows:,} rows in state",
    ]
    if watermark is not None and not watermark.startswith("1970-01-01T00:00:00.000"):
        parts.append(f"watermark {watermark.removesuffix('.000Z').removesuffix('Z')}")
    return "  ".join(parts)


class Line(ABC):
    """The line of one query."""

    @abstractmethod
    def show(self, text: str) -> None:
        """Replace the text of the line."""

    @abstractmethod
    def close(self) -> None:
        """Leave the line as it is."""


def open_line() -> Line | None:
    """A line that is updated in place; None for a log file, a pipe or a Python prompt."""
    if _in_notebook():
        return _NotebookLine()
    stderr = sys.stderr
    is_terminal = stderr is not None and stderr.isatty() and os.environ.get("TERM") != "dumb"
    if is_terminal and not hasattr(sys, "ps1"):
        return _TerminalLine()
    return None


def _in_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


class _NotebookLine(Line):
    """An output of the cell that is updated in place."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str) -> None:
        bundle = {"text/plain": text}
        if self._handle is None:
            display = importlib.import_module("IPython.display").display
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)

    def close(self) -> None:
        self._handle = None


class _TerminalLine(Line):
    """One of the lines at the bottom of the terminal; all queries of the process share it."""

    _lock = threading.Lock()
    _lines: dict[int, str] = {}  # noqa: RUF012 - the process has one terminal
    _live: Live | None = None
    _is_over = False
    """Whether the process ends; queries may still run in its threads."""

    def show(self, text: str) -> None:
        shared = _TerminalLine
        with shared._lock:
            if shared._is_over:
                return
            shared._lines[id(self)] = text
            if shared._live is None:
                atexit.register(shared._end)
                shared._live = Live(
                    console=Console(stderr=True),
                    auto_refresh=False,
                    # What is printed to a file stays in the file.
                    redirect_stdout=sys.stdout.isatty(),
                )
                shared._live.start()
            shared._live.update(_lines(shared._lines), refresh=True)

    def close(self) -> None:
        shared = _TerminalLine
        with shared._lock:
            text = shared._lines.pop(id(self), None)
            if text is None or shared._live is None:
                return
            if not shared._lines:
                shared._stop()
                return
            shared._live.console.print(Text(text, no_wrap=True, overflow="ellipsis"))
            shared._live.update(_lines(shared._lines), refresh=True)

    @staticmethod
    def _stop() -> None:
        """Leave the cursor below the lines, and visible."""
        shared = _TerminalLine
        if shared._live is not None:
            shared._live.stop()
            shared._live = None
        atexit.unregister(shared._end)

    @staticmethod
    def _end() -> None:
        """The process ends with queries that run: the shell's prompt follows."""
        shared = _TerminalLine
        with shared._lock:
            shared._is_over = True
            shared._stop()


def _lines(texts: Mapping[int, str]) -> Group:
    return Group(*(Text(text, no_wrap=True, overflow="ellipsis") for text in texts.values()))
