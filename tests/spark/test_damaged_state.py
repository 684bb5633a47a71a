"""A stream continues with any one file of its state lost, cut or altered, its two newest versions
readable.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from command_line import run as command
from pyspark.sql import SparkSession

import holdfast
from holdfast import stateful
from holdfast.engine.files.filenames import data_file

pytestmark = pytest.mark.spark
MANY, BATCHES = 20_000, 8
SETTINGS = {
    # A large first delta, small ones in packs, and merges of both kinds inside batches.
    "packThreshold": "60k", "maxSegments": "3", "mergeFanout": "2", "progress": "false",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "6",
    "spark.sql.streaming.stateStore.maintenanceInterval": "1h",
}  # fmt: skip


def write_batch(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    users = range(MANY) if number == 0 else range(number, number + 50)
    path = folder / f"{number}.parquet"
    pq.write_table(pa.table({"user": pa.array(users, pa.int64())}), path)
    os.utime(path, (1_700_000_000 + number,) * 2)  # the order in which Spark takes them


def counts(batches: int) -> dict[int, int]:
    found = Counter(range(MANY))
    for number in range(1, batches):
        found.update(range(number, number + 50))
    return dict(found)


def run(spark: SparkSession, folder: Path, checkpoint: Path) -> None:
    conf = {k: v for k, v in SETTINGS.items() if k.startswith("spark.")}
    options = {k: v for k, v in SETTINGS.items() if k not in conf}
    own = spark.newSession()
    for name, value in conf.items():
        own.conf.set(name, value)
    source = own.readStream.schema("user long").option("maxFilesPerTrigger", "1")
    query = (
        stateful(source.parquet(str(folder)))
        .groupBy("user")
        .count()
        .writeStream.outputMode("update")
        .format("noop")
        .options(checkpointLocation=str(checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def stored(checkpoint: Path, version: int) -> dict[int, int]:
    rows = holdfast.read(checkpoint).at(version).to_arrow().to_pylist()
    return {row["user"]: next(v for k, v in row.items() if k != "user") for row in rows}


def damage(path: Path, way: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if way == "cut":
        path.write_bytes(data[: len(data) // 2])
    if way == "altered":
        at = len(data) // 2
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :])


def test_a_stream_continues_with_any_one_file_of_its_state_damaged(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, whole = tmp_path / "in", tmp_path / "whole"
    for number in range(BATCHES):
        write_batch(source, number)
    run(spark, source, whole)
    newest = holdfast.read(whole).version
    root = whole / "holdfast"
    needed = holdfast.reading.open_root(root).log.load(newest).files()
    kinds: dict[str, str] = {}
    for path in sorted(needed):
        name = data_file(path)
        assert name is not None
        kinds.setdefault(name.kind, path)
    assert set(kinds) == {"delta", "pack", "merge", "snapshot"}
    write_batch(source, BATCHES)
    ways = {"delta": "removed", "pack": "cut", "merge": "altered", "snapshot": "removed"}
    for kind, path in kinds.items():
        checkpoint = tmp_path / kind
        shutil.copytree(whole, checkpoint)
        damage(checkpoint / "holdfast" / path, ways[kind])
        assert stored(checkpoint, newest) == counts(BATCHES)
        assert stored(checkpoint, newest - 1) == counts(BATCHES - 1)
        run(spark, source, checkpoint)
        assert holdfast.read(checkpoint).version == newest + 1
        assert stored(checkpoint, newest + 1) == counts(BATCHES + 1)


def test_a_stream_continues_from_before_a_damaged_manifest_when_its_checkpoint_goes_back_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, checkpoint = tmp_path / "in", tmp_path / "cp"
    for number in range(3):
        write_batch(source, number)
    run(spark, source, checkpoint)
    write_batch(source, 3)
    manifest = checkpoint / "holdfast" / "versions" / "3"
    damage(manifest, "altered")
    assert stored(checkpoint, 2) == counts(2)
    assert stored(checkpoint, 1) == counts(1)
    with pytest.raises(Exception, match="do not belong together"):
        run(spark, source, checkpoint)
    manifest.rename(checkpoint / "damaged")  # what docs/recovery.md says, and its two further steps
    for name in ("commits/2", "commits/.2.crc", "offsets/3", "offsets/.3.crc"):
        (checkpoint / name).unlink()
    run(spark, source, checkpoint)
    assert holdfast.read(checkpoint).version == 4
    assert stored(checkpoint, 4) == counts(4)
    assert stored(checkpoint, 3) == counts(3)


def needed_by(root: Path, version: int, kind: str) -> list[Path]:
    """The files of a segment, one of them of a kind: all that a version could read it from."""
    if kind == "manifest":
        return [root / "versions" / str(version)]
    manifest = holdfast.reading.open_root(root).log.load(version)
    for operator, store, part in manifest.partitions():
        directory = manifest.directory(operator, store, part.index)
        for ref in part.segments:
            paths = [each.path(directory) for each in (ref, *ref.inputs)]
            names = [data_file(path) for path in paths]
            if any(name is not None and name.kind == kind for name in names):
                copies = [f"{each}.copy" for each in paths]
                return [root / each for each in (*paths, *copies) if (root / each).exists()]
    raise AssertionError(f"version {version} has no {kind}")


def test_after_any_damage_one_command_lets_the_stream_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, whole = tmp_path / "in", tmp_path / "whole"
    for number in range(BATCHES):
        write_batch(source, number)
    run(spark, source, whole)
    newest = holdfast.read(whole).version
    write_batch(source, BATCHES)
    ways = {
        "manifest": "altered", "delta": "removed", "pack": "cut", "merge": "altered",
        "snapshot": "removed",
    }  # fmt: skip
    for kind, way in ways.items():
        checkpoint = tmp_path / kind
        shutil.copytree(whole, checkpoint)
        for path in needed_by(checkpoint / "holdfast", newest, kind):
            damage(path, way)
        said = command("rollback", checkpoint, "--to", "intact", "--yes")
        assert f"as version {newest + 1}" in said, kind
        run(spark, source, checkpoint)
        after = holdfast.read(checkpoint).version
        assert after > newest + 1, kind
        assert stored(checkpoint, after) == counts(BATCHES + 1), kind
