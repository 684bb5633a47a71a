"""State is read by Spark as a table: any version, its changes, and what there is."""

from __future__ import annotations

import math
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sample_roots
from made_up_streams import made_up_stream
from native import normal, run, write_batches
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import admin
from holdfast.errors import InvalidArgument, VersionNotFound
from pyspark_holdfast import DefaultSource
from pyspark_holdfast.options import ReadOptions
from pyspark_holdfast.reading import StateReader

pytestmark = pytest.mark.spark
ROOT = Path(__file__).resolve().parents[2]
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def pushdown(spark: SparkSession) -> Iterator[None]:
    """Filters are handed to the source, which Spark does only when asked to."""
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.unset(PUSHDOWN)


def load(spark: SparkSession, place: Path, **options: Any) -> DataFrame:
    return spark.read.format("holdfast").options(**options).load(str(place))


def rows(frame: DataFrame) -> list[Any]:
    return sorted(map(plain, frame.collect()), key=repr)


def plain(cell: Any) -> Any:
    """A row as tuples all the way down, doubles to nine digits."""
    return tuple(map(plain, cell)) if isinstance(cell, Row) else normal(cell)


# -- a version -----------------------------------------------------------------------------------


def test_state_is_a_table_of_keys_values_and_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = load(spark, sample_roots.shop(tmp_path))
    assert frame.schema.simpleString() == (
        "struct<key:struct<user:string>,value:struct<total:bigint>,partition_id:int>"
    )
    assert rows(frame) == [(("Kun",), (100,), 1), (("Sankar",), (500,), 1)]
    assert frame.rdd.getNumPartitions() == 2
    assert rows(frame.select("value.total").where("key.user = 'Kun'")) == [(100,)]


def test_a_version_is_chosen_by_number_or_tag(spark: SparkSession, tmp_path: Path) -> None:
    sample_roots.shop(tmp_path)
    for version in ("2", "two-users"):
        users = load(spark, tmp_path, version=version).select("key.user", "value.total")
        assert rows(users) == [("Jade", 800), ("Sankar", 200)]
    assert load(spark, tmp_path, version="0").count() == 0
    with pytest.raises(AnalysisException, match=r"Version 9 is not in .* 0–4"):
        load(spark, tmp_path, version="9").collect()


def test_a_version_is_chosen_as_of_a_number_a_time_or_a_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    made_up_stream(tmp_path)
    root = holdfast.reading.open_root(tmp_path)
    expected = [("key 0", 0), ("key 1", 1)]
    assert rows(load(spark, tmp_path, versionAsOf="2").select("key.k", "value.v")) == expected
    assert rows(load(spark, tmp_path, batchId="1").select("key.k", "value.v")) == expected
    first = datetime.fromtimestamp(root.manifest(0).committed_at_ms / 1000, UTC)
    later = first + timedelta(days=1)
    for moment in (later.isoformat(), later.strftime("%Y-%m-%d %H:%M:%S")):
        assert load(spark, tmp_path, timestampAsOf=moment).count() == root.store().at(6).num_keys
    for options, why in (
        ({"batchId": "17"}, "no version of batch 17"),
        ({"timestampAsOf": "2001-01-01"}, "no version from 2001-01-01"),
        ({"timestampAsOf": "soon"}, "must be a time"),
        ({"versionAsOf": "1", "batchId": "1"}, "Give one of them"),
        ({"batchId": "1", "readChangeFeed": "true", "changeStartVersion": "1"}, "leave out"),
    ):
        with pytest.raises(AnalysisException, match=why):
            load(spark, tmp_path, **options).collect()


def test_a_batch_is_the_version_that_was_delivered_whatever_changed_the_state_since(
    tmp_path: Path,
) -> None:
    made_up_stream(tmp_path)
    admin.rollback(tmp_path, 3).run()
    root = holdfast.reading.open_root(tmp_path)
    assert [root.of_batch(number) for number in range(6)] == [1, 2, 3, 4, 5, 6]


def test_a_frame_stays_at_the_version_that_was_newest_when_it_was_first_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    frame = load(spark, sample_roots.shop(tmp_path))
    assert frame.count() == 2
    with holdfast.open(tmp_path).update() as store:
        store.put(("Jade",), (1,))
    assert load(spark, tmp_path).count() == 3
    assert frame.count() == 2


