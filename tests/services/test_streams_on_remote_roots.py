"""Streams whose checkpoint is on HDFS, and streams whose state is on S3 or in a database."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from remotes import Remote

import holdfast
from holdfast import stateful
from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.spark.state.location import storage_options
from servers import Hdfs, Minio

pytestmark = [pytest.mark.services, pytest.mark.spark]
START = datetime(2024, 4, 16, tzinfo=UTC)
SCHEMA = "user string, time timestamp, v long"
Totals = dict[tuple[str, datetime], int]


def window_of(time: datetime) -> datetime:
    """The end of the window of ten minutes that a time is in."""
    return START + timedelta(minutes=10 * ((time - START) // timedelta(minutes=10) + 1))


def write_batches(folder: Path, count: int) -> list[Totals]:
    """The first batches of a stream, one file each; the totals by user and window after each."""
    rnd, totals, after = random.Random(7), Counter[tuple[str, datetime]](), []
    folder.mkdir(exist_ok=True)
    for number in range(count):
        rows = [
            (
                f"user-{rnd.randrange(20)}",
                START + timedelta(seconds=rnd.randrange(3000)),
                rnd.randrange(1, 100),
            )
            for _ in range(200)
        ]
        for user, time, v in rows:
            totals[user, window_of(time)] += v
        after.append(dict(totals))
        path = folder / f"{number}.parquet"
        if not path.exists():
            users, times, cells = zip(*rows, strict=True)
            kind = pa.timestamp("us", tz="UTC")
            table = pa.table({"user": users, "time": pa.array(times, kind), "v": cells})
            pq.write_table(table, path)
            os.utime(path, (number + 1000, number + 1000))
    return after


def run(spark: SparkSession, source: Path, checkpoint: str, **options: str) -> Any:
    """Take in what is there, one file a batch."""
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").parquet(str(source))
    query = (
        stateful(rows)
        .groupBy("user", F.window("time", "10 minutes"))
        .agg(F.sum("v").alias("total"))
        .writeStream.outputMode("update")
        .format("noop")
        .options(checkpointLocation=checkpoint, **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def totals_of(state: Any) -> Totals:
    return {
        (row["user"], row["window_end"].replace(tzinfo=UTC)): row["total"]
        for row in state.to_arrow().to_pylist()
    }


def check_every_version(location: str, options: dict[str, str], expected: list[Totals]) -> None:
    state = holdfast.read(location, options=options)
    assert state.version == len(expected)
    for version, totals in enumerate(expected, start=1):
        assert totals_of(state.at(version)) == totals


@pytest.fixture
def s3a(spark: SparkSession, minio: Minio) -> Iterator[Minio]:
    """Spark's Hadoop settings lead to MinIO."""
    settings = {
        "fs.s3a.endpoint": minio.url.removeprefix("http://"),
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.access.key": minio.key,
        "fs.s3a.secret.key": minio.secret,
        "fs.s3a.endpoint.region": "us-east-1",
        "fs.s3a.path.style.access": "true",
    }
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield minio
    for name in settings:
        spark.conf.unset(name)


def test_a_checkpoint_on_hdfs_goes_on_after_a_restart_of_query_and_name_node(
    spark: SparkSession, hdfs: Hdfs, tmp_path: Path
) -> None:
    checkpoint = f"{hdfs.url}/streams/windows"
    expected = write_batches(tmp_path / "in", 3)
    query = run(spark, tmp_path / "in", checkpoint)
    assert totals_of(query.state()) == expected[-1]
    hdfs.kill()
    hdfs.start()
    expected = write_batches(tmp_path / "in", 5)
    assert run(spark, tmp_path / "in", checkpoint).version == 5
    check_every_version(checkpoint, {}, expected)
    check_every_version(f"{checkpoint}/holdfast", {}, expected)
    frame = spark.read.format("holdfast").load(checkpoint)
    assert frame.agg(F.sum("value.total")).first()[0] == sum(expected[-1].values())


