"""Tables of text that lose nothing: no column is left out, and no number or time is broken.

A row is one line where the columns fit. Long text gives way first: it is cut and ends in `…`, or
is wrapped where it is a message. Where the columns still do not fit, each row becomes a record,
with a line for each column. Width is counted in cells of a terminal, of which a Chinese or Korean
character takes two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.text import Text

from holdfast.cli.texts import clean, one_line, wrapped

_GAPS = (3, 2)
"""Blanks between columns: usually, and where space is short."""
_LEAST = {"cut": 10, "wrap": 20}
_LONGEST_RULE = 40
MARK = "…"
Fit = Literal["whole", "cut", "wrap"]


@dataclass(frozen=True, slots=True)
class Column:
    """A column: whether its cells stay whole, are cut or are wrapped where they are too long."""

    name: str
    kind: Fit = "whole"
    is_number: bool = False


def number(name: str) -> Column:
    """A column of numbers, sizes or versions: on the right, and never broken."""
    return Column(name, is_number=True)


def wrapping(name: str) -> Column:
    """A column of messages and paths, wrapped over as many lines as they need."""
    return Column(name, "wrap")


@dataclass(frozen=True, slots=True)
class _Row:
    cells: list[str]
    styles: list[str | None]
    style: str | None
    aside: Collection[int]


@dataclass
class Grid:
    """Rows of cells under columns, made into lines for some width. `full` cuts no cell."""

    columns: Sequence[Column]
    full: bool = False
    has_cut: bool = False
    """Whether a cell was cut in the lines made so far."""
    _rows: list[_Row] = field(default_factory=list)

    def add(self, *cells: object, style: str | None = None, aside: Collection[int] = ()) -> None:
        """Add a row. A cell of rich's `Text` keeps its own style.

        A record leaves out the cells at the places `aside`, and messages that are empty.
        """
        texts = [one_line(cell.plain if isinstance(cell, Text) else str(cell)) for cell in cells]
        styles = [str(cell.style) if isinstance(cell, Text) else None for cell in cells]
        self._rows.append(_Row(texts, styles, style, aside))

    def fits(self, room: int | None) -> bool:
        """Whether each row fits on lines of that width as a row (None: of any width)."""
        return self._layout(room) is not None

    def lines(self, room: int | None) -> Iterator[Text]:
        """The lines of a table, or of records where that does not fit."""
        layout = self._layout(room)
        if layout is not None:
            yield from self._table(*layout)
        elif self._rows:
            yield from self._records(room or 0)
        else:
            names = ", ".join(column.name for column in self.columns if column.name)
            yield from (Text(line, "dim") for line in wrapped(f"columns: {names}", room or 0))

    def _layout(self, room: int | None) -> tuple[list[int], int] | None:
        """The width of each column and the gap between them."""
        least, natural = [], []
        for place, column in enumerate(self.columns):
            longest = max((cell_len(row.cells[place]) for row in self._rows), default=0)
            head = max((cell_len(word) for word in column.name.split()), default=0)
            shrinks = column.kind == "wrap" or (column.kind == "cut" and not self.full)
            shortest = min(longest, _LEAST[column.kind]) if shrinks else longest
            least.append(max(shortest, head))
            natural.append(max(longest, cell_len(column.name)))
        if room is None:
            return natural, _GAPS[0]
        for gap in _GAPS:
            widths = _shared(least, natural, room - gap * (len(least) - 1))
            if widths is not None:
                return widths, gap
        return None

    def _table(self, widths: Sequence[int], gap: int) -> Iterator[Text]:
        heads = [wrapped(c.name, width) for c, width in zip(self.columns, widths, strict=True)]
        yield from self._row(heads, [None] * len(heads), "bold", widths, gap)
        yield Text("─" * (sum(widths) + gap * (len(widths) - 1)))
        for row in self._rows:
            parts = [
                wrapped(cell, width) if column.kind == "wrap" else [self._cut(cell, width)]
                for column, cell, width in zip(self.columns, row.cells, widths, strict=True)
            ]
            yield from self._row(parts, row.styles, row.style, widths, gap)

    def _row(
        self,
        parts: Sequence[Sequence[str]],
        styles: Sequence[str | None],
        style: str | None,
        widths: Sequence[int],
        gap: int,
    ) -> Iterator[Text]:
        """The lines of one row, whose cells have one line or several."""
        for at in range(max(map(len, parts), default=0)):
            line = Text(style=style or "")
            for column, part, own, width in zip(self.columns, parts, styles, widths, strict=True):
                cell = part[at] if at < len(part) else ""
                blanks = " " * (width - cell_len(cell))
                line.append(blanks if column.is_number else "")
                line.append(cell, own)
                line.append(("" if column.is_number else blanks) + " " * gap)
            line.rstrip()
            yield line

    def _records(self, room: int) -> Iterator[Text]:
        """Each row as a record. A cell under an empty name stands in the title of its record."""
        for count, row in enumerate(self._rows, 1):
            named = list(enumerate(zip(self.columns, row.cells, strict=True)))
            signs = "".join(f"{cell} " for _, (column, cell) in named if not column.name)
            title = f"─ {signs}{count} "
            yield Text(title.ljust(min(room, _LONGEST_RULE), "─"), row.style or "dim")
            shown = [
                (column, cell)
                for place, (column, cell) in named
                if column.name and place not in row.aside and (cell or column.kind != "wrap")
            ]
            for line in facts(shown, room, cut=None if self.full else self._cut):
                line.stylize(row.style or "")
                yield line

    def _cut(self, cell: str, width: int) -> str:
        if cell_len(cell) <= width:
            return cell
        self.has_cut = True
        return set_cell_size(cell[: 4 * width], max(width - 1, 0)).rstrip() + MARK


def facts(
    pairs: Sequence[tuple[Column, str]], room: int | None, *, cut: object = None
) -> Iterator[Text]:
    """A line for each name with its cell, and more lines for a cell that is longer than one.

    With `cut`, which takes a cell and a width, cells of the kind "cut" get one line.
    """
    names = max((cell_len(column.name) for column, _ in pairs), default=0)
    has_own_line = room is not None and names + len("  ") > room // 2
    indent = 2 if has_own_line else names + 2
    width = None if room is None else max(room - indent, 1)
    for column, cell in pairs:
        if width is None or column.kind == "whole":
            parts = clean(cell).split("\n")
        elif column.kind == "cut" and callable(cut):
            parts = [cut(cell, width)]
        else:
            parts = [part for line in clean(cell).split("\n") for part in wrapped(line, width)]
        if has_own_line:
            yield from (Text(line, "bold") for line in wrapped(column.name, room or 0))
            parts = ["", *parts]
        for at, part in enumerate(parts):
            if at == 0 and has_own_line:
                continue
            head = column.name if at == 0 else ""
            line = Text()
            line.append(head + " " * (indent - cell_len(head)), "bold")
            line.append(part)
            line.rstrip()
            yield line


def _shared(least: Sequence[int], natural: Sequence[int], room: int) -> list[int] | None:
    """Widths from `least` up to `natural`, the short ones first; None where `least` is too wide."""
    spare = room - sum(least)
    if spare < 0:
        return None
    widths = list(least)
    by_need = sorted(range(len(least)), key=lambda place: natural[place] - least[place])
    for left, place in zip(range(len(by_need), 0, -1), by_need, strict=True):
        given = min(natural[place] - least[place], spare // left)
        widths[place] += given
        spare -= given
    return widths
