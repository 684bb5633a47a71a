"""Checkpoints that earlier code left are resumed, and their batch ids never fall or come again.

dev/make_golden_stream.py writes them: `versions-as-ids` by code that handed out version numbers and
kept no ids, `batch-ids` by code that counts as Spark does.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import make_golden_stream as made

pytestmark = pytest.mark.spark
GOLDEN = sorted(path for path in (Path(__file__).parent / "golden").iterdir())


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_checkpoint_of_earlier_code_is_resumed_with_the_next_batch_ids(
    spark: SparkSession, tmp_path: Path, golden: Path
) -> None:
    before = json.loads((golden / "expected.json").read_text())["given"]
    last = max(map(int, before))
    shutil.copytree(golden / "cp", tmp_path / "cp")
    for number in range(3):
        made.write(tmp_path / "in", number)
    for log in (tmp_path / "cp" / "sources" / "0").iterdir():
        log.write_text(log.read_text().replace(made.INPUT, f"file://{tmp_path}/in"))
    given: dict[int, list[Any]] = {}
    query = made.start(spark, tmp_path / "in", tmp_path / "cp", given)
    query.awaitTermination()
    end = made.START_S + 1200
    assert given[last + 1] == [["a", end + 300, 1], ["a", end + 600, 2], ["b", end + 300, 2]]
    assert sorted(given) == list(range(last + 1, last + 1 + len(given)))
    # The windows of the batches before are closed by now; those of the last one are there.
    kept = query.state().to_arrow().to_pylist()
    assert sorted((row["id"], row["total"]) for row in kept) == [("a", 2)]


def test_golden_checkpoints_are_small_and_name_no_folder_of_a_machine() -> None:
    files = [path for golden in GOLDEN for path in golden.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 100_000
    assert not [path for path in files if b"/tmp/" in path.read_bytes()]