def test_state_on_s3_goes_on_after_a_restart_beside_a_local_checkpoint(
    spark: SparkSession, s3a: Minio, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, checkpoint = "s3a://state/streams/windows", str(tmp_path / "cp")
    expected = write_batches(tmp_path / "in", 3)
    query = run(spark, tmp_path / "in", checkpoint, stateLocation=state)
    assert totals_of(query.state()) == expected[-1]
    s3a.restart()
    expected = write_batches(tmp_path / "in", 5)
    spark.conf.set("spark.holdfast.stateLocation", state)
    try:
        assert run(spark, tmp_path / "in", checkpoint).version == 5
    finally:
        spark.conf.unset("spark.holdfast.stateLocation")
    check_every_version(state, s3a.options, expected)
    frame = spark.read.format("holdfast").options(**s3a.options).load(state)
    assert frame.agg(F.sum("value.total")).first()[0] == sum(expected[-1].values())
    versions = spark.read.format("holdfast").options(**s3a.options).option("metadata", "versions")
    assert versions.load(state).count() == 6
    _check_nowhere(s3a.secret, query, caplog.text, tmp_path, state, s3a.options)


def _check_nowhere(
    secret: str, query: Any, logged: str, folder: Path, state: str, options: dict[str, str]
) -> None:
    """The secret is in no text form, log line or file."""
    loop = query._run.loop
    shown = [repr(loop._stages), repr(loop._stages[0].output_frames), repr(loop.manifest), logged]
    assert not [text for text in shown if secret in text]
    for path in folder.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()
    storage = open_storage(state, options, StateStoreConf(cache_size_bytes=0))
    for blob in storage.list(""):
        assert secret.encode() not in bytes(storage.read(blob.path))


def test_a_small_batch_costs_two_objects(spark: SparkSession, s3a: Minio, tmp_path: Path) -> None:
    state = "s3a://state/streams/objects"
    write_batches(tmp_path / "in", 2)
    run(spark, tmp_path / "in", str(tmp_path / "cp"), stateLocation=state)
    paths = [blob.path for blob in open_storage(state, s3a.options).list("")]
    by_run = [p for p in paths if p.split("/")[0] in ("claims", "delivered")]
    assert [p.split("/")[0] for p in by_run] == ["claims", "delivered"]
    for version in (1, 2):
        made = [p for p in paths if p.rpartition("/")[2].split("-")[0] == str(version)]
        assert sorted(p.split("/")[0] for p in set(made).difference(by_run)) == [
            "packs",
            "versions",
        ]


def test_hadoops_settings_for_a_bucket_go_before_those_for_all(
    spark: SparkSession, s3a: Minio
) -> None:
    spark.conf.set("fs.s3a.bucket.other.endpoint", "https://other.example:9000")
    try:
        assert storage_options(spark, "s3a://state/x", {}) == {
            **s3a.options, "region": "us-east-1", "path_style": "true",
        }  # fmt: skip
        other = storage_options(spark, "s3a://other/x", {})
        assert other["endpoint_url"] == "https://other.example:9000"
        assert storage_options(spark, "hdfs://host:1/x", {}) == {}
    finally:
        spark.conf.unset("fs.s3a.bucket.other.endpoint")


# Goes on with a stream of the tests in a process of its own, and says which version it is at.
GOES_ON = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession

from test_streams_on_remote_roots import run

source, checkpoint, state, settings = sys.argv[1:]
builder = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", "4")
)
for name, text in json.loads(settings).items():
    builder = builder.config(name, text)
query = run(builder.getOrCreate(), Path(source), checkpoint, stateLocation=state)
print("version", query.version)
"""


def test_state_in_a_database_goes_on_from_the_database_alone(
    spark: SparkSession,
    on_database: Remote,
    hdfs: Hdfs,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Of what the first process had locally, the second finds the source's files and no other."""
    _, state, options = on_database
    source, cache = tmp_path / "in", tmp_path / "cache"
    checkpoint = f"{hdfs.url}/streams/{state.partition(':')[0]}"
    prefix = f"spark.holdfast.{state.partition(':')[0]}."
    settings = {prefix + name: text for name, text in options.items()}
    settings["spark.holdfast.cache.location"] = str(cache)
    expected = write_batches(source, 2)
    for name, text in settings.items():
        spark.conf.set(name, text)
    try:
        query = run(spark, source, checkpoint, stateLocation=state)
        assert totals_of(query.state()) == expected[-1]
    finally:
        for name in settings:
            spark.conf.unset(name)
    assert list(cache.rglob("*"))
    shutil.rmtree(cache)
    assert list(tmp_path.iterdir()) == [source]
    expected = write_batches(source, 3)
    done = subprocess.run(
        [sys.executable, "-c", GOES_ON, str(source), checkpoint, state, json.dumps(settings)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "version 3" in done.stdout
    check_every_version(state, options, expected)
    frame = spark.read.format("holdfast").options(**options).load(state)
    assert frame.agg(F.sum("value.total")).first()[0] == sum(expected[-1].values())
    if secret := options.get("secret"):
        _check_nowhere(secret, query, caplog.text + done.stderr, tmp_path, state, options)
        files = open_storage(checkpoint, {}, StateStoreConf(cache_size_bytes=0))
        assert not [b for b in files.list("") if secret.encode() in bytes(files.read(b.path))]
