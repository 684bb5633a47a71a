"""A restart with another parameter of an operator is refused, wherever the parameter is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from group_functions import counts
from native import SCHEMA, write_batches
from processors import Totals
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.spark.interop import lineage
from holdfast.spark.state import stored
from holdfast.spark.state.definition import check_same_columns, check_same_query

pytestmark = pytest.mark.spark
Pipeline = Callable[[Any], Any]
Expressions = tuple[str, str]

WINDOWS: Mapping[str, Expressions] = {
    "length": ("window(ts, '5 minutes')", "window(ts, '10 minutes')"),
    "slide": (
        "window(ts, '10 minutes', '5 minutes')",
        "window(ts, '10 minutes', '2 minutes')",
    ),
    "start": (
        "window(ts, '10 minutes', '5 minutes', '0 minutes')",
        "window(ts, '10 minutes', '5 minutes', '1 minute')",
    ),
    "gap": ("session_window(ts, '1 minute')", "session_window(ts, '9 minutes')"),
    "gap by row": (
        "session_window(ts, CASE WHEN v > 0 THEN '1 minute' ELSE '2 minutes' END)",
        "session_window(ts, CASE WHEN v > 0 THEN '1 minute' ELSE '3 minutes' END)",
    ),
}
PLACES: Mapping[str, Callable[[Any, str], Any]] = {
    "withColumn": lambda frame, text: stateful(frame).withColumn("w", F.expr(text)),
    "before stateful": lambda frame, text: stateful(frame.withColumn("w", F.expr(text))),
    "select": lambda frame, text: stateful(frame).select("id", "v", F.expr(text).alias("w")),
    "selectExpr": lambda frame, text: stateful(frame.selectExpr("id", "v", f"{text} AS w")),
    "SQL": lambda frame, text: stateful(
        frame.sparkSession.sql(f"SELECT id, v, {text} AS w FROM {{rows}}", rows=frame)
    ),
    "renamed": lambda frame, text: (
        stateful(frame).withColumn("made", F.expr(text)).filter("v > 0")
        .withColumnRenamed("made", "w")
    ),
}  # fmt: skip


def _totals(groups: Any, time_mode: str = "None", mode: str = "update") -> Any:
    return groups.transformWithState(Totals(), "id string, n long, total double", mode, time_mode)


def _group_state(groups: Any, timeout: str = "NoTimeout", mode: str = "update") -> Any:
    return groups.applyInPandasWithState(counts, "id string, n long", "n long", mode, timeout)


def _arrow(groups: Any, time_mode: str = "None", mode: str = "update") -> Any:
    return groups.transformWithStateInArrow(lambda *_: None, "id string", "n long", mode, time_mode)


OPERATORS: Mapping[str, Pipeline] = {
    "aggregation": lambda rows: rows.groupBy("id", "w").count(),
    "part of a window": lambda rows: rows.groupBy("id", "w.start").count(),
    "input of an aggregate": lambda rows: rows.groupBy("id").agg(F.max("w.end")),
    "filter of an aggregate": lambda rows: rows.groupBy("id").agg(
        F.expr("sum(v) FILTER (WHERE w.end > timestamp'2020-01-01')")
    ),
    "dropDuplicates": lambda rows: rows.dropDuplicates(["id", "w"]),
    "dropDuplicates of all columns": lambda rows: rows.select("id", "w").dropDuplicates(),
    "transformWithState": lambda rows: _totals(rows.groupBy("id", "w")),
    "transformWithStateInArrow": lambda rows: _arrow(rows.groupBy("id", "w")),
    "applyInPandasWithState": lambda rows: _group_state(rows.groupBy("id", "w")),
}

BY_PARAMETERS: Mapping[str, str] = {
    "ifnull": "ifnull(a, 0)",
    "ifnull in ifnull": "ifnull(ifnull(a, 0), 1)",
    "part of ifnull": "ifnull(named_struct('x', a), named_struct('x', 0)).x",
    "nullif": "nullif(a, 0)",
    "extract": "extract(minute FROM t)",
    "try_add": "try_add(a, 1)",
    "between": "a BETWEEN 1 AND 2",
}
PARAMETERS: Mapping[str, Expressions] = {
    "ifnull": ("ifnull(a, 0)", "ifnull(a, 1)"),
    "extract": ("extract(minute FROM t)", "extract(second FROM t)"),
    "try_add": ("try_add(a, 1)", "try_add(a, 2)"),
}


def _keyed(rows: Any, number: str, unit: str, call: str) -> Any:
    made = rows.selectExpr(f"{number} AS a", f"date_trunc('{unit}', ts) AS t")
    return made.selectExpr(f"{call} AS k").groupBy("k").count()


CHANGES: Mapping[str, tuple[Pipeline, Pipeline]] = {
    "window inside groupBy": (
        lambda rows: rows.groupBy(F.window("ts", "10 minutes", "5 minutes")).count(),
        lambda rows: rows.groupBy(F.window("ts", "10 minutes", "2 minutes")).count(),
    ),
    "session inside groupBy": (
        lambda rows: rows.groupBy("id", F.session_window("ts", "1 minute")).count(),
        lambda rows: rows.groupBy("id", F.session_window("ts", "9 minutes")).count(),
    ),
    "time of a window inside groupBy": (
        lambda rows: rows.selectExpr("date_trunc('hour', ts) AS t").groupBy(
            F.window("t", "1 day")
        ).count(),
        lambda rows: rows.selectExpr("date_trunc('day', ts) AS t").groupBy(
            F.window("t", "1 day")
        ).count(),
    ),
    "key column": (
        lambda rows: rows.withColumn("k", F.col("v") % 10).groupBy("k").count(),
        lambda rows: rows.withColumn("k", F.col("v") % 100).groupBy("k").count(),
    ),
    "key that is a column no more": (
        lambda rows: rows.withColumn("k", F.col("id")).groupBy("k").count(),
        lambda rows: rows.withColumn("k", F.upper("id")).groupBy("k").count(),
    ),
    "function": (
        lambda rows: rows.groupBy("id").agg(F.sum("v").alias("n")),
        lambda rows: rows.groupBy("id").agg(F.max("v").alias("n")),
    ),
    "input": (
        lambda rows: rows.groupBy("id").agg(F.sum(F.col("v") * 2).alias("n")),
        lambda rows: rows.groupBy("id").agg(F.sum(F.col("v") * 3).alias("n")),
    ),
    "input column": (
        lambda rows: rows.withColumn("a", F.col("v") * 2).groupBy("id").agg(F.sum("a").alias("n")),
        lambda rows: rows.withColumn("a", F.col("v") * 3).groupBy("id").agg(F.sum("a").alias("n")),
    ),
    "filter": (
        lambda rows: rows.groupBy("id").agg(F.expr("sum(v) FILTER (WHERE v > 1) AS n")),
        lambda rows: rows.groupBy("id").agg(F.expr("sum(v) FILTER (WHERE v > 2) AS n")),
    ),
    "filter column": (
        lambda rows: rows.withColumn("big", F.col("v") > 1).groupBy("id").agg(
            F.expr("sum(v) FILTER (WHERE big) AS n")
        ),
        lambda rows: rows.withColumn("big", F.col("v") > 2).groupBy("id").agg(
            F.expr("sum(v) FILTER (WHERE big) AS n")
        ),
    ),
    "nulls of first": (
        lambda rows: rows.groupBy("id").agg(F.first("v").alias("n")),
        lambda rows: rows.groupBy("id").agg(F.first("v", ignorenulls=True).alias("n")),
    ),
    "error of a sketch": (
        lambda rows: rows.groupBy("id").agg(F.approx_count_distinct("v", 0.05).alias("n")),
        lambda rows: rows.groupBy("id").agg(F.approx_count_distinct("v", 0.01).alias("n")),
    ),
    **{
        f"column below {name}": (
            lambda rows, call=call: _keyed(rows, "v % 10", "hour", call),
            lambda rows, call=call: _keyed(rows, "v % 100", "day", call),
        )
        for name, call in BY_PARAMETERS.items()
    },
    **{
        f"parameter of {name}": (
            lambda rows, call=before: _keyed(rows, "v % 10", "hour", call),
            lambda rows, call=after: _keyed(rows, "v % 10", "hour", call),
        )
        for name, (before, after) in PARAMETERS.items()
    },
    "columns of dropDuplicates": (
        lambda rows: rows.dropDuplicates(["id"]),
        lambda rows: rows.dropDuplicates(["id", "v"]),
    ),
    "dropDuplicates within the watermark": (
        lambda rows: rows.dropDuplicates(["id"]),
        lambda rows: rows.dropDuplicatesWithinWatermark(["id"]),
    ),
    "event time of dropDuplicatesWithinWatermark": (
        lambda rows: rows.dropDuplicatesWithinWatermark(["id"]),
        lambda rows: rows.withColumnRenamed("ts", "t").dropDuplicatesWithinWatermark(["id"]),
    ),
    "keys of a processor": (
        lambda rows: _totals(rows.groupBy("id")), lambda rows: _totals(rows.groupBy("v")),
    ),
    "time mode of a processor": (
        lambda rows: _totals(rows.groupBy("id")),
        lambda rows: _totals(rows.groupBy("id"), "ProcessingTime"),
    ),
    "output mode of a processor": (
        lambda rows: _totals(rows.groupBy("id")),
        lambda rows: _totals(rows.groupBy("id"), mode="append"),
    ),
    "time mode of an Arrow processor": (
        lambda rows: _arrow(rows.groupBy("id")),
        lambda rows: _arrow(rows.groupBy("id"), "ProcessingTime"),
    ),
    "timeout of a group state": (
        lambda rows: _group_state(rows.groupBy("id")),
        lambda rows: _group_state(rows.groupBy("id"), "ProcessingTimeTimeout"),
    ),
    "output mode of a group state": (
        lambda rows: _group_state(rows.groupBy("id")),
        lambda rows: _group_state(rows.groupBy("id"), mode="append"),
    ),
    "second operator": (
        lambda rows: rows.dropDuplicates(["id"]).groupBy("id").agg(F.sum("v").alias("n")),
        lambda rows: rows.dropDuplicates(["id"]).groupBy("id").agg(F.min("v").alias("n")),
    ),
}  # fmt: skip


def _with_default(rows: Any) -> Any:
    return rows.sparkSession.sql("SELECT nvl(id, '?') AS id, v FROM {rows}", rows=rows)


def _united_with_itself(rows: Any, function: str = "upper") -> Any:
    made = rows.selectExpr(f"{function}(id) AS id", "v").selectExpr("nvl(id, '?') AS id", "v")
    return made.union(made)


SAME: Mapping[str, tuple[Pipeline, Pipeline]] = {
    "a filter": (lambda rows: rows, lambda rows: rows.filter("v > 3")),
    "a column renamed and back": (
        lambda rows: rows,
        lambda rows: rows.withColumnRenamed("id", "other").withColumnRenamed("other", "id"),
    ),
    "another column in the key's place": (
        lambda rows: rows, lambda rows: rows.withColumn("id", F.col("x").alias("other")),
    ),
    "a column that nothing goes by": (lambda rows: rows, lambda rows: rows.withColumn("y", F.pi())),
    "a constant": (
        lambda rows: rows.withColumn("id", F.lit("a")),
        lambda rows: rows.withColumn("id", F.lit("b")),
    ),
    "another renamed source": (
        lambda rows: rows.withColumn("id", F.upper("id")),
        lambda rows: rows.withColumnRenamed("id", "key").withColumn("id", F.upper("key")),
    ),
    "a length in other words": (
        lambda rows: rows.withColumn("id", F.window("ts", "1 hour")),
        lambda rows: rows.withColumn("id", F.window("ts", "60 minutes", "60 minutes")),
    ),
    "a set in another order": (
        lambda rows: rows.withColumn("id", F.col("id").isin("a", "b")),
        lambda rows: rows.withColumn("id", F.col("id").isin("b", "a")),
    ),
    "random numbers": (
        lambda rows: rows.withColumn("v", F.rand()), lambda rows: rows.withColumn("v", F.rand()),
    ),
    "two columns of a set": (
        lambda rows: rows.withColumn("a", F.upper("id")).withColumn("b", F.lower("id"))
        .withColumn("id", F.lit("a").isin(F.col("a"), F.col("b"))),
        lambda rows: rows.withColumn("b", F.lower("id")).withColumn("a", F.upper("id"))
        .withColumn("id", F.lit("a").isin(F.col("b"), F.col("a"))),
    ),
    "a literal that looks like a column": (
        lambda rows: rows.withColumn("id", F.concat("id", F.lit("holdfast_7_"))),
        lambda rows: rows.withColumn("id", F.concat("id", F.lit("holdfast_7_"))),
    ),
    "a default in SQL over a frame": (_with_default, _with_default),
    "the day of the run in a default": (
        lambda rows: rows.withColumn("v", F.expr("day(ifnull(ts, timestamp'2026-01-01'))")),
        lambda rows: rows.withColumn("v", F.expr("day(ifnull(ts, timestamp'2026-01-02'))")),
    ),
    "a default in a frame united with itself": (_united_with_itself, _united_with_itself),
    "the day of the run": (
        lambda rows: rows.withColumn("v", F.expr("datediff(date'2026-01-01', ts)")),
        lambda rows: rows.withColumn("v", F.expr("datediff(date'2026-01-02', ts)")),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Any:
    reader = spark.readStream.schema(SCHEMA)
    return reader.parquet(str(tmp_path_factory.mktemp("in"))).withWatermark("ts", "10 minutes")


def _told(made: Any) -> tuple[list[dict[str, str]], dict[str, Any]]:
    """What the manifest of a query would say of its operators."""
    stages = made._flow.stages
    columns = [stage.operator.columns(stage.before, stage.after) for stage in stages]
    version = made._native.sparkSession.version
    definitions = [stage.operator.definition() for stage in stages]
    return definitions, {"spark": version, "wording": lineage.WORDING, "operators": columns}


def _compare(before: Any, after: Any) -> None:
    """What a restart compares, without the restart."""
    (stored, stored_columns), (now, now_columns) = _told(before), _told(after)
    check_same_query(stored, now, "root", may_add=False)
    check_same_columns(stored_columns, now_columns, "root", may_change=False)


@pytest.mark.parametrize(
    ("place", "parameter"),
    [*(("withColumn", each) for each in WINDOWS), *((each, "slide") for each in PLACES)],
)
def test_another_window_in_a_column_is_refused(rows: Any, place: str, parameter: str) -> None:
    before, after = (
        PLACES[place](rows, text).groupBy("id", "w").count() for text in WINDOWS[parameter]
    )
    _compare(before, before)
    with pytest.raises(holdfast.InvalidArgument, match=r"column w was .*window.*, is .*window"):
        _compare(before, after)


@pytest.mark.parametrize("operator", OPERATORS)
def test_another_window_in_a_column_of_any_operator_is_refused(rows: Any, operator: str) -> None:
    before, after = (
        OPERATORS[operator](stateful(rows.withColumn("w", F.expr(text))))
        for text in WINDOWS["length"]
    )
    _compare(before, before)
    with pytest.raises(holdfast.InvalidArgument, match=r"column w was .*300 seconds.*600 seconds"):
        _compare(before, after)


@pytest.mark.parametrize("change", CHANGES)
def test_each_parameter_of_each_operator_is_compared(rows: Any, change: str) -> None:
    before, after = (pipeline(stateful(rows)) for pipeline in CHANGES[change])
    _compare(before, before)
    with pytest.raises(holdfast.InvalidArgument, match="was made by another query"):
        _compare(before, after)


def test_another_event_time_of_timers_is_refused(rows: Any) -> None:
    def made(unit: str) -> Any:
        timed = rows.sparkSession.readStream.format("rate").load()
        timed = timed.selectExpr("'a' AS id", f"date_trunc('{unit}', timestamp) AS t")
        groups = stateful(timed).withWatermark("t", "1 minute").groupBy("id")
        return _group_state(groups, "EventTimeTimeout")

    with pytest.raises(holdfast.InvalidArgument, match=r"event time was .*hour.*, is .*day"):
        _compare(made("hour"), made("day"))


@pytest.mark.parametrize("change", SAME)
def test_what_changes_no_meaning_is_taken(rows: Any, change: str) -> None:
    _compare(
        *(
            stateful(pipeline(rows)).groupBy("id").agg(F.sum("v").alias("n"))
            for pipeline in SAME[change]
        )
    )


@pytest.mark.parametrize("change", ["default", "function"])
def test_another_column_in_sql_over_a_frame_is_refused(rows: Any, change: str) -> None:
    def made(function: str, default: str) -> Any:
        text = f"SELECT nvl(k, '{default}') AS k FROM {{rows}}"
        frame = rows.selectExpr(f"{function}(id) AS k")
        return stateful(rows.sparkSession.sql(text, rows=frame)).groupBy("k").count()

    other = made("upper", "!") if change == "default" else made("lower", "?")
    _compare(made("upper", "?"), made("upper", "?"))
    with pytest.raises(
        holdfast.InvalidArgument, match=r"column k was nvl\(upper\(_1\), '\?'\), is"
    ):
        _compare(made("upper", "?"), other)


def test_another_column_below_a_default_in_a_frame_united_with_itself_is_refused(rows: Any) -> None:
    before, after = (
        stateful(_united_with_itself(rows, function)).groupBy("id").count()
        for function in ("upper", "lower")
    )
    with pytest.raises(holdfast.InvalidArgument, match="column id was"):
        _compare(before, after)


def test_a_column_made_in_many_steps_is_described_in_few_words(rows: Any) -> None:
    def made(changed: int | None = None) -> Any:
        frame = rows.select(F.concat("id", "x").alias("c"))
        for step in range(40):
            c, name = F.col("c"), "other" if step == changed else f"name {step}"
            frame = frame.withColumn("c", F.when(c == f"key {step}", name).otherwise(c))
        return stateful(frame).groupBy("c").count()

    before = made()
    (text,) = _told(before)[1]["operators"][0].values()
    assert len(text) <= 1_000
    _compare(before, made())
    for changed in (0, 39):
        with pytest.raises(
            holdfast.InvalidArgument, match=r"column c was .*… \(hash \w+ of _1, _2"
        ):
            _compare(before, made(changed))


def test_a_column_in_many_words_may_be_renamed_filtered_and_united(rows: Any) -> None:
    def made(pipeline: Pipeline) -> Any:
        frame = rows.withColumn("c", F.concat("id", *(F.lit(f"{n:09}") for n in range(200))))
        return stateful(pipeline(frame)).groupBy("c").count()

    before = made(lambda frame: frame)
    _compare(before, made(lambda frame: frame.withColumnRenamed("c", "e").selectExpr("e AS c")))
    _compare(before, made(lambda frame: frame.filter("v > 1")))
    _compare(before, made(lambda frame: frame.union(frame)))


def test_columns_described_in_other_words_are_taken() -> None:
    stored = {"spark": "4.0.0", "wording": 1, "operators": [{"column w": "a"}]}
    now = {"spark": "4.0.0", "wording": 2, "operators": [{"column w": "b"}]}
    check_same_columns(stored, now, "root", may_change=False)
    del stored["wording"]
    check_same_columns(stored, now, "root", may_change=False)
    with pytest.raises(holdfast.InvalidArgument, match="column w was a, is b"):
        check_same_columns({**stored, "wording": 2}, now, "root", may_change=False)


def test_columns_described_by_another_spark_are_taken() -> None:
    stored = {
        "spark": "4.0.0",
        "wording": 1,
        "operators": [{"column w": "a", "aggregate n": "with nulls"}],
    }
    check_same_columns(stored, {**stored, "spark": "4.1.0"}, "root", may_change=False)
    now = {**stored, "spark": "4.1.0"}
    now["operators"] = [{"column w": "b", "aggregate n": "with nulls"}]
    check_same_columns(stored, now, "root", may_change=False)
    now["operators"] = [{"aggregate n": "without nulls"}]
    with pytest.raises(holdfast.InvalidArgument, match="aggregate n was with nulls, is without"):
        check_same_columns(stored, now, "root", may_change=True)


def _start(spark: SparkSession, folder: Path, gap: str, **options: str) -> Any:
    source = spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))
    query = (
        stateful(source.withWatermark("ts", "1 minute"))
        .withColumn("w", F.session_window("ts", gap))
        .groupBy("id", "w")
        .count()
        .writeStream.outputMode("append")
        .format("noop")
        .options(checkpointLocation=str(folder / "cp"), **options)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return query


def test_a_restart_with_another_session_in_a_column_is_refused(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batches(tmp_path / "in", seed=1, batches=1)

    def old_scope(state_id: str, definitions: Any, columns: Any) -> dict[str, Any]:
        return {"kind": "query", "id": state_id, "operators": list(definitions)}

    with monkeypatch.context() as patch:
        patch.setattr(stored, "new_scope", old_scope)
        _start(spark, tmp_path, "1 minute")
    # State that does not say what its columns are made of is taken, and then says it.
    write_batches(tmp_path / "in", seed=1, batches=2)
    _start(spark, tmp_path, "1 minute")
    said = r"column w was session_window\(_1, 1 minutes\), is session_window\(_1, 9 minutes\)"
    with pytest.raises(holdfast.InvalidArgument, match=f"{said}.*changedColumns to accept"):
        _start(spark, tmp_path, "9 minutes")
    _start(spark, tmp_path, "9 minutes", changedColumns="accept")
    with pytest.raises(holdfast.InvalidArgument, match="must be accept, not 'yes'"):
        _start(spark, tmp_path, "9 minutes", changedColumns="yes")
