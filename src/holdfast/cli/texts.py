"""Text for terminals: clean, wrapped, and numbers, sizes and times in words."""

from __future__ import annotations

import re

from rich.cells import cell_len

from holdfast.reading.words import size_text as size_text
from holdfast.reading.words import spans as spans
from holdfast.reading.words import time_text as time_text

_NUMBER = re.compile(r"[0-9.]+")


def wrapped(text: str, width: int) -> list[str]:
    """A text as lines of that width, broken between words where that is possible."""
    lines, line = [], ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if cell_len(longer) <= width:
            line = longer
            continue
        if line:
            lines.append(line)
        while cell_len(word) > width > 1:
            head = _head(word, width)
            lines.append(head)
            word = word[len(head) :]
        line = word
    return [*lines, line]


def one_line(text: str) -> str:
    """`text` on one line and without control characters: data must not move the cursor."""
    return clean(text).replace("\n", "\\n")


def clean(text: str) -> str:
    """`text` without control characters: data must not move the cursor or ring a bell."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def _head(word: str, width: int) -> str:
    """As much of the beginning of a word as fits, at least one character; no number is broken."""
    at, taken = 1, cell_len(word[0])
    while at < len(word) - 1 and (taken := taken + cell_len(word[at])) <= width:
        at += 1
    head = word[:at]
    if not word[at].isdigit():
        return head
    number = _NUMBER.match(word)
    return head.rstrip("0123456789.") or (head if number is None else number[0])
