"""A store's changes are read as a stream: each version once, in order, or not without a word."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sample_roots
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from waiting import until

import holdfast
from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.rewrite import empty_stores, rewrite
from holdfast.errors import IllegalState, InvalidArgument, VersionNotFound
from holdfast.ids import DEFAULT_STORE_NAME, OPERATOR
from holdfast.types import parse_schema
from pyspark_holdfast import DefaultSource
from pyspark_holdfast.changes import HAS_LIMITS, ChangeStreamReader

SHORT = {"min_versions_to_retain": 2, "grace_period_ms": 0, "pack_threshold_bytes": 0}


def totals(root: Path, **conf: Any) -> holdfast.VersionedStore:
    return holdfast.open(root, key="user string", value="total long", partitions=2, conf=conf)


def commit(db: holdfast.VersionedStore, **cells: int | None) -> int:
    """A version that sets totals of users, and removes those that are None."""
    with db.update() as store:
        for user, total in cells.items():
            if total is None:
                store.remove((user,))
            else:
                store.put((user,), (total,))
    return db.version


def reader_of(root: Path, **options: Any) -> ChangeStreamReader:
    """The reader of a new query, as Spark makes it in a process of its own."""
    given = {name: str(value) for name, value in options.items()}
    source = DefaultSource({"path": str(root), "readChangeFeed": "true", **given})
    reader = source.streamReader(source.schema())
    assert isinstance(reader, ChangeStreamReader)
    return reader


def read(reader: ChangeStreamReader, start: Any, end: Any) -> list[tuple[Any, ...]]:
    """Version, kind, user and total of each change."""
    tables = (
        pa.Table.from_batches([batch])
        for place in reader.partitions(start, end)
        for batch in reader.read(place)
    )
    found = [
        (row["version"], row["change_type"], row["key"]["user"], (row["value"] or {}).get("total"))
        for table in tables
        for row in table.to_pylist()
    ]
    return sorted(found, key=repr)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Path]:
    return sample_roots.shop(tmp_path / "shop")


CHANGES = [
    (1, "update", "Sankar", 200),
    (2, "update", "Jade", 800),
    (3, "update", "Sankar", 500),
    (4, "delete", "Jade", None),
    (4, "update", "Kun", 100),
]


@pytest.mark.parametrize(
    ("start_at", "first"),
    [(None, 1), ("Earliest", 1), (0, 1), (3, 3), (5, 5), ("latest", 5)],
)
def test_a_stream_starts_where_it_is_told_and_goes_to_the_newest_version(
    shop: Path, start_at: int | str | None, first: int
) -> None:
    wanted = {} if start_at is None else {"startingVersion": start_at}
    reader = reader_of(shop, **wanted)
    start = json.loads(json.dumps(reader.initialOffset()))
    end = reader.latestOffset(start)
    assert end["version"] == 4
    assert read(reader, start, end) == [change for change in CHANGES if change[0] >= first]
    assert reader.latestOffset(end) == end
    assert read(reader, end, end) == []
    commit(holdfast.open(shop), Kun=7)
    after = reader.latestOffset(end)
    assert read(reader_of(shop, **wanted), end, after) == [(5, "update", "Kun", 7)]
    assert reader.reportLatestOffset() == {"version": 5}


@pytest.mark.skipif(not HAS_LIMITS, reason="this PySpark has no limits of its sources in Python")
def test_a_batch_has_at_most_so_many_versions_and_available_now_has_a_target(shop: Path) -> None:
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    reader = reader_of(shop, maxVersionsPerTrigger=2)
    limit, at, seen = reader.getDefaultReadLimit(), reader.initialOffset(), []
    reader.prepareForTriggerAvailableNow()
    commit(holdfast.open(shop), Kun=7)
    while (after := reader.latestOffset(at, limit)) != at:
        seen.append((after["version"], read(reader, at, after)))
        at = after
    # The first of the versions is the oldest one, whose state is read.
    assert [version for version, _ in seen] == [1, 3, 4]
    assert [change for _, changes in seen for change in changes] == CHANGES
    again = reader_of(shop, maxVersionsPerTrigger=2)
    assert again.latestOffset({"version": 0}, ReadAllAvailable())["version"] == 5


def test_where_versions_were_removed_a_stream_begins_with_the_state(tmp_path: Path) -> None:
    db = totals(tmp_path, **SHORT)
    held = {"version": commit(db, a=1)}
    for number in range(2, 7):
        commit(db, b=number)
        db.maintain(snapshot=True)
    reader = reader_of(tmp_path)
    start = reader.initialOffset()
    oldest = start["version"]
    assert oldest > 2
    assert read(reader, start, reader.latestOffset(start)) == sorted([
        (oldest, "update", "a", 1), *((n, "update", "b", n) for n in range(oldest, 7))
    ], key=repr)  # fmt: skip
    told = rf"version 2 of .* are gone: retention has removed it, and the oldest .* is {oldest}\."
    for work in (
        lambda: reader_of(tmp_path, startingVersion=2).initialOffset(),
        lambda: reader.latestOffset(held),
        lambda: reader.partitions(held, {"version": 3}),
    ):
        with pytest.raises(VersionNotFound, match=told):
            work()
    db.close()


def test_a_root_that_went_back_is_noticed(tmp_path: Path) -> None:
    db = totals(tmp_path / "root")
    commit(db, a=1)
    db.close()
    shutil.copytree(tmp_path / "root", tmp_path / "backup")
    db = totals(tmp_path / "root")
    commit(db, a=2)
    db.close()
    reader = reader_of(tmp_path / "root")
    start = reader.initialOffset()
    end = reader.latestOffset(start)
    assert end["version"] == 2
    shutil.rmtree(tmp_path / "root")
    shutil.copytree(tmp_path / "backup", tmp_path / "root")
    reader = reader_of(tmp_path / "root")
    with pytest.raises(IllegalState, match=r"up to version 2, but .* its newest is 1 now"):
        reader.latestOffset(end)
    commit(totals(tmp_path / "root"), a=3)
    for work in (lambda: reader.latestOffset(end), lambda: reader.partitions(start, end)):
        with pytest.raises(IllegalState, match="the root went back before that version"):
            work()


def test_one_of_several_stores_is_chosen(tmp_path: Path) -> None:
    root = sample_roots.query(tmp_path / "checkpoint" / "holdfast")
    reader = reader_of(root.parent, operatorId=1, storeName="right")
    start = reader.initialOffset()
    places = reader.partitions(start, reader.latestOffset(start))
    found = [row for place in places for batch in reader.read(place) for row in batch.to_pylist()]
    assert {tuple(row["key"]) for row in found} == {("k",)}
    assert {row["key"]["k"] for row in found} == {0, 1, 2, 3}
    assert {row["version"] for row in found} <= {1, 2}


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"startingVersion": "7"}, "startingVersion is 7, but the newest version .* is 4"),
        ({"startingVersion": "first"}, "a version's number, earliest or latest, not 'first'"),
        ({"maxVersionsPerTrigger": "0"}, "must be 1 or above"),
        ({"changeStartVersion": "1"}, "leave out changeStartVersion and changeEndVersion"),
        ({"version": "1"}, "leave out version"),
        ({"readChangeFeed": "false"}, "Only changes can be read as a stream"),
        ({"readChangeFeed": "false", "startingVersion": "1"}, "need readChangeFeed=true"),
    ],
)
def test_an_option_that_cannot_be_is_refused(
    shop: Path, options: dict[str, str], hint: str
) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        reader_of(shop, **options).initialOffset()


# -- through Spark -------------------------------------------------------------------------------


def stream(spark: SparkSession, root: Path, **options: Any) -> DataFrame:
    changes = spark.readStream.format("holdfast").option("readChangeFeed", True)
    return changes.options(**options).load(str(root))


@pytest.mark.spark
def test_files_have_each_change_once_across_restarts(spark: SparkSession, tmp_path: Path) -> None:
    root, out, checkpoint = (tmp_path / name for name in ("a root", "the files", "check point"))
    limits = {"maxVersionsPerTrigger": 2} if HAS_LIMITS else {}

    def bring() -> list[int]:
        """Where each batch of a run that reads what is there ended."""
        writer = stream(spark, root, **limits).writeStream.format("parquet")
        query = (
            writer.option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(out))
        )
        query.awaitTermination()
        told = [source for batch in query.recentProgress for source in batch.sources]
        return [json.loads(source.endOffset)["version"] for source in told]

    with totals(root) as db:
        for number in range(1, 6):
            commit(db, **{f"u{number}": number, "u1": -number, f"u{number - 1}": None})
        assert bring()[-1] == 5
        newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        (newest.parent / f".{newest.name}.crc").unlink()
        newest.unlink()  # as if the driver had been killed before it noted the batch as done
        commit(db, u9=9, u5=None)
        commit(db, u9=10)
        ends = bring()
    assert ends[0] == 5
    assert ends[-1] == 7
    columns = ("version", "change_type", "key.user", "value.total")
    every = spark.read.format("holdfast").option("readChangeFeed", True)
    expected = every.option("changeStartVersion", 0).load(str(root)).select(*columns).collect()
    assert len(expected) > 12
    assert sorted(spark.read.parquet(str(out)).select(*columns).collect(), key=repr) == sorted(
        expected, key=repr
    )


def _add_a_column(root: Path) -> None:
    """Commit a version that gives the store one more column, as a changed query does."""
    storage, runtime, conf = open_storage(root), Runtime.system(), StateStoreConf.empty
    log = VersionLog(storage, runtime)
    base = log.newest_intact()
    assert base is not None
    entry = base.operators[OPERATOR][DEFAULT_STORE_NAME]
    shape = StoreShape.of(entry.key_schema, parse_schema("total long, note string"), None, 0)
    prepared = [
        rewrite(
            base,
            OPERATOR,
            DEFAULT_STORE_NAME,
            part.index,
            shape,
            lambda rows: [rows.value(0), pa.nulls(len(rows), pa.string())],
            storage,
            runtime,
            conf,
        )
        for part in entry.partitions
    ]
    emptied = empty_stores(base, {OPERATOR: {DEFAULT_STORE_NAME: shape}})
    Committer(log, runtime, conf).commit(emptied, None, prepared, runtime.new_id())


@pytest.mark.spark
def test_a_stream_follows_a_store_and_resumes_with_its_new_columns(
    spark: SparkSession, tmp_path: Path
) -> None:
    root, seen = tmp_path / "root", []
    with totals(root) as db:
        commit(db, a=1)

    def follow() -> Any:
        changes = stream(spark, root, startingVersion=1).select("version", "key.user", "value.*")
        writer = changes.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return writer.foreachBatch(lambda rows, _: seen.extend(map(tuple, rows.collect()))).start()

    query = follow()
    try:
        until(lambda: seen == [(1, "a", 1)])
        with totals(root) as db:
            commit(db, b=2)
        until(lambda: len(seen) == 2)
        _add_a_column(root)
        with pytest.raises(StreamingQueryException, match=r"columns of the store in .* changed"):
            query.awaitTermination(120)
    finally:
        query.stop()
    noted = holdfast.open(root, key="user string", value="total long, note string", partitions=2)
    with noted as db, db.update() as store:
        store.put(("c",), (3, "new"))
    query = follow()
    try:
        until(lambda: (4, "c", 3, "new") in seen)
    finally:
        query.stop()
    assert seen[:2] == [(1, "a", 1), (2, "b", 2)]
    assert sorted(seen[2:]) == [(4, "c", 3, "new")]
