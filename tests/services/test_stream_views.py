"""Views of streams: what of their state is shown, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from streams_with_views import (
    Stream,
    added_in_arrow,
    counted_by_pandas,
    processed,
    visited,
)
from view_databases import InDynamoDb, ViewDatabase

from holdfast.errors import InvalidArgument, Unavailable
from servers import DynamoDb

pytestmark = pytest.mark.services

MINUTE_US = 60_000_000


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path, database: ViewDatabase) -> Stream:
    return Stream(spark, tmp_path, database)


@pytest.fixture
def in_dynamodb(spark: SparkSession, tmp_path: Path, dynamodb: DynamoDb) -> Stream:
    """For what an operator shows, which is the same whatever the database."""
    return Stream(spark, tmp_path, InDynamoDb(dynamodb))


def test_an_aggregation_shows_its_finished_values(stream: Stream) -> None:
    def logic(frame: Any) -> Any:
        return frame.groupBy("user").agg(
            F.avg("amount").alias("mean"), F.count("*").alias("n"), F.max("ts").alias("last")
        )

    stream.add(("a", 1), ("a", 2), ("b", 5), (None, 3))
    stream.add(("a", 6, "00:01"))
    stream.run(logic)
    first = 1_767_225_600_000_000
    columns = "user string, mean double, n long, last timestamp, _version long"
    assert stream.rows(columns) == [("a", 3.0, 3, first + MINUTE_US, 2), ("b", 5.0, 1, first, 1)]
    odd = stream.rows("_key string, user string, mean double", stream.table + "_encoded")
    assert odd == [("[null]", None, 3.0)]
    stream.add(("b", 7))
    stream.run(logic)
    assert stream.rows("user string, mean double, _version long") == [("a", 3.0, 2), ("b", 6.0, 3)]


def test_windows_leave_the_view_when_they_are_evicted(stream: Stream) -> None:
    def logic(frame: Any) -> Any:
        return (
            frame.withWatermark("ts", "1 minute")
            .groupBy("user", F.window("ts", "1 minute"))
            .agg(F.sum("amount").alias("total"))
        )

    stream.add(("a", 1, "00:00"), ("b", 2, "00:00"))
    stream.add(("a", 3, "00:01"), ("a", 1, "00:00"))
    query = stream.run(logic, "append")
    start = 1_767_225_600_000_000
    columns = "user string, window_start timestamp, window_end timestamp, total long"
    assert stream.rows(columns) == [
        ("a", start, start + MINUTE_US, 2),
        ("a", start + MINUTE_US, start + 2 * MINUTE_US, 3),
        ("b", start, start + MINUTE_US, 2),
    ]
    stream.add(("c", 4, "00:05"))
    query = stream.run(logic, "append")
    assert stream.rows("user string, total long") == [("c", 4)]
    assert query.state().num_keys == 1


def test_deduplication_shows_its_keys_and_forgets_them_with_the_watermark(
    in_dynamodb: Stream,
) -> None:
    def logic(frame: Any) -> Any:
        return frame.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["user"])

    in_dynamodb.add(("a", 1), ("b", 2), ("a", 3))
    in_dynamodb.run(logic, "append")
    assert in_dynamodb.rows("user string, _version long") == [("a", 1), ("b", 1)]
    in_dynamodb.add(("c", 1, "00:10"))
    in_dynamodb.run(logic, "append")
    assert [user for (user,) in in_dynamodb.rows("user string")] == ["c"]


def test_a_global_aggregate_is_one_row(in_dynamodb: Stream) -> None:
    in_dynamodb.add(("a", 1), ("b", 2))
    in_dynamodb.run(lambda frame: frame.groupBy().agg(F.sum("amount").alias("total")), "complete")
    assert in_dynamodb.rows("all_rows int, total long") == [(0, 3)]


def test_a_processor_shows_its_value_state(in_dynamodb: Stream) -> None:
    in_dynamodb.add(("a", 1), ("b", 2), ("c", 3))
    in_dynamodb.add(("a", 5), ("b", 0))
    in_dynamodb.run(processed)
    columns = "user string, total long, _version long"
    assert in_dynamodb.rows(columns) == [("a", 6, 2), ("c", 3, 1)]


def test_of_several_value_states_one_is_chosen_and_leaves_the_view_with_its_time_to_live(
    in_dynamodb: Stream,
) -> None:
    in_dynamodb.add(("a", 1), ("b", 2))
    with pytest.raises(InvalidArgument, match=r"several value states: total, last.*viewVariable"):
        in_dynamodb.run(visited)
    in_dynamodb.run(visited, viewVariable="last")
    assert in_dynamodb.rows("user string, amount long, _version long") == [("a", 1, 1), ("b", 2, 1)]
    in_dynamodb.add(("b", 5, "00:02"))
    query = in_dynamodb.run(visited, viewVariable="last")
    assert in_dynamodb.rows("user string, amount long") == [("b", 5)]
    totals = {
        row["user"]: row["total"] for row in query.state(store="total").to_arrow().to_pylist()
    }
    assert totals == {"a": 1, "b": 7}


def test_the_state_of_a_function_by_pandas_is_a_struct(in_dynamodb: Stream) -> None:
    in_dynamodb.add(("a", 1), ("b", 2))
    in_dynamodb.add(("a", 5))
    in_dynamodb.run(counted_by_pandas)
    assert in_dynamodb.rows("user string, state struct<n:long>, _version long") == [
        ("a", (2,), 2), ("b", (1,), 1),
    ]  # fmt: skip


def test_a_processor_of_arrow_tables_shows_its_state(in_dynamodb: Stream) -> None:
    in_dynamodb.add(("a", 1), ("b", 2), ("c", 3))
    in_dynamodb.add(("a", 5), ("b", 0))
    in_dynamodb.run(added_in_arrow)
    columns = "user string, total long, _version long"
    assert in_dynamodb.rows(columns) == [("a", 6, 2), ("c", 3, 1)]


def test_a_view_that_is_added_later_is_filled_and_one_that_lags_too(stream: Stream) -> None:
    stream.add(("a", 1), ("b", 2))
    stream.run(processed, **dict.fromkeys(stream.view_options))
    stream.run(processed)
    assert stream.rows("user string, total long") == [("a", 1), ("b", 2)]
    stream.add(("b", 0))
    stream.add(("c", 3))
    stream.run(processed, **dict.fromkeys(stream.view_options))
    stream.add(("a", 2))
    stream.run(processed)
    assert stream.rows("user string, total long, _version long") == [("a", 3, 4), ("c", 3, 3)]


def test_credentials_are_neither_kept_nor_shown(
    stream: Stream, spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.add(("a", 1))
    option = "password" if "cassandra" in stream.view_options["view"] else "token"
    spark.conf.set(f"spark.holdfast.view.{option}", "hunter2hunter2")
    try:
        query = stream.run(processed)
    finally:
        spark.conf.unset(f"spark.holdfast.view.{option}")
    assert stream.rows("user string, total long") == [("a", 1)]
    assert "hunter2" not in repr(query._run.spec)
    assert not [
        path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()
    ]
    assert "hunter2" not in "".join(capfd.readouterr())


def test_a_row_that_is_too_large_is_refused_before_anything_is_written(in_dynamodb: Stream) -> None:
    in_dynamodb.add(("a", 1), ("x" * 300_000, 2))

    def logic(frame: Any) -> Any:
        texts = F.collect_list(F.concat("user", "user"))
        return frame.groupBy("amount").agg(texts.alias("texts"))

    with pytest.raises(Exception, match="its column 'texts' alone has 600,0"):
        in_dynamodb.run(logic)
    assert in_dynamodb.rows("amount long") == []


def test_the_operator_to_be_shown_may_be_chosen(in_dynamodb: Stream) -> None:
    def by_the_hour(frame: Any) -> Any:
        marked = frame.withWatermark("ts", "1 minute")
        totals = marked.groupBy("user", F.window("ts", "5 minutes")).agg(F.sum("amount").alias("t"))
        return totals.groupBy(F.window(F.window_time("window"), "1 hour")).agg(F.sum("t"))

    in_dynamodb.add(("a", 1, "10:00"), ("a", 2, "10:01"), ("b", 3, "10:02"))
    in_dynamodb.run(by_the_hour, "append", viewOperator="0")
    assert in_dynamodb.rows("user string, t long") == [("a", 3), ("b", 3)]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"viewVariable": "seen"}, "shows a value state.*'seen' is not one; there are total"),
        ({"viewVariable": "nothing"}, "the processor has total .value., seen .list."),
        ({"viewOperator": "1"}, "the query has the operators 0 to 0"),
        ({"view": "redis://host/table"}, "A view is at cassandra://"),
        ({"view": None}, "has no effect without the option view"),
    ],
)
def test_what_a_view_cannot_show_is_refused_with_the_way_out(
    in_dynamodb: Stream, options: dict[str, Any], why: str
) -> None:
    in_dynamodb.add(("a", 1))
    with pytest.raises(InvalidArgument, match=why):
        in_dynamodb.run(processed, **options)


def test_a_database_that_is_down_at_the_start_stops_the_query_with_nothing_lost(
    stream: Stream, spark: SparkSession
) -> None:
    down = dict(stream.view_options)
    if "view.endpoint_url" in down:
        down["view.endpoint_url"] = "http://127.0.0.1:19"
    else:
        down["view"] = "cassandra://127.0.0.1:19/state/totals"
    stream.add(("a", 1))
    spark.conf.set("spark.holdfast.retryTimeout", "200ms")
    try:
        with pytest.raises(Unavailable, match="Nothing is lost: try again when"):
            stream.run(processed, **down)
    finally:
        spark.conf.unset("spark.holdfast.retryTimeout")
    stream.run(processed)
    assert stream.rows("user string, total long, _version long") == [("a", 1, 1)]
