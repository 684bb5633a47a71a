"""State and checkpoint that do not belong together are refused; other places for state work."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from native import SCHEMA, write_batches
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.listener import StreamingQueryListener
from waiting import until

import holdfast
from holdfast import stateful
from holdfast.errors import ArithmeticOverflow, InvalidArgument
from holdfast.spark.state import location
from holdfast.spark.state.location import state_root
from holdfast.spark.state.stored import partitions_of

pytestmark = pytest.mark.spark
Pipeline = Callable[[Any], Any]


def _counts(frame: Any) -> Any:
    return frame.groupBy("id").count()


def _run(
    spark: SparkSession,
    tmp_path: Path,
    pipeline: Pipeline = _counts,
    checkpoint: str = "cp",
    **options: str,
) -> Any:
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    query = (
        pipeline(stateful(source.parquet(str(tmp_path / "in"))))
        .writeStream.outputMode("update")
        .format("noop")
        .options(checkpointLocation=str(tmp_path / checkpoint), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_state_elsewhere_is_found_again_and_belongs_to_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=1, batches=2)
    state = tmp_path / "state of totals"
    assert _run(spark, tmp_path, stateLocation=f"file://{state}").version == 2
    write_batches(tmp_path / "in", seed=1, batches=3)
    assert _run(spark, tmp_path, stateLocation=str(state)).version == 3
    with holdfast.open(state) as db:
        assert db.version == 3
    assert not (tmp_path / "cp" / "holdfast").exists()
    with pytest.raises(holdfast.IllegalState, match="belongs to Spark's query"):
        _run(spark, tmp_path, checkpoint="other", stateLocation=str(state))
    with pytest.raises(holdfast.IllegalState, match="there is none in"):
        _run(spark, tmp_path)
    spark.conf.set("spark.holdfast.stateLocation", str(state))
    try:
        assert _run(spark, tmp_path).version == 3
    finally:
        spark.conf.unset("spark.holdfast.stateLocation")
    _run(spark, tmp_path, checkpoint="second")
    with pytest.raises(holdfast.IllegalState, match="is the state"):
        _run(spark, tmp_path, checkpoint="second", stateLocation=str(state))


def test_state_that_was_deleted_is_missed(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=2, batches=1)
    _run(spark, tmp_path)
    shutil.rmtree(tmp_path / "cp" / "holdfast")
    with pytest.raises(holdfast.IllegalState, match="Bring the state back"):
        _run(spark, tmp_path)


def test_state_behind_sparks_checkpoint_is_refused_with_both_numbers(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=2, batches=1)
    _run(spark, tmp_path)
    shutil.copytree(tmp_path / "cp" / "holdfast", tmp_path / "old")
    write_batches(tmp_path / "in", seed=2, batches=2)
    _run(spark, tmp_path)
    shutil.rmtree(tmp_path / "cp" / "holdfast")
    shutil.move(tmp_path / "old", tmp_path / "cp" / "holdfast")
    write_batches(tmp_path / "in", seed=2, batches=3)
    with pytest.raises(Exception, match=r"brings batch 2.*last batch is 0"):
        _run(spark, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "difference"),
    [
        (
            lambda f: f.groupBy(F.window("ts", "5 minutes")).count(),
            lambda f: f.groupBy(F.window("ts", "10 minutes")).count(),
            "keys was window.*5 minutes.*, is window.*10 minutes",
        ),
        (
            lambda f: f.groupBy("id").agg(F.sum("v").alias("n")),
            lambda f: f.groupBy("id").agg(F.max("v").alias("n")),
            r"aggregate n was sum\(v\), is max\(v\)",
        ),
        (_counts, lambda f: f.dropDuplicates(["id"]), "operator was stateStoreSave, is dedupe"),
        (_counts, lambda f: f.dropDuplicates(["id"]).groupBy("id").count(), "2 stateful operators"),
    ],
)
def test_a_changed_query_is_refused_with_the_change(
    spark: SparkSession, tmp_path: Path, before: Pipeline, after: Pipeline, difference: str
) -> None:
    write_batches(tmp_path / "in", seed=2, batches=1)
    _run(spark, tmp_path, before)
    with pytest.raises(holdfast.InvalidArgument, match=difference):
        _run(spark, tmp_path, after)


def test_state_in_memory_goes_on_in_the_same_application(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=3, batches=1)
    _run(spark, tmp_path, stateLocation="memory://totals")
    write_batches(tmp_path / "in", seed=3, batches=2)
    assert _run(spark, tmp_path, stateLocation="memory://totals").version == 2
    assert not (tmp_path / "cp" / "holdfast").exists()
    with pytest.raises(holdfast.InvalidArgument, match="needs a name"):
        _run(spark, tmp_path, checkpoint="other", stateLocation="memory://")


def test_state_in_memory_is_refused_on_a_cluster(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="spark://host:7077"))
    with pytest.raises(holdfast.InvalidArgument, match=r"share a host.*hdfs://"):
        state_root(session, str(tmp_path), "memory://totals")


def test_state_in_memory_is_in_a_folder_of_its_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = SimpleNamespace(master="local[2]", applicationId="local-1")
    session: Any = SimpleNamespace(sparkContext=context)
    monkeypatch.setattr(location, "_SHARED_MEMORY", tmp_path)
    root = Path(state_root(session, "", "memory://totals"))
    assert root.parent.stat().st_mode & 0o777 == 0o700
    root.parent.chmod(0o755)
    assert Path(state_root(session, "", "memory://totals")) == root
    assert root.parent.stat().st_mode & 0o777 == 0o700
    root.parent.rmdir()
    root.parent.symlink_to(tmp_path)
    with pytest.raises(holdfast.InvalidArgument, match="another user or is not a folder"):
        state_root(session, "", "memory://totals")
    root.parent.unlink()
    root.parent.mkdir()
    found = os.stat_result((0o40700, *root.parent.stat()[1:4], os.getuid() + 1, *[0] * 5))
    monkeypatch.setattr(Path, "lstat", lambda path: found)
    with pytest.raises(holdfast.InvalidArgument, match="another user"):
        state_root(session, "", "memory://totals")


def test_a_number_of_partitions_that_is_set_is_taken_be_it_sparks_default(
    spark: SparkSession,
) -> None:
    session = spark.newSession()
    assert partitions_of(session, None, "root") == 2, "what the session was built with"
    session.conf.unset("spark.sql.shuffle.partitions")
    assert session.conf.get("spark.sql.shuffle.partitions") == "200"
    assert partitions_of(session, None, "root") == 2 * spark.sparkContext.defaultParallelism
    session.conf.set("spark.sql.shuffle.partitions", "200")
    assert partitions_of(session, None, "root") == 200


def test_another_number_of_partitions_is_named_and_changes_nothing(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_batches(tmp_path / "in", seed=4, batches=1)
    _run(spark, tmp_path)
    write_batches(tmp_path / "in", seed=4, batches=2)
    spark.conf.set("spark.sql.shuffle.partitions", "7")
    try:
        with caplog.at_level(logging.INFO, logger="holdfast"):
            _run(spark, tmp_path)
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert "has 2 partitions; spark.sql.shuffle.partitions=7 does not change that" in caplog.text
    with holdfast.open(tmp_path / "cp" / "holdfast") as db:
        assert (db.version, db.partitions) == (2, 2)


def test_a_running_query_adds_up_by_the_settings_it_was_started_with(
    spark: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    query = (
        stateful(spark.readStream.schema("id string, v long").json(str(tmp_path / "in")))
        .groupBy("id")
        .agg(F.sum("v"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
    )
    running = query.start()
    row = json.dumps({"id": "a", "v": 2**62})
    (tmp_path / "in" / "0.json").write_text(row)
    running.processAllAvailable()
    spark.conf.set("spark.sql.ansi.enabled", "false")
    try:
        (tmp_path / "in" / "1.json").write_text(row)
        with pytest.raises(StreamingQueryException, match="ARITHMETIC_OVERFLOW"):
            running.processAllAvailable()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
        running.stop()
    told = running.exception()
    assert told is not None
    assert isinstance(told.__cause__, PythonException)
    assert "ArithmeticOverflow" in str(told.__cause__)
    assert holdfast.read(tmp_path / "cp").version == 1


@pytest.mark.parametrize("by_window", [True, False])
def test_a_watermark_that_is_gone_is_refused_where_groups_were_evicted_by_it(
    spark: SparkSession, tmp_path: Path, by_window: bool
) -> None:
    keys = ["id", *([F.window("ts", "5 minutes")] if by_window else [])]
    write_batches(tmp_path / "in", seed=1, batches=2)
    _run(
        spark, tmp_path, lambda frame: frame.withWatermark("ts", "1 minute").groupBy(*keys).count()
    )
    write_batches(tmp_path / "in", seed=1, batches=3)

    def without() -> Any:
        return _run(spark, tmp_path, lambda frame: frame.groupBy(*keys).count())

    if by_window:
        with pytest.raises(InvalidArgument, match="the watermark of its groups was one, is none"):
            without()
    else:
        assert without().version == 3


def test_queries_of_one_session_share_no_settings(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=9, batches=1)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    told: dict[str, list[str]] = {"a": [], "b": []}
    adaptive: list[str | None] = []

    class Ears(StreamingQueryListener):
        def __init__(self, said: list[str]) -> None:
            self._said = said

        def onQueryStarted(self, event: Any) -> None: ...
        def onQueryTerminated(self, event: Any) -> None: ...
        def onQueryProgress(self, event: Any) -> None:
            self._said.append(event.progress.name)

    def start(name: str) -> Any:
        query = (
            _counts(stateful(source.parquet(str(tmp_path / "in"))))
            .writeStream.outputMode("update")
            .queryName(name)
            .foreachBatch(
                lambda df, version: adaptive.append(
                    df.sparkSession.conf.get("spark.sql.adaptive.enabled")
                )
            )
            .option("checkpointLocation", str(tmp_path / name))
            .start()
        )
        query.addListener(Ears(told[name]))
        return query

    before = dict(spark.conf.getAll)
    first = start("a")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        second = start("b")
        write_batches(tmp_path / "more", seed=9, batches=2)
        _, more = sorted((tmp_path / "more").iterdir())
        more.rename(tmp_path / "in" / more.name)  # now that both are listened to
        for query in (first, second):
            query.processAllAvailable()
            query.stop()
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    for name, partitions in (("a", 2), ("b", 3)):
        with holdfast.open(tmp_path / name / "holdfast") as db:
            assert (db.version, db.partitions) == (2, partitions)
    until(lambda: told["b"])
    for name, said in told.items():
        assert set(said) <= {name}
    assert set(adaptive) == {spark.conf.get("spark.sql.adaptive.enabled")}
    assert dict(spark.conf.getAll) == before


def test_a_failing_task_says_where_it_failed(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame([(2**62,)], "v long").coalesce(1)
    for _ in range(2):
        rows.write.mode("append").parquet(str(tmp_path / "in"))
    source = spark.readStream.schema("v long").option("maxFilesPerTrigger", "1")
    query = (
        stateful(source.parquet(str(tmp_path / "in")))
        .agg(F.sum("v").alias("s"))
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(ArithmeticOverflow) as caught:
        query.awaitTermination()
    assert "operator 0, partition 0, version 2" in caught.value.__notes__[0]
