"""Checkpoints that are put back, or as earlier releases left them."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from holdfast import stateful
from holdfast.engine.files.manifest_codec import decode, encode

SCHEMA = "k string, v long, ts timestamp"


def write_rows(folder: Path, number: int) -> None:
    """One file of a stream: ten rows, a second apart, numbered on from file to file."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {"k": "ab"[v % 2], "v": v, "ts": f"2024-01-01T00:{v // 60:02d}:{v % 60:02d}Z"}
        for v in range(10 * number, 10 * number + 10)
    ]
    path = folder / f"{number}.json"
    path.write_text("\n".join(map(json.dumps, rows)))
    os.utime(path, (number + 1000, number + 1000))  # Spark takes the oldest first


def rows_of(spark: SparkSession, folder: Path, *, native: bool = False) -> Any:
    """The stream of those files, one a batch; Spark's own, or ours."""
    reader = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    rows = reader.json(str(folder))
    return rows if native else stateful(rows)


def give_up(checkpoint: Path, version: int) -> None:
    """What docs/recovery.md says of a damaged manifest."""
    manifest = checkpoint / "holdfast" / "versions" / str(version)
    manifest.rename(manifest.with_name(f"{version}.damaged"))


def forget_delivery(checkpoint: Path, batch_id: int) -> None:
    """As a driver leaves it that died after it had delivered a batch."""
    for note in (checkpoint / "holdfast" / "delivered").glob("*"):
        note.unlink()
    for path in (checkpoint / "commits").glob(f"*{batch_id}*"):
        path.unlink()


def as_before(checkpoint: Path, out: Path | None = None) -> None:
    """What a release leaves that keeps no numbers, and no commit ids beside sinks."""
    state = checkpoint / "holdfast"
    for path in (state / "versions").iterdir():
        manifest = decode(path.read_bytes(), path.name)
        path.write_bytes(encode(replace(manifest, numbering=None)))
    plans = [] if out is None else list((out / "_holdfast").glob("*/*.plan"))
    for path in plans:
        body = json.loads(path.read_text())
        path.unlink()
        (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
        body = {"version": body["version"], "files": body["files"]}
        path.with_name(f"{body['version']}.plan").write_text(json.dumps(body))
    for path in (state / "delivered").iterdir():
        path.rename(path.with_name(path.name.partition("-")[0]))
