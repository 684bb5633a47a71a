"""Processors in real streams; see test_custom_differential.py for what they give in Spark."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from native import SCHEMA, run, write_batches
from processors import (
    OUTPUT,
    AlwaysLate,
    Asking,
    Changing,
    Failing,
    Late,
    Maps,
    Resets,
    Seeded,
    Totals,
)
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import holdfast
from holdfast import stateful

pytestmark = pytest.mark.spark
# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


def test_a_processor_that_raises_commits_nothing_and_a_mended_one_goes_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number, values in enumerate([[1, 2], [7, 3], [4]]):
        rows = [("secret-key", v) for v in values]
        spark.createDataFrame(rows, "id string, v long").coalesce(1).write.parquet(
            str(tmp_path / "in" / str(number))
        )
    outputs: list[Any] = []

    def start(processor: Any) -> Any:
        source = spark.readStream.schema("id string, v long").option("maxFilesPerTrigger", "1")
        rows = stateful(source.option("recursiveFileLookup", "true").parquet(str(tmp_path / "in")))
        query = (
            rows.groupBy("id")
            .transformWithState(processor, OUTPUT, "Update", "None")
            .writeStream.outputMode("update")
            .foreachBatch(lambda rows, version: outputs.extend(rows.collect()))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return query

    with pytest.raises(StreamingQueryException) as caught:
        start(Failing())
    told = str(caught.value)
    assert "ValueError: seven" in told
    assert "in handleInputRows" in told, "its own traceback"
    assert "key with the hash" in told
    assert "secret-key" not in told
    assert holdfast.read(tmp_path / "cp").version == 1
    start(Totals())
    assert sorted(row.total for row in outputs) == [3, 13, 17]
    assert holdfast.read(tmp_path / "cp", store="state").get("secret-key") == (5, 17)


def test_timers_that_always_register_others_for_the_past_do_not_keep_a_query_from_its_end(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("holdfast.spark.running.ticks.MOST_TICKS", 3)
    write_batches(tmp_path / "in", seed=1, batches=1)
    rows = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")))
    query = (
        rows.groupBy("id")
        .transformWithState(AlwaysLate(), OUTPUT, "Update", "ProcessingTime")
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert query.version == 4
    assert "timers are still due" in caplog.text


def test_state_to_start_with_is_handled_once_before_the_first_batch(
    spark: SparkSession, tmp_path: Path
) -> None:
    seeds = [("a", 1000), ("a", 2000), ("z", 5000)]
    start = spark.createDataFrame(seeds, "name string, total long")

    def pipeline(frame: Any) -> Any:
        rows = frame.filter("v is not null").groupBy("id")
        grouped = start.withColumnRenamed("name", "id").groupBy("id")
        return rows.transformWithState(Seeded(), OUTPUT, "Update", "None", grouped)

    for batches in (2, 3):  # started anew in between
        write_batches(tmp_path / "in", seed=5, batches=batches)
        run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "update", native=False)
    state = holdfast.read(tmp_path / "cp", store="state")
    assert state.get("z") == (100, 5000)
    assert state.at(1).get("a") == (200, 3000)
    rows = spark.read.schema(SCHEMA).parquet(str(tmp_path / "in")).filter("id = 'a'")
    assert state.get("a") == (200 + rows.selectExpr("count(v)").first()[0],
                              3000 + rows.selectExpr("sum(v)").first()[0])  # fmt: skip


def test_state_to_start_with_has_the_streams_key_types(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path, seed=1, batches=1)
    grouped = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path))).groupBy("v")
    start = spark.createDataFrame([(1,)], "v int").groupBy("v")
    with pytest.raises(holdfast.InvalidArgument, match=r"grouped by \(v int\), but the stream by"):
        grouped.transformWithState(Seeded(), OUTPUT, "Update", "None", start)
    with pytest.raises(holdfast.InvalidArgument, match="initial state is DataFrame"):
        grouped.transformWithState(Seeded(), OUTPUT, "Update", "None", spark.range(3))


def test_a_processor_knows_its_query_run_and_batch(spark: SparkSession, tmp_path: Path) -> None:
    told: list[tuple[str, ...]] = []
    for batches in (2, 3):
        write_batches(tmp_path / "in", seed=5, batches=batches)
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        query = (
            stateful(source.parquet(str(tmp_path / "in")))
            .groupBy("id")
            .transformWithState(Asking(), OUTPUT, "Update", "None")
            .writeStream.outputMode("update")
            .foreachBatch(lambda rows, version: told.append(tuple(rows.first().what.split())))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert told[-1][:2] == (query.id, query.runId)
    assert [batch for _, _, batch in told] == ["0", "1", "2"]
    assert len({query_id for query_id, _, _ in told}) == 1
    assert told[1][1] != told[2][1], "another run"


def test_the_figures_of_a_processor_are_sparks(spark: SparkSession, tmp_path: Path) -> None:
    write_batches(tmp_path / "in", seed=5, batches=1)
    query = (
        stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path / "in")))
        .filter("v is not null")
        .groupBy("id")
        .transformWithState(Changing(gone=("b",), a="v long", c="v long"), OUTPUT, "Update", "None")
        .writeStream.outputMode("update")
        .foreachBatch(lambda rows, version: rows.collect())
        .option("checkpointLocation", str(tmp_path / "cp"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    figures = query.lastProgress.stateOperators[0].customMetrics
    assert figures["numValueStateVars"] == 2
    assert figures["numDeletedStateVars"] == 1
    assert query.lastProgress.stateOperators[0].operatorName == "transformWithStateInPySparkExec"


def test_output_that_is_late_where_it_goes_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    output = "id string, at timestamp"

    def pipeline(frame: Any) -> Any:
        rows = frame.withWatermark("ts", "0 seconds").groupBy("id")
        late = rows.transformWithState(Late(), output, "Append", "EventTime", None, "at")
        return late.groupBy("at").count()

    write_batches(tmp_path / "in", seed=5, batches=3)
    with pytest.raises(StreamingQueryException, match="'at' is not after the watermark"):
        run(spark, tmp_path / "in", tmp_path / "cp", pipeline, "append", native=False)
    assert holdfast.read(tmp_path / "cp", store="state").version == 2, "rows are late from then on"


def test_state_variables_evolve_and_what_cannot_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    def push(number: int, processor: Any) -> str:
        rows = spark.createDataFrame([("a", number)], "id string, v int")
        rows.coalesce(1).write.parquet(str(tmp_path / "in" / str(number)))
        told: list[str] = []
        source = spark.readStream.schema("id string, v int").option("recursiveFileLookup", "true")
        query = (
            stateful(source.parquet(str(tmp_path / "in")))
            .groupBy("id")
            .transformWithState(processor, OUTPUT, "Update", "None")
            .writeStream.outputMode("update")
            .foreachBatch(lambda rows, version: told.extend(r.what for r in rows.collect()))
            .option("checkpointLocation", str(tmp_path / "cp"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return told[0]

    assert push(1, Changing(a="x int, y int, z float", b="v long")) == str({"a": None, "b": None})
    # Added, removed, reordered and widened columns; one variable more, one not asked for.
    assert push(2, Changing(a="w string, z double, x long", c="v long")) == str(
        {"a": (None, 1.0, 1), "c": None}
    ), "w is new"
    for columns, message in [
        ("w string, z double, x int", "'x' is long here and int there"),
        ("w string, z double, x string", "'x' is long here and string there"),
    ]:
        with pytest.raises(holdfast.InvalidArgument, match=message):
            push(90, Changing(a=columns))
        shutil.rmtree(tmp_path / "in" / "90")
    # What was not asked for is still there, until it is to go.
    assert push(3, Changing(b="v long")) == str({"b": (1,)})
    assert {s.store for s in holdfast.read(tmp_path / "cp", store="b").stores} == {"a", "b", "c"}
    assert push(4, Changing(gone=("a", "never"), c="v long")) == str({"c": (2,)})
    assert {s.store for s in holdfast.read(tmp_path / "cp", store="b").stores} == {"b", "c"}


def test_a_dataframe_that_is_no_stream_gives_what_it_gives_in_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path, seed=6, batches=3)
    rows = spark.read.schema(SCHEMA).parquet(str(tmp_path)).filter("v is not null")
    seeds = [("a", 1000), ("a", 2000), ("z", 5000), (None, 1)]
    start = spark.createDataFrame(seeds, "id string, total long").groupBy("id")

    def given(frame: Any, processor: Any, start: Any = None) -> list[str]:
        made = frame.groupBy("id").transformWithState(processor, OUTPUT, "Update", "None", start)
        return sorted(map(repr, made.filter("id is null or id <> 'b'").collect()))

    assert given(stateful(rows), Maps()) == given(rows, Maps())
    assert given(stateful(rows), Seeded(), start) == given(rows, Seeded(), start)
    nothing = rows.filter("id = 'nobody'")
    assert given(stateful(nothing), Seeded(), start) == []
    by_arrow = (
        stateful(rows)
        .groupBy("id")
        .transformWithStateInArrow(_totals, OUTPUT, "n long, total long", "Update")
    )
    assert sorted(r.total for r in by_arrow.collect()) == sorted(
        r.total
        for r in stateful(rows).groupBy("id").agg({"v": "sum"}).toDF("id", "total").collect()
    )


def _totals(
    keys: pa.Table, rows: pa.Table, state: pa.Table, times: Any
) -> tuple[pa.Table, pa.Table]:
    """What Totals does, for all keys of a chunk at once; a key goes when its sum is large."""
    sums = rows.group_by("_group").aggregate([("v", "sum"), ("v", "count")]).sort_by("_group")
    assert sums["_group"].to_pylist() == list(range(keys.num_rows))
    n = pc.add(pc.if_else(state["_exists"], state["n"], 0), sums["v_count"])
    total = pc.add(pc.if_else(state["_exists"], state["total"], 0), sums["v_sum"])
    exists = pc.less_equal(pc.abs(total), 60)
    names = pa.array(["total"] * keys.num_rows)
    output = pa.table({"id": keys["id"], "what": names, "n": n, "total": total})
    return pa.table({"n": n, "total": total, "_exists": exists}), output


def test_an_arrow_processor_gives_what_one_of_rows_gives(
    spark: SparkSession, tmp_path: Path
) -> None:

    def by_arrow(frame: Any) -> Any:
        rows = frame.filter("v is not null").groupBy("id")
        return rows.transformWithStateInArrow(_totals, OUTPUT, "n long, total long", "Update")

    def by_rows(frame: Any) -> Any:
        rows = frame.filter("v is not null").groupBy("id")
        return rows.transformWithState(Resets(), OUTPUT, "Update", "None").filter("what = 'total'")

    found: dict[str, list[Any]] = {"arrow": [], "rows": []}
    for batches in (3, 6):
        write_batches(tmp_path / "in", seed=8, batches=batches)
        for name, pipeline in (("arrow", by_arrow), ("rows", by_rows)):
            checkpoint = tmp_path / name
            found[name] += run(spark, tmp_path / "in", checkpoint, pipeline, "update", native=False)
    assert found["arrow"] == found["rows"]
    assert len(found["rows"]) == 6
    arrow = holdfast.read(tmp_path / "arrow").to_arrow().sort_by("id")
    assert arrow.equals(holdfast.read(tmp_path / "rows").to_arrow().sort_by("id"))


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (lambda h: h.getValueState("a", "v long", ttlDurationMs=5), "TTL.*time mode is None"),
        (lambda h: (h.getValueState("a", "v long"), h.getListState("a", "v long")), "twice"),
        (lambda h: h.getValueState("a/../b", "v long"), "cannot be used"),
        (lambda h: h.getValueState("$a", "v long"), "start with"),
        (lambda h: h.getMapState("a", "m map<int, int>", "v long"), "cannot be a key"),
        (lambda h: h.registerTimer(5), "registerTimer was called, but the time mode is None"),
        (lambda h: h.getValueState("a", "v long").get(), "without a key: in init"),
        (lambda h: h.getValueState("a", "v lung"), "v lung|lung"),
    ],
)
def test_what_a_processor_cannot_have_is_refused_when_it_is_given(
    spark: SparkSession, tmp_path: Path, init: Any, message: str
) -> None:
    class Wanting(Totals):
        def init(self, handle: Any) -> None:
            init(handle)

    write_batches(tmp_path, seed=1, batches=1)
    grouped = stateful(spark.readStream.schema(SCHEMA).parquet(str(tmp_path))).groupBy("id")
    with pytest.raises(holdfast.HoldfastError, match=message):
        grouped.transformWithState(Wanting(), OUTPUT, "Update", "None")
