"""A segment as any Arrow reader sees it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc

import holdfast


def test_rows_of_a_segment_file_are_sorted_by_hash(tmp_path: Path) -> None:
    conf = {"pack_threshold_bytes": 0}
    db = holdfast.open(tmp_path / "db", key="k long", value="v long", conf=conf)
    with db, db.update() as store:
        store.put_many(pa.table({"k": range(5000), "v": range(5000)}))
    (file,) = (tmp_path / "db").rglob("*.delta")
    hashes = ipc.open_file(pa.memory_map(str(file))).read_all()["_hash"].to_pylist()
    assert hashes == sorted(hashes)
    assert len(hashes) == 5000
