"""Merging goes on beside a stream: where it is due, told in progress, and after a waiting batch."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast
from holdfast import admin, stateful
from holdfast.engine.files.filenames import STATE_FOLDER
from holdfast.engine.files.manifest import Manifest
from holdfast.reading import open_root, verify
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.state.locality import StateStoreRDD

pytestmark = pytest.mark.spark


class Stream:
    """Counts by name, a batch for each call; maintenance runs when a test says so."""

    def __init__(self, query: StatefulQuery, folder: Path, checkpoint: Path) -> None:
        self.query, self._folder, self._checkpoint = query, folder, checkpoint
        self._expected: Counter[str] = Counter()

    def arrive(self, *names: str) -> None:
        rows = "".join(json.dumps({"k": name}) + "\n" for name in names)
        aside = self._checkpoint.with_name("aside.json")
        aside.write_text(rows)
        aside.rename(self._folder / f"{len(list(self._folder.iterdir())):03}.json")
        self._expected.update(names)

    def batch(self, *names: str) -> None:
        self.arrive(*names)
        self.query.processAllAvailable()

    @property
    def manifest(self) -> Manifest:
        return self.query._run.loop.manifest

    def kinds(self) -> list[list[str]]:
        """The segments of each partition, newest first."""
        return [[ref.kind for ref in entry.segments] for _, _, entry in self.manifest.partitions()]

    def figures(self) -> dict[str, int]:
        told = self.query.lastProgress
        assert told is not None
        return dict(told.stateOperators[0].customMetrics)

    def check(self) -> None:
        rows = holdfast.read(self._checkpoint).scan().to_pylist()
        assert {row["k"]: row["count"] for row in rows} == self._expected


@contextmanager
def running(spark: SparkSession, folder: Path, **settings: int) -> Iterator[Stream]:
    source = folder / "in"
    source.mkdir(exist_ok=True)
    names = {
        "deltas": "spark.sql.streaming.stateStore.minDeltasForSnapshot",
        "lag": "spark.holdfast.snapshotLag",
        "fanout": "spark.holdfast.mergeFanout",
        "keep": "spark.sql.streaming.minBatchesToRetain",
        "grace": "spark.holdfast.gracePeriod",
    }
    interval = "spark.sql.streaming.stateStore.maintenanceInterval"
    spark.conf.set(interval, "1h")
    for name, value in settings.items():
        spark.conf.set(names[name], value)
    try:
        query = (
            stateful(spark.readStream.schema("k string").json(str(source)))
            .groupBy("k")
            .count()
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", str(folder / "cp"))
            .start()
        )
    finally:
        for name in (interval, *(names[name] for name in settings)):
            spark.conf.unset(name)
    assert isinstance(query, StatefulQuery)
    try:
        yield Stream(query, source, folder / "cp")
    finally:
        query.stop()


def test_what_is_due_is_merged_and_told_in_progress(spark: SparkSession, tmp_path: Path) -> None:
    with running(spark, tmp_path, deltas=3) as stream:
        for name in "abc":
            stream.batch(*[name] * 5, "d", "e", "f", "g")
        assert all("snapshot" not in kinds for kinds in stream.kinds())
        assert stream.figures()["numSnapshotsWritten"] == 0
        stream.query._run.maintain()
        stream.batch("h")
        partitions = len(stream.kinds())
        assert all(kinds[-1] == "snapshot" for kinds in stream.kinds() if len(kinds) > 0)
        figures = stream.figures()
        assert 0 < figures["numSnapshotsWritten"] <= partitions
        assert figures["mergedSizeBytes"] > 0
        assert figures["maintenanceTimeMs"] > 0
        stream.batch("h")
        assert stream.figures()["numSnapshotsWritten"] == 0
        stream.check()


def test_no_job_runs_where_nothing_is_due(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[int] = []
    plain = StateStoreRDD.run_one

    def counted(rdd: StateStoreRDD, partition: int, work: Any) -> Any:
        jobs.append(partition)
        return plain(rdd, partition, work)

    monkeypatch.setattr(StateStoreRDD, "run_one", counted)
    with running(spark, tmp_path, deltas=2) as stream:
        stream.batch("a")
        stream.query._run.maintain()
        assert jobs == []
        stream.batch("a")
        stream.query._run.maintain()
        assert len(jobs) == 1, "of the partition that has two deltas"
        stream.query._run.maintain()
        assert len(jobs) == 1, "its snapshot waits for the next version"


def test_a_partition_whose_snapshot_lags_is_snapshotted_by_force(
    spark: SparkSession, tmp_path: Path
) -> None:
    everyone = [f"user {number}" for number in range(20_000)]
    with running(spark, tmp_path, deltas=1, lag=4, fanout=20) as stream:
        stream.batch(*everyone)
        stream.query._run.maintain()
        for _ in range(3):
            stream.batch("user 1")
            stream.query._run.maintain()
        held = [kinds for kinds in stream.kinds() if kinds[0] == "delta"]
        assert held == [["delta", "delta", "delta", "snapshot"]], "they weigh little"
        stream.batch("user 1")
        stream.query._run.maintain()
        stream.batch("user 1")
        assert [kinds for kinds in stream.kinds() if kinds[0] == "delta"] == [["delta", "snapshot"]]
        assert stream.figures()["numSnapshotsWritten"] == 1
        stream.check()


def test_the_most_lagging_come_first_and_are_told_once(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(spark, tmp_path, deltas=1, lag=2) as stream:
        for _ in range(5):
            stream.batch(*"abcdefgh")
        due = stream.query._run.loop.due_merges()
        assert len(due) == len(stream.kinds()) > 1
        stream.query._run.loop.merge(due[-1])
        stream.batch(*"abcdefgh")
        assert stream.query._run.loop.due_merges()[-1] == due[-1], "its snapshot is the newest"
    said = [record.message for record in caplog.records if "no snapshot of the last" in record.msg]
    assert len(said) == 1
    assert "maintenanceInterval" in said[0]


def test_snapshots_of_earlier_runs_do_not_lag(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with running(spark, tmp_path, deltas=1, lag=2) as stream:
        for _ in range(5):
            stream.batch(*"abcdefgh")
            stream.query._run.maintain()
        stream.batch(*"abcdefgh")
    with running(spark, tmp_path, deltas=1, lag=2) as stream:
        stream.batch(*"abcdefgh")
        assert stream.query._run.loop.due_merges()
    assert not [record for record in caplog.records if "no snapshot of the last" in record.msg]


def test_a_partition_that_cannot_be_merged_does_not_keep_the_others_waiting(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with running(spark, tmp_path, deltas=3) as stream:
        for name in "abc":
            stream.batch(*[name] * 5, "d", "e", "f", "g")
        loop, done = stream.query._run.loop, []
        merge, clean = loop.merge, loop.clean

        def merging(place: Any) -> None:
            if place == loop_due[0]:
                raise MemoryError("no room")
            merge(place)
            done.append(place)

        loop_due = loop.due_merges()
        assert len(loop_due) >= 2
        monkeypatch.setattr(loop, "merge", merging)
        monkeypatch.setattr(loop, "clean", lambda quiet: (clean(quiet), done.append("cleaned")))
        stream.query._run.maintain()
        assert done == [*loop_due[1:], "cleaned"]
        assert "no room" in caplog.text
        stream.check()


def test_a_run_too_short_for_maintenance_cleans_up_at_its_end(
    spark: SparkSession, tmp_path: Path
) -> None:
    for _ in range(3):
        with running(spark, tmp_path, keep=2, grace=0) as stream:
            for name in "ab":
                stream.batch(name)
    versions = [path.name for path in (tmp_path / "cp" / "holdfast" / "versions").iterdir()]
    assert sorted(versions) == ["5", "6"]
    packs = tmp_path / "cp" / "holdfast" / "packs"
    assert len([path for path in packs.iterdir() if path.suffix == ".pack"]) <= 6
    assert holdfast.read(tmp_path / "cp").get("a") == (3,)


def test_small_deltas_of_many_partitions_do_not_all_travel_to_the_driver(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.state.result_size.MOST_INLINE_BYTES", 4000)
    with running(spark, tmp_path) as stream:
        partitions = len(stream.kinds())
        stream.batch(*(f"user {number}" for number in range(1000)))
        for _, _, entry in stream.manifest.partitions():
            (delta,) = entry.segments
            assert delta.info.size > 4000 // partitions
            assert delta.pack is None
        stream.check()


def test_a_batch_that_waits_goes_before_the_next_merge(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(spark, tmp_path) as stream:
        stream.batch("a")
        versions: list[int] = []

        def merging(place: object) -> None:
            if not versions:
                stream.arrive("b")
                assert stream.query._run.turns.batch_waits.wait(60)
            versions.append(stream.query.version)

        monkeypatch.setattr(stream.query._run.loop, "due_merges", lambda: [(0, "default", 0)] * 2)
        monkeypatch.setattr(stream.query._run.loop, "merge", merging)
        stream.query._run.maintain()
        assert versions == [1, 2]
        stream.check()


def test_a_request_from_outside_is_merged_beside_the_stream_and_then_removed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with running(spark, tmp_path) as stream:
        for _ in range(3):
            stream.batch("a", "b", "c", "d", "e")
        before = stream.kinds()
        assert all("snapshot" not in kinds for kinds in before)
        admin.compact(tmp_path / "cp", request=True, reason="reads are slow").run()
        requests = tmp_path / "cp" / STATE_FOLDER / "requests"
        stream.query._run.maintain()
        assert len(list(requests.iterdir())) == 1, "until a version has the merges"
        stream.batch("a", "b", "c", "d", "e")
        assert list(requests.iterdir()) == []
        assert [kinds[-1:] for kinds in stream.kinds()] == [
            ["snapshot"] if kinds else [] for kinds in before
        ]
        assert max(map(len, stream.kinds())) == 2
        assert stream.figures()["numSnapshotsWritten"] == sum(map(bool, before))
        stream.check()


def test_a_clean_up_from_outside_disturbs_no_stream_and_takes_none_of_its_merges(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Merges that wait while nothing arrives are in no version, and of any age."""
    with running(spark, tmp_path, deltas=2, keep=2, grace=0) as stream:
        for round_ in range(3):
            stream.batch("a", "b", "c")
            stream.batch("a", "b", "d")
            for place in stream.query._run.loop.due_merges():
                stream.query._run.loop.merge(place)
            plan = admin.gc(tmp_path / "cp", keep=2)
            assert plan.todo.spared_files, "the merges that only the driver knows"
            plan.run()
            stream.batch("a", str(round_))
            assert any("snapshot" in kinds for kinds in stream.kinds())
            assert verify(open_root(tmp_path / "cp")).intact
            stream.check()
        assert stream.query.exception() is None
        assert len(open_root(tmp_path / "cp").versions) < 9
    assert verify(open_root(tmp_path / "cp")).intact