def test_stores_are_chosen_by_operator_and_name(spark: SparkSession, tmp_path: Path) -> None:
    sample_roots.query(tmp_path / "checkpoint" / "holdfast")
    place = tmp_path / "checkpoint"
    assert rows(load(spark, place).select("key.word"))[0] == ("word-0",)
    left = load(spark, place, operatorId=1, storeName="left")
    assert rows(left.select("key.k", "value.v")) == [(k, 0.5) for k in range(4)]
    right = load(spark, place, stateVarName="right")
    assert rows(right.select("key.k", "value.w")) == [(k, bytearray(b"\x01")) for k in range(4)]
    for wrong in [{"storeName": "middle"}, {"operatorId": 7}, {"stateVarName": "lef"}]:
        with pytest.raises(AnalysisException, match="operator 1, store left, partitions 0–1"):
            load(spark, place, **wrong)


def test_columns_are_picked_and_a_struct_without_any_is_left_out(
    spark: SparkSession, tmp_path: Path
) -> None:
    db = holdfast.open(tmp_path, key="a int, b string", value="c int, d string")
    with db.update() as store:
        store.put((1, "x"), (2, "y"))
    assert load(spark, tmp_path, columns="d, a").collect() == [((1,), ("y",), 0)]
    assert load(spark, tmp_path, columns="b").columns == ["key", "partition_id"]
    assert load(spark, tmp_path, columns="c").collect() == [((2,), 0)]
    with pytest.raises(AnalysisException, match="no column 'e'"):
        load(spark, tmp_path, columns="a,e")


WIDE = (
    "a boolean, b byte, c short, d int, e long, f float, g double, h decimal(10,2), j string, "
    "l binary, m date, n timestamp, o timestamp_ntz, q interval day to second, v array<int>, "
    "x map<string,double>, y struct<a:int,b:array<string>>, z long not null"
)


def test_every_type_comes_back_as_it_was_put(spark: SparkSession, tmp_path: Path) -> None:
    cells = (
        True, 1, 2, 3, 4, 0.5, math.inf, Decimal("12.34"), "é\U0001f980", b"\x00\xff",
        date(1, 1, 1), datetime(2024, 2, 29, 12, tzinfo=UTC), datetime(1969, 12, 31, 23, 59, 59),
        timedelta(days=-1, microseconds=1), [1, None], {"k": None}, (1, ["x", None]), 7,
    )  # fmt: skip
    db = holdfast.open(tmp_path, key="k int", value=WIDE, partitions=3)
    with db.update() as store:
        store.put((1,), cells)
        store.put((2,), (*[None] * 17, 8))
    full, empty = (
        row.value for row in load(spark, tmp_path).orderBy("key.k").select("value").collect()
    )
    assert plain(empty) == (*[None] * 17, 8)
    back = plain(full)
    assert back[:9] == cells[:9]
    assert bytes(back[9]) == cells[9]
    assert back[10] == cells[10]
    # Spark hands times out in the zone of the process.
    assert back[11].timestamp() == cells[11].timestamp()
    assert back[12:14] == cells[12:14]
    assert (full.v, full.x, plain(full.y), full.z) == (
        [1, None], {"k": None}, (1, normal(["x", None])), 7,
    )  # fmt: skip


def test_a_store_without_value_columns_is_read(spark: SparkSession, tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="k int", value="")
    with db.update() as store:
        store.put((1,), ())
    assert load(spark, tmp_path).select("key.k", "partition_id").collect() == [(1, 0)]


