"""More than one Arrow column holds: batches, memtables, merges and answers, with small limits."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast import VersionedStore
from holdfast.engine.partition import columns, memtable, stack
from holdfast.errors import InvalidArgument
from holdfast.types import _batch, parse_schema
from holdfast.types._columns import write_column

MOST = 4_000


@pytest.fixture(params=[1, 3], ids=["one partition", "three partitions"])
def db(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> VersionedStore:
    for module in (_batch, memtable, columns):
        monkeypatch.setattr(module, "MOST_COLUMN_BYTES", MOST)
    monkeypatch.setattr(stack, "PIECE_BYTES", MOST)
    conf = {"min_deltas_for_snapshot": 3}
    return holdfast.open(
        tmp_path / "root", key="k long", value="v string", partitions=request.param, conf=conf
    )


def table(numbers: range, text: str) -> pa.Table:
    return pa.table({"k": numbers, "v": [f"{text}{n}" + "x" * (n % 97) for n in numbers]})


def state(reader: Any) -> dict[int, str]:
    rows = reader.scan().to_pydict()
    assert len(set(rows["k"])) == len(rows["k"])
    return dict(zip(rows["k"], rows["v"], strict=True))


def test_batch_beyond_one_column_is_put_in_parts_and_the_last_row_of_a_key_wins(
    db: VersionedStore,
) -> None:
    rows = pa.concat_tables([table(range(300), "a"), table(range(200), "b")])
    expected = dict(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
    with db.update() as store:
        store.put_many(rows)
        assert state(store) == expected
        assert store.metrics.num_keys == 300
    assert state(db) == expected
    assert db.at(1).metrics.num_keys == 300
    with db.update() as store:
        store.remove_many(pa.table({"k": range(100, 5_000)}))
    assert state(db) == {k: v for k, v in expected.items() if k < 100}


def test_rows_beyond_one_column_are_committed(db: VersionedStore) -> None:
    expected = {n: str(n) * 10 for n in range(1_000)}
    with db.update() as store:
        for key, text in expected.items():
            store.put((key,), (text,))
        store.remove((7,))
        assert store.get((8,)) == (expected[8],)
    del expected[7]
    assert state(db) == expected
    assert db.at(1).metrics.num_keys == 999


def test_change_beyond_one_column_is_refused_with_what_to_do(db: VersionedStore) -> None:
    with db.update() as store:
        with pytest.raises(InvalidArgument, match=r"'v'.*Split the batch"):
            store.update_many(table(range(600), "a" * 40), lambda rows, state: rows.select(["v"]))
        assert store.metrics.num_keys == 0


def test_answer_beyond_one_column_is_refused_with_what_to_do(db: VersionedStore) -> None:
    with db.update() as store:
        store.put_many(table(range(300), "a" * 40))
    assert db.get_many(pa.table({"k": [5, 6]})).num_rows == 2
    with pytest.raises(InvalidArgument, match="Ask for fewer keys at a time"):
        db.get_many(pa.table({"k": [5] * 1_000}))


def test_merges_are_cut_to_what_fits(db: VersionedStore, monkeypatch: pytest.MonkeyPatch) -> None:
    merged: list[int] = []
    merge = stack.merge_rows

    def spy(runs: Any) -> Any:
        merged.append(sum(run.nbytes for run in runs))
        return merge(runs)

    monkeypatch.setattr(stack, "merge_rows", spy)
    rng, expected = Random(1), dict[int, str]()
    for version in range(6):
        rows = table(range(rng.randrange(300), 400), str(version) * 30)
        expected.update(zip(rows["k"].to_pylist(), rows["v"].to_pylist(), strict=True))
        with db.update() as store:
            store.put_many(rows)
        db.maintain()
    with db.update():
        pass
    assert db.at(7).metrics.json()["numSnapshots"] >= 1
    assert state(db) == expected
    assert len(merged) > 20
    assert max(merged) <= MOST


def test_column_that_pyarrow_would_part_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def parted(cells: Any, kind: Any) -> pa.ChunkedArray:
        return pa.chunked_array([[cell] for cell in cells], kind)

    (column,) = parse_schema("v string")
    with monkeypatch.context() as patched:
        patched.setattr("holdfast.types._columns.pa.array", parted)
        with pytest.raises(pa.ArrowCapacityError):
            write_column(column.type, ["a", "b"])
