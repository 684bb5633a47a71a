"""Numbers, sizes and times as people read them."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.types import moment_text


def time_text(at_ms: int) -> str:
    """A time in UTC, to the second."""
    return moment_text(at_ms).replace("T", " ")[: -len(".000Z")] + "Z"


def size_text(size_bytes: int) -> str:
    """A number of bytes in a suitable unit."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def amount(number: int, what: str) -> str:
    """A number of things, such as 1 file or 2,000 files."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges, such as 1–3, 7."""
    found: list[list[int]] = []
    for each in numbers:
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in found)