def test_more_rows_than_one_batch_all_arrive(spark: SparkSession, tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="k long", value="v long", partitions=2)
    with db.update() as store:
        store.put_many(pa.table({"k": range(300_000), "v": range(300_000)}))
    total = load(spark, tmp_path).agg(F.sum("value.v"), F.count("*"), F.max("key.k"))
    assert total.collect() == [(300_000 * 299_999 // 2, 300_000, 299_999)]


# -- what Spark's own reader shows ---------------------------------------------------------------


def _flat(cell: Any) -> Any:
    """A row of Spark's reader with its windows flattened, as they are stored here."""
    cells: list[Any] = []
    for part in cell:
        cells.extend(part) if isinstance(part, Row) else cells.append(normal(part))
    return tuple(cells)


def _totals(frame: Any) -> Any:
    keys = ["id", F.window("ts", "5 minutes")]
    return (
        frame.withWatermark("ts", "10 minutes")
        .groupBy(*keys)
        .agg(F.sum("v").alias("s"), F.count("*").alias("n"), F.max("x").alias("mx"))
    )


def test_state_and_changes_are_those_of_sparks_own_reader(
    spark: SparkSession, tmp_path: Path
) -> None:
    print("seed 7")
    write_batches(tmp_path / "in", seed=7)
    run(spark, tmp_path / "in", tmp_path / "a", _totals, "update", native=True)
    run(spark, tmp_path / "in", tmp_path / "b", _totals, "update", native=False)
    native = spark.read.format("statestore").load(str(tmp_path / "a"))
    expected = sorted(
        ((_flat(row.key), _flat(row.value), row.partition_id) for row in native.collect()), key=repr
    )
    assert len(expected) > 3
    assert rows(load(spark, tmp_path / "b")) == expected

    feed = spark.read.format("statestore").option("readChangeFeed", "true")
    told = feed.option("changeStartBatchId", "0").load(str(tmp_path / "a"))
    updates = sorted(
        (
            (row.batch_id + 1, "update", _flat(row.key), _flat(row.value), row.partition_id)
            for row in told.where("change_type = 'update'").collect()
        ),
        key=repr,
    )
    assert len(updates) > 20
    assert rows(load(spark, tmp_path / "b", readChangeFeed="true", changeStartVersion=1)) == updates


# -- the change feed -----------------------------------------------------------------------------

CHANGES = [
    (1, "update", ("Sankar",), (200,), 1),
    (2, "update", ("Jade",), (800,), 0),
    (3, "update", ("Sankar",), (500,), 1),
    (4, "delete", ("Jade",), None, 0),
    (4, "update", ("Kun",), (100,), 1),
]


@pytest.mark.parametrize(("start", "end"), [(0, None), (1, 4), (2, 3), (3, 3), (0, 0), (4, None)])
def test_the_feed_lists_updates_and_deletes_of_every_version_in_the_range(
    spark: SparkSession, tmp_path: Path, start: int, end: int | None
) -> None:
    sample_roots.shop(tmp_path)
    bounds = {"changeStartVersion": start} | ({} if end is None else {"changeEndVersion": end})
    frame = load(spark, tmp_path, readChangeFeed="true", **bounds)
    assert frame.columns == ["version", "change_type", "key", "value", "partition_id"]
    last = 4 if end is None else end
    assert rows(frame) == [change for change in CHANGES if start <= change[0] <= last]


def test_a_history_that_went_back_is_read_by_version_and_its_feed_undoes(
    spark: SparkSession, tmp_path: Path
) -> None:
    sample_roots.rolled_back_shop(tmp_path)  # version 5 is version 2 again
    states = {version: rows(load(spark, tmp_path, version=version)) for version in range(7)}
    assert states[5] == states[2] != states[4]
    assert states[6] == rows(load(spark, tmp_path))
    frame = load(spark, tmp_path, readChangeFeed="true", changeStartVersion=1)
    back = [
        (5, "delete", ("Kun",), None, 1),
        (5, "update", ("Jade",), (800,), 0),
        (5, "update", ("Sankar",), (200,), 1),
        (6, "update", ("Sankar",), (300,), 1),
    ]
    assert rows(frame) == [*CHANGES, *back]


def test_the_feed_is_the_same_after_merges_and_shows_no_eviction(
    spark: SparkSession, tmp_path: Path
) -> None:
    db = holdfast.open(tmp_path, key="end long", value="n int", key_index_ordinal=0)
    for number in range(1, 7):
        with db.update() as store:
            store.put((number,), (number,))
            store.evict(number - 3)
        db.maintain(snapshot=True)
    frame = load(spark, tmp_path, readChangeFeed="true", changeStartVersion=1)
    assert rows(frame) == [(n, "update", (n,), (n,), 0) for n in range(1, 7)]
    assert rows(load(spark, tmp_path).select("key.end")) == [(4,), (5,), (6,)]


def test_a_feed_of_versions_that_are_not_there_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    sample_roots.shop(tmp_path)
    (tmp_path / "versions" / "1").unlink()
    for start, end in [(0, 4), (1, 1), (3, 5), (9, 9)]:
        with pytest.raises(AnalysisException, match="has versions 0 to 4, not all of"):
            load(
                spark,
                tmp_path,
                readChangeFeed="true",
                changeStartVersion=start,
                changeEndVersion=end,
            ).collect()
    with pytest.raises(AnalysisException, match="has versions 0 to 4, not all of 7"):
        load(spark, tmp_path, readChangeFeed="true", changeStartVersion=7).collect()


# -- filters -------------------------------------------------------------------------------------

FILTERS = [
    "key.user <=> 'u7'", "key.user is null", "key.user > 'u5' and key.day < date'2024-01-09'",
    "key.user in ('u1', 'u2') and key.day = date'2024-01-08'", "key.x = double('NaN')",
    "key.x <= 0.0", "key.amount = 1.50 and key.at >= timestamp'2024-01-01 00:00:10'",
    "key.at = timestamp'2024-01-01 00:00:03'", "partition_id in (0, 3) and key.n = 1",
    "not key.user = 'u7'", "key.flag", "key.n < 5 or value.v = 9", "key.n = 3000000000",
]  # fmt: skip


def _events(place: Path, seed: int) -> Path:
    rng = random.Random(seed)
    key = "user string, day date, x double, amount decimal(8,2), at timestamp, flag boolean, n int"
    db = holdfast.open(place, key=key, value="v long", partitions=4)

    def maybe(cell: Any) -> Any:
        return None if rng.random() < 0.1 else cell

    with db.update() as store:
        for number in range(120):
            row = (
                maybe(f"u{rng.randrange(12)}"), maybe(date(2024, 1, 1 + number % 12)),
                maybe(rng.choice([math.nan, 0.0, -0.0, 0.75])), maybe(Decimal(number % 4) / 2),
                maybe(datetime(2024, 1, 1, 0, 0, number % 20, tzinfo=UTC)),
                maybe(number % 3 == 0), maybe(number % 9),
            )  # fmt: skip
            store.put(row, (number,))
    return place


@pytest.mark.usefixtures("pushdown")
def test_pushed_filters_give_the_rows_spark_finds_by_itself(
    spark: SparkSession, tmp_path: Path
) -> None:
    print("seed 11")
    frame = load(spark, _events(tmp_path, 11))
    tested = frame.select("*", *(F.expr(text).alias(text) for text in FILTERS)).collect()
    width = len(frame.columns)
    hits = 0
    for place, text in enumerate(FILTERS, start=width):
        expected = sorted((plain(row)[:width] for row in tested if row[place]), key=repr)
        assert rows(load(spark, tmp_path, pushFilters="true").where(text)) == expected, text
        hits += bool(expected)
    assert hits >= 11


@pytest.mark.usefixtures("pushdown")
def test_one_frame_serves_queries_with_other_filters(spark: SparkSession, tmp_path: Path) -> None:
    frame = load(spark, sample_roots.shop(tmp_path))
    assert rows(frame.where("key.user = 'Kun'").select("value.total")) == [(100,)]
    assert frame.count() == 2
    both = frame.where("key.user = 'Kun'").union(frame.where("key.user = 'Sankar'"))
    assert rows(both.select("value.total")) == [(100,), (500,)]


def test_filters_are_not_pushed_behind_sparks_back(spark: SparkSession, tmp_path: Path) -> None:
    frame = load(spark, sample_roots.shop(tmp_path), pushFilters="true")
    with pytest.raises(AnalysisException, match=PUSHDOWN.replace(".", r"\.")):
        frame.collect()


@pytest.mark.usefixtures("pushdown")
def test_filters_on_the_key_and_the_partition_leave_out_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    db = holdfast.open(tmp_path, key="user string", value="total long", partitions=8)
    with db.update() as store:
        store.put_many(pa.table({"user": [f"u{i}" for i in range(50)], "total": range(50)}))

    def where(text: str) -> DataFrame:
        return load(spark, tmp_path, pushFilters="true").where(text)

    one, some = where("key.user = 'u7'"), where("key.user in ('u1', 'u2')")
    assert (one.rdd.getNumPartitions(), rows(one.select("value"))) == (1, [((7,),)])
    assert some.rdd.getNumPartitions() <= 2
    assert rows(some.select("value.total")) == [(1,), (2,)]
    assert where("partition_id = 3").rdd.getNumPartitions() == 1
    assert where("key.user > 'u'").rdd.getNumPartitions() == 8


def test_only_the_wanted_key_is_read(tmp_path: Path) -> None:
    from pyspark.sql.datasource import EqualTo

    from pyspark_holdfast.reading import FilteredStateReader, StatePartition

    db = holdfast.open(tmp_path, key="user string", value="total long", partitions=2)
    with db.update() as store:
        store.put_many(pa.table({"user": [f"u{i}" for i in range(50)], "total": range(50)}))
    source = DefaultSource({"path": str(tmp_path)})
    reader = FilteredStateReader(ReadOptions.of(source.options), source.schema())
    wanted = [EqualTo(("key", "user"), "u7")]
    assert list(reader.pushFilters(wanted)) == wanted
    (place,) = reader.partitions()
    assert isinstance(place, StatePartition)
    assert place.keys == (("u7",),)
    (batch,) = reader.read(place)
    assert batch.num_rows == 1


def test_only_the_wanted_prefixes_are_read(tmp_path: Path) -> None:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In

    from pyspark_holdfast.reading import FilteredStateReader, StatePartition

    held = {(f"u{i % 10}", i): i * i for i in range(200)}
    db = holdfast.open(
        tmp_path,
        key="user string, day int",
        value="total long",
        partitions=4,
        num_cols_prefix_key=1,
    )
    with db.update() as store:
        for key, total in held.items():
            store.put(key, (total,))
    source = DefaultSource({"path": str(tmp_path)})
    for filters, users, after in [
        ([EqualTo(("key", "user"), "u7")], {"u7"}, -1),
        ([In(("key", "user"), ("u1", "u2")), GreaterThan(("key", "day"), 50)], {"u1", "u2"}, 50),
        ([EqualTo(("key", "user"), "nobody")], set(), -1),
    ]:
        reader = FilteredStateReader(ReadOptions.of(source.options), source.schema())
        assert list(reader.pushFilters(filters)) == filters
        found = {}
        for place in reader.partitions():
            assert isinstance(place, StatePartition)
            assert place.prefixes
            for batch in reader.read(place):
                for row in batch.to_pylist():
                    found[tuple(row["key"].values())] = row["value"]["total"]
        wanted = {k: v for k, v in held.items() if k[0] in users and k[1] > after}
        assert found == wanted


# -- what there is -------------------------------------------------------------------------------


def test_stores_are_listed_with_their_versions(spark: SparkSession, tmp_path: Path) -> None:
    frame = load(spark, sample_roots.query(tmp_path), metadata="true")
    shown = frame.select(
        "operatorId",
        "operatorName",
        "stateStoreName",
        "numPartitions",
        "minVersion",
        "maxVersion",
        "numKeys",
        "keySchema",
        "valueSchema",
        "numColsPrefixKey",
    )
    assert rows(shown) == [
        (0, None, "default", 2, 0, 2, 4, "word string", "count long", 0),
        (1, None, "left", 2, 0, 2, 4, "k int", "v double", 0),
        (1, None, "right", 2, 0, 2, 4, "k int", "w binary", 0),
    ]
    assert frame.where("sizeBytes > 0").count() == 3


def test_versions_are_listed_with_batch_watermark_and_tags(
    spark: SparkSession, tmp_path: Path
) -> None:
    sample_roots.shop(tmp_path / "shop")
    sample_roots.query(tmp_path / "query")
    frame = load(spark, tmp_path / "shop", metadata="versions")
    assert rows(frame.where("version > 1").select("version", "numKeys", "changedRows", "tags")) == [
        (2, 2, 1, ["two-users"]), (3, 2, 1, []), (4, 2, 2, []),
    ]  # fmt: skip
    assert frame.where("committedAt > timestamp'2020-01-01' and problem is null").count() == 5
    sample_roots.flip_byte(tmp_path / "query" / "versions" / "0", at=80)
    told = load(spark, tmp_path / "query", metadata="versions")
    assert rows(told.where("problem is null").select("version", "batchId", "watermark")) == [
        (1, 0, None), (2, 1, None),
    ]  # fmt: skip
    assert "damaged" in told.where("version = 0").first().problem


# -- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({}, "Say which state to read"),
        ({"path": "x", "batch": "3"}, "no option 'batch'; it has path, version, versionAsOf"),
        ({"path": "x", "operatorId": "one"}, "operatorId must be a whole number, 0 or above"),
        ({"path": "x", "readChangeFeed": "yes"}, "readChangeFeed must be true or false"),
        ({"path": "x", "changeStartVersion": "1"}, "need readChangeFeed=true"),
        (
            {"path": "x", "readChangeFeed": "true", "changeStartVersion": "3",
             "changeEndVersion": "2"},
            "2 is before changeStartVersion 3",
        ),
        (
            {"path": "x", "readChangeFeed": "true", "changeStartVersion": "3", "version": "2"},
            "leave out version",
        ),
        ({"path": "x", "storeName": "a", "stateVarName": "b"}, "name the same thing"),
        ({"path": "x", "columns": " ,"}, "names separated by commas"),
        ({"path": "x", "metadata": "true", "pushFilters": "true"}, "pushFilters applies only"),
        ({"path": "x", "metadata": "all"}, "metadata must be one of true, stores, versions, false"),
    ],
)  # fmt: skip
def test_an_option_that_cannot_be_is_refused(options: dict[str, str], hint: str) -> None:
    with pytest.raises(InvalidArgument, match=hint):
        ReadOptions.of(options)


