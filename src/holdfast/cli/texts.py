"""Text for terminals: clean, wrapped, and numbers, sizes and times in words."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich.cells import cell_len

from holdfast.admin.plan import size_in_words
from holdfast.types import moment_text

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


def time_text(at_ms: int) -> str:
    """A time in UTC, to the second."""
    return moment_text(at_ms).replace("T", " ")[: -len(".000Z")] + "Z"


def size_text(size_bytes: int) -> str:
    """A number of bytes in a suitable unit."""
    return size_in_words(size_bytes)


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges, such as 1–3, 7."""
    found: list[list[int]] = []
    for each in numbers:
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in found)
