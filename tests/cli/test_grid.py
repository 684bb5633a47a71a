"""Tables lose nothing at any width: no column is hidden, and no number or time is broken."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path

import pytest
from command_line import run
from rich.cells import cell_len
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.cli.grid import MARK, Column, Grid, number, wrapping
from holdfast.cli.texts import wrapped

ALPHABET = ["a", "long", "東京", "한국어", "e\u0301", "x" * 30, "{", "12345678901", "\U0001f44d"]
NUMBERS = [f"sum_{i}" for i in range(15)]
NOTE = "several words, 中文字符, " * 5 + "\nand a second line"


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of twenty columns of many types, with nulls."""
    root = tmp_path_factory.mktemp("wide")
    value = ", ".join(f"{name} long" for name in NUMBERS)
    value += ", note string, parts array<struct<x: double>>, price decimal(20,2)"
    db = holdfast.open(root, key="user string, at timestamp", value=value)
    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    sums = [10**17 + i for i in range(len(NUMBERS))]
    with db.update() as store:
        store.put(("東京都のお客様", at), (*sums, NOTE, [(0.5,)] * 20, Decimal("12345678901.25")))
        store.put(("nobody", at), (None,) * 18)
    with db.update() as store:
        store.put(("nobody", at), (7, *(None,) * 17))
    db.close()
    return root


def shown(width: int | None, *arguments: object, code: int = 0) -> str:
    env = {"COLUMNS": None if width is None else str(width)}
    done = CliRunner().invoke(app, list(map(str, arguments)), env=env)
    assert done.exit_code == code, done.output
    return done.stdout


@pytest.mark.parametrize("width", [80, 40, 24])
def test_twenty_columns_on_a_narrow_terminal_are_all_shown(wide: Path, width: int) -> None:
    text = shown(width, "scan", wide)
    words_shown = text.split()
    for name in ("user", "at", *NUMBERS, "note", "parts", "price"):
        assert words_shown.count(name) == 2, name
    for cell in (*(str(10**17 + i) for i in range(15)), "2026-01-02T03:04:05.000678Z",
                 "12345678901.25"):  # fmt: skip
        assert cell in words_shown, cell
    assert "東京都のお客様" in words_shown
    assert f"several{'' if width < 40 else ' words'}" in text
    assert MARK in text
    assert "--full" in text
    whole = shown(width, "scan", wide, "--full")
    assert MARK not in whole
    assert "".join(NOTE.split()).replace("\n", "") in "".join(whole.split()).replace("\\n", "")


def test_a_table_is_one_line_for_each_row_where_output_is_piped(wide: Path) -> None:
    head, _, *rows, count = shown(None, "scan", wide).splitlines()
    assert head.split() == ["user", "at", *NUMBERS, "note", "parts", "price"]
    assert (len(rows), count) == (2, "2 rows of version 2")
    (long,) = (row for row in rows if "東京都" in row)
    assert NOTE.replace("\n", "\\n") in long
    assert MARK not in long


def test_a_record_of_a_difference_has_only_what_differs(wide: Path) -> None:
    names = [line.split("  ")[0] for line in shown(60, "diff", wide, code=1).splitlines()]
    assert names == ["─ ~ 1 " + "─" * 34, "user", "at", "sum_0 before", "sum_0 after",
                     "version 1 to 2: 0 added, 1 changed, 0 removed"]  # fmt: skip


def test_a_value_is_shown_whole_and_its_numbers_on_one_line(wide: Path) -> None:
    lines = shown(30, "get", wide, "東京都のお客様", "2026-01-02T03:04:05.000678Z").splitlines()
    assert f"sum_3   {10**17 + 3}" in lines
    assert "price   12345678901.25" in lines
    assert MARK not in "".join(lines)


def test_an_empty_table_that_is_too_wide_names_its_columns(wide: Path) -> None:
    text = " ".join(shown(40, "scan", wide, "--where", "sum_1 = 3").split())
    assert "columns: user, at, sum_0," in text
    assert "0 rows of version 2" in text


def test_bounds_and_watermarks_are_times(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="day date, user string", value="n long", key_index_ordinal=0)
    with db.update() as store:
        store.put((date(2026, 2, 1), "a"), (1,), expires_ms=1_800_000_000_000)
        store.evict(date(2026, 1, 31))
        store.expire(1_790_000_000_000)
    db.close()
    text = run("show", tmp_path)
    assert "evicted up to" in text
    assert text.splitlines()[-1].split()[-2:] == ["2026-01-31", "2026-09-21T14:13:20.000Z"]


def test_any_table_at_any_width_keeps_every_name_and_every_whole_cell() -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    for _ in range(150):
        columns = [
            Column(f"name_{i}" + " after" * draw.randrange(2), "cut")
            if kind == 0
            else wrapping(f"name_{i}")
            if kind == 1
            else number(f"name_{i}")
            for i, kind in enumerate(draw.choices(range(3), k=draw.randrange(1, 9)))
        ]
        grid = Grid(columns)
        rows = [
            [
                str(draw.randrange(10 ** draw.randrange(1, 19)))
                if column.kind == "whole"
                else " ".join(draw.choices(ALPHABET, k=draw.randrange(1, 8)))
                for column in columns
            ]
            for _ in range(draw.randrange(1, 4))
        ]
        for row in rows:
            grid.add(*row)
        room = draw.randrange(12, 120)
        lines = [line.plain for line in grid.lines(room)]
        told = (seed, room, rows, lines)
        for column, *cells in zip(columns, *rows, strict=True):
            assert column.name.split()[0] in " ".join(lines).split(), told
            if column.kind == "whole":
                assert set(cells) <= set(" ".join(lines).split()), told
            if column.kind == "wrap":
                together = "".join("".join(lines).split())
                assert all(set(cell.split()[0]) <= set(together) for cell in cells), told
        if grid.fits(room):
            assert max(map(cell_len, lines)) <= room, told


def test_a_text_is_wrapped_between_words_and_no_number_is_broken() -> None:
    assert wrapped("one two three", 7) == ["one two", "three"]
    assert wrapped("東京東京", 5) == ["東京", "東京"]
    assert wrapped("at=1234567", 8) == ["at=", "1234567"]
    assert wrapped("12345678 a", 5) == ["12345678", "a"]
    assert wrapped("", 5) == [""]