def test_a_wrong_path_and_a_schema_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(AnalysisException, match="holds no Holdfast state"):
        load(spark, tmp_path / "empty")
    with pytest.raises(AnalysisException, match="holds no Holdfast state"):
        load(spark, tmp_path / "empty", metadata="true")
    sample_roots.shop(tmp_path / "shop")
    reader = spark.read.format("holdfast").schema("user string, total long")
    with pytest.raises(AnalysisException, match="Leave out `schema`"):
        reader.load(str(tmp_path / "shop")).collect()


def test_a_version_retired_after_planning_is_told_apart_from_damage(tmp_path: Path) -> None:
    conf = {"min_versions_to_retain": 2, "grace_period_ms": 0, "pack_threshold_bytes": 0}
    db = holdfast.open(tmp_path, key="k long", value="v long", conf=conf)

    def put(number: int) -> None:
        with db.update() as store:
            store.put((1,), (number,))

    put(1)
    source = DefaultSource({"path": str(tmp_path)})
    reader = StateReader(ReadOptions.of(source.options), source.schema())
    (place,) = reader.partitions()
    batches = reader.read(place)
    for number in range(5):
        put(number)
        db.maintain(snapshot=True)
    with pytest.raises(VersionNotFound, match="Version 1"):
        next(batches)
    db.close()


def test_finding_the_source_loads_nothing_heavy() -> None:
    script = (
        "import sys, pyspark_holdfast; print(pyspark_holdfast.DefaultSource.name(), "
        "sorted({'pyarrow', 'pandas', 'numpy', 'holdfast'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "holdfast []\n", done.stderr


def test_the_guides_example_gives_what_its_comments_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sample_roots.shop(tmp_path / "totals")
    blocks = re.findall(r"```py\n(.*?)```", (ROOT / "docs/guide.md").read_text(), re.DOTALL)
    (block,) = (block for block in blocks if 'spark.read.format("holdfast")' in block)
    names: dict[str, Any] = {"spark": spark, "checkpoint": str(tmp_path / "totals")}
    exec(compile(block, "guide.md", "exec"), names)  # noqa: S102
    assert rows(names["state"].select("key.user")) == [("Kun",), ("Sankar",)]
    assert rows(names["changes"])[-1] == (4, "update", ("Kun",), (100,), 1)
    assert names["stores"].count() == 1
    assert rows(spark.sql("select sum(value.total) from totals")) == [(600,)]
