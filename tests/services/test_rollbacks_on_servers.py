"""Rollbacks on servers, of streams from Kafka, and killed at any moment."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_up_streams import made_up_stream, offsets_text, state_of
from pyspark.sql import DataFrame, SparkSession
from remotes import Remote
from test_exactly_once import PATIENCE_S, await_phase, check, start_driver, write_files
from test_kafka import produce
from test_streams_on_remote_roots import run, s3a, totals_of, write_batches  # noqa: F401

import holdfast
from holdfast import admin, reading, stateful
from holdfast.admin.rewind import finish
from holdfast.admin.site import open_site
from servers import Hdfs, Kafka, Minio

pytestmark = pytest.mark.services
SCRIPT = Path(__file__).parents[1] / "support" / "services" / "rollback_to_kill.py"
MOST_CALLS = 90


def test_a_store_on_every_kind_of_server_goes_back(remote: Remote) -> None:
    _, location, options = remote
    with holdfast.open(location, key="k string", value="v long", options=options) as db:
        for number in range(4):
            with db.update() as update:
                update.put(("a",), (number,))
                update.put((str(number),), (number,))
    plan = admin.rollback(location, 2, options=options, reason="a bad deploy")
    assert (plan.version, plan.keys_before, plan.keys_after) == (5, 5, 3)
    plan.run()
    state = holdfast.read(location, options=options)
    assert {row["k"]: row["v"] for row in state.to_arrow().to_pylist()} == {"a": 1, "0": 0, "1": 1}
    root = reading.open_root(location, options=options)
    assert root.store().diff(4, 5).removed == 2
    assert reading.verify(root).intact
    with holdfast.open(location, options=options) as db, db.update() as update:
        update.put(("new",), (1,))


@pytest.mark.spark
def test_a_checkpoint_on_hdfs_goes_back_with_its_state(
    spark: SparkSession, hdfs: Hdfs, tmp_path: Path
) -> None:
    checkpoint = f"{hdfs.url}/streams/rolled-back"
    expected = write_batches(tmp_path / "in", 4)
    run(spark, tmp_path / "in", checkpoint)
    plan = admin.rollback(checkpoint, 2)
    assert plan.batches == (2, 3)
    assert plan.inputs[0].standing == "there"
    plan.run()
    assert totals_of(holdfast.read(checkpoint)) == expected[1]
    query = run(spark, tmp_path / "in", checkpoint)
    assert totals_of(query.state()) == expected[3]


@pytest.mark.spark
def test_state_on_s3_goes_back_with_the_checkpoint_that_is_named(
    spark: SparkSession,
    s3a: Minio,  # noqa: F811
    tmp_path: Path,
) -> None:
    state, checkpoint = "s3a://state/streams/rolled-back", str(tmp_path / "cp")
    expected = write_batches(tmp_path / "in", 4)
    run(spark, tmp_path / "in", checkpoint, stateLocation=state)
    with pytest.raises(holdfast.InvalidArgument, match="--checkpoint"):
        admin.rollback(state, 2, options=s3a.options)
    admin.rollback(state, 2, checkpoint=checkpoint, options=s3a.options).run()
    assert totals_of(holdfast.read(state, options=s3a.options)) == expected[1]
    query = run(spark, tmp_path / "in", checkpoint, stateLocation=state)
    assert totals_of(query.state()) == expected[3]


@pytest.mark.spark
def test_a_stream_from_kafka_reads_again_what_was_undone(
    spark: SparkSession, kafka: Kafka, tmp_path: Path
) -> None:
    kafka.create_topic("rolled-back")
    stored: dict[str, int] = {}

    def upsert(batch: DataFrame, number: int) -> None:
        stored.update({row["value"]: row["count"] for row in batch.collect()})

    def run_on() -> None:
        rows: Any = (
            spark.readStream.format("kafka")
            .option("kafka.bootstrap.servers", kafka.address)
            .option("subscribe", "rolled-back")
            .option("startingOffsets", "earliest")
            .load()
            .selectExpr("cast(value as string) as value")
        )
        query = stateful(rows).groupBy("value").count().writeStream.foreachBatch(upsert)
        query = query.outputMode("update").option("checkpointLocation", str(tmp_path / "cp"))
        query.trigger(availableNow=True).start().awaitTermination()

    for values in (("a", "b"), ("a",), ("a", "c")):
        produce(spark, kafka, "rolled-back", *values)
        run_on()
    assert stored == {"a": 3, "b": 1, "c": 1}
    plan = admin.rollback(tmp_path / "cp", 1)
    [source] = plan.inputs
    assert (source.kind, source.standing) == ("kafka", "not checked")
    assert source.amount == "3 offsets come again"
    with pytest.raises(holdfast.InvalidArgument, match="--unchecked-input"):
        plan.run()
    admin.rollback(tmp_path / "cp", 1, unchecked_input=True).run()
    produce(spark, kafka, "rolled-back", "a", "d")
    run_on()
    assert stored == {"a": 4, "b": 1, "c": 1, "d": 1}


# -- killed --------------------------------------------------------------------------------------


def _kill_and_finish(folder: Path, seed: int) -> None:
    print(f"seed {seed}")
    rnd = random.Random(seed)
    checkpoint = folder / "a checkpoint"
    states = made_up_stream(checkpoint)
    version = rnd.randrange(1, 6)
    number = rnd.randrange(2 * MOST_CALLS)
    command = [sys.executable, str(SCRIPT), str(number), str(checkpoint), str(version)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"killed {done.stdout.splitlines()[-1:]} of a rollback to version {version}")
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    went_back = holdfast.read(checkpoint).version > 6
    assert state_of(checkpoint) == states[version if went_back else 6]
    if rnd.randrange(2):
        site = open_site(checkpoint)
        assert site.checkpoint is not None
        finish(site.versions, site.newest(), site.checkpoint)
    else:
        admin.rollback(checkpoint, version, lose_input=True).run()
        went_back = True
    batch = version - 1 if went_back else 5
    assert state_of(checkpoint) == states[batch + 1]
    for log in ("offsets", "commits"):
        entries = {path.name for path in (checkpoint / log).iterdir()}
        assert {name for name in entries if name.isdecimal()} == set(map(str, range(batch + 1)))
    assert (checkpoint / "offsets" / str(batch)).read_text() == offsets_text(batch)
    assert reading.verify(reading.open_root(checkpoint)).intact
    shutil.rmtree(checkpoint)


@pytest.mark.parametrize("number", range(4))
def test_a_killed_rollback_is_finished_by_the_next_start_or_command(
    tmp_path: Path, number: int
) -> None:
    _kill_and_finish(tmp_path, random.randrange(10**9))


@pytest.mark.soak
@pytest.mark.parametrize("number", range(100))
def test_a_hundred_killed_rollbacks_are_finished(tmp_path: Path, number: int) -> None:
    _kill_and_finish(tmp_path, random.randrange(10**9))


# -- beside a driver that runs -------------------------------------------------------------------


def _roll_back_by_command(checkpoint: Path, version: int) -> None:
    """Stop nobody first; where a version was committed meanwhile, plan again."""
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", "rollback"]
    command += [str(checkpoint), "--to", str(version), "--yes", "--reason", "beside a driver"]
    for _ in range(50):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        assert "STATE_STORE_CONFLICT" in done.stderr, done.stderr
    raise AssertionError("every plan was out of date")


@pytest.mark.spark
@pytest.mark.parametrize("phase", ["compute", "commit", "deliver"])
def test_a_driver_in_another_process_stops_and_the_next_one_delivers_what_spark_gives(
    spark: SparkSession, tmp_path: Path, phase: str
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    write_files(tmp_path / "in", rnd, count=14)
    first = start_driver(tmp_path, "function", "first.log", trigger="default")
    try:
        await_phase(first, phase, 9)  # a phase may be said twice in a version
        version = rnd.randrange(1, 4)
        _roll_back_by_command(tmp_path / "cp", version)
        first.communicate(timeout=PATIENCE_S)
    finally:
        if first.poll() is None:
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()
    root = reading.open_root(tmp_path / "cp")
    went_back = root.manifest(root.versions[-1])
    assert went_back.operation is not None, "the driver had read every file before"
    assert first.returncode != 0
    assert "holdfast rollback" in (tmp_path / "first.log").read_text()
    numbering, kept = went_back.numbering, root.manifest(version).numbering
    assert numbering is not None
    assert kept is not None
    for number in range(kept["last"] + 1, numbering["last"] + 1):
        (tmp_path / "out" / f"{number}.json").unlink(missing_ok=True)
    second = start_driver(tmp_path, "function", "second.log")
    second.communicate(timeout=PATIENCE_S)
    assert second.returncode == 0, (tmp_path / "second.log").read_text()[-3000:]
    check(spark, tmp_path, "function")
