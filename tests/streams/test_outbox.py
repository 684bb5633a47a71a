"""Rows that tasks put out: in order, whole, and never all of them in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.backends.local import LocalStorage
from holdfast.errors import Corruption
from holdfast.streams.outbox import (
    MOST_INLINE_BYTES,
    NOTHING,
    Emission,
    Outbox,
    OutboxReader,
    emit_if_small,
    small_bytes,
)
from holdfast.streams.processors.rows import RowObjects
from holdfast.types import parse_schema

MB = 1 << 20


def table(first: int, rows: int) -> pa.Table:
    return pa.table({"n": np.arange(first, first + rows)})


def private_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise OSError("no RssAnon line")


def numbers(reader: OutboxReader, partition: int = 3) -> list[int]:
    return [n for batch in reader.read(partition) for n in batch.column(0).to_pylist()]


@pytest.mark.parametrize("rows", [0, 10, 100_000, 2_000_000])
def test_rows_come_back_in_their_order_whatever_their_size(tmp_path: Path, rows: int) -> None:
    outbox = Outbox(str(tmp_path), 1, 4, {})
    tables = [table(0, 0), table(0, rows // 2), table(rows // 2, rows - rows // 2)]
    emitted = outbox.emit(3, tables)
    assert emitted.rows == rows
    assert (emitted.path is not None) == (rows >= 100_000)
    assert (emitted.inline is not None) == (rows == 10)
    assert numbers(OutboxReader(str(tmp_path), {}, (emitted,))) == list(range(rows))


def test_a_task_that_puts_out_much_keeps_little_of_it_in_memory(tmp_path: Path) -> None:
    """Half a gigabyte goes through less than a quarter of that, when written and when read."""
    outbox = Outbox(str(tmp_path), 1, 1, {})
    before, seen = private_bytes(), []

    def tables() -> Iterator[pa.Table]:
        for first in range(0, 64 * MB, MB):
            seen.append(private_bytes() - before)
            yield table(first, MB)

    emitted = outbox.emit(0, tables())
    assert emitted.size > 512 * MB
    total = 0
    for batch in OutboxReader(str(tmp_path), {}, (emitted,)).read(0):
        assert batch.nbytes <= 16 * MB
        seen.append(private_bytes() - before)
        total += batch.num_rows
    assert total == 64 * MB
    assert max(seen) < 128 * MB


def test_a_failing_task_leaves_no_file_behind(tmp_path: Path) -> None:
    def tables() -> Iterator[pa.Table]:
        yield table(0, MB)
        raise ValueError("the processor failed")

    with pytest.raises(ValueError, match="the processor failed"):
        Outbox(str(tmp_path), 1, 1, {}).emit(0, tables())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_damage_is_told_before_the_first_row(tmp_path: Path) -> None:
    emitted = Outbox(str(tmp_path), 1, 1, {}).emit(0, [table(0, 2 * MB)])
    assert emitted.path is not None
    file = tmp_path / emitted.path
    body = bytearray(file.read_bytes())
    body[-100] ^= 1
    file.write_bytes(body)
    with pytest.raises(Corruption, match="its checksum is wrong"):
        next(OutboxReader(str(tmp_path), {}, (emitted,)).read(0))


@pytest.mark.parametrize(("rows", "times"), [(100_000, 1), (500_000, 1), (2_000_000, 2)])
def test_output_of_up_to_4_mb_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int, times: int
) -> None:
    emitted = Outbox(str(tmp_path), 1, 4, {}).emit(3, [table(0, rows)])
    assert emitted.path is not None
    fetched, read_range = [], LocalStorage.read_range

    def counted(storage: LocalStorage, path: str, start: int, stop: int) -> pa.Buffer:
        found = read_range(storage, path, start, stop)
        fetched.append(found.size)
        return found

    monkeypatch.setattr(LocalStorage, "read_range", counted)
    assert numbers(OutboxReader(str(tmp_path), {}, (emitted,))) == list(range(rows))
    assert sum(fetched) == times * emitted.size
    assert times > 1 or len(fetched) == 1


@pytest.mark.parametrize("rows", [100_000, 2_000_000])
def test_output_that_was_cut_is_told_before_the_first_row(tmp_path: Path, rows: int) -> None:
    emitted = Outbox(str(tmp_path), 1, 1, {}).emit(0, [table(0, rows)])
    assert emitted.path is not None
    file = tmp_path / emitted.path
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(Corruption, match="its checksum is wrong"):
        next(OutboxReader(str(tmp_path), {}, (emitted,)).read(0))


def test_results_hold_no_more_rows_than_the_driver_takes(tmp_path: Path) -> None:
    rows = [table(0, 1000)]
    roomy = Outbox(str(tmp_path), 1, 10, {})
    tight = Outbox(str(tmp_path), 1, 10, {}, inline_bytes=50_000)
    assert roomy.emit(0, rows).inline is not None
    assert tight.emit(0, rows).path is not None
    assert emit_if_small(0, small_bytes(10, MOST_INLINE_BYTES), rows).inline is not None
    assert emit_if_small(0, small_bytes(10, 50_000), rows) == NOTHING
    assert emit_if_small(0, small_bytes(10, 50_000), []) == Emission(0)


def test_tables_of_large_rows_have_few_of_them() -> None:
    class Large(tuple[Any, ...]):
        __fields__ = ("text",)

    rowwise = RowObjects((), parse_schema("text string"), "UTC", lambda names: tuple)
    rows = (Large((str(n) + "x" * 100_000,)) for n in range(3000))
    sizes = [(each.num_rows, each.nbytes) for each in rowwise.tables(rows)]
    assert sum(count for count, _ in sizes) == 3000
    assert all(size <= 20 * MB for _, size in sizes)
