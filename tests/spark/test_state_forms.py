"""What processors get of their state, side by side with Spark's own streaming."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from custom_outcomes import settings
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from holdfast import stateful

pytestmark = pytest.mark.spark
MOMENT = datetime(2024, 1, 2, 3, 4, 5, 6)
SCHEMA = (
    "a int, s struct<b: int, t: timestamp>, l array<struct<c: int, t: timestamp>>, "
    "m map<string, struct<d: int>>, ts timestamp, n timestamp_ntz, ats array<timestamp>"
)
VALUE = (
    1,
    Row(b=2, t=MOMENT),
    [Row(c=3, t=MOMENT)],
    {"k": Row(d=4)},
    MOMENT,
    MOMENT,
    [MOMENT],
)
COLUMNS = "id string, day date, d decimal(10,2), ts timestamp"
SESSION = "Asia/Kolkata"


class Telling(StatefulProcessor):
    """Keeps the same in every kind of state, and says in text what comes back, and of what type."""

    def __init__(self, frames: bool) -> None:
        self.frames = frames

    def init(self, handle: Any) -> None:
        self.handle = handle
        self.value = handle.getValueState("value", SCHEMA)
        self.list = handle.getListState("list", SCHEMA)
        self.map = handle.getMapState("map", "k int, t timestamp", SCHEMA)
        self.short = handle.getMapState("short", "k string", "v int NOT NULL")
        self.gone = handle.getValueState("gone", "v int")
        handle.deleteIfExists("gone")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        list(rows)
        self.value.update((*VALUE[:4], MOMENT.astimezone(UTC), *VALUE[5:]))
        self.list.put([VALUE])
        self.list.appendValue(VALUE)
        self.map.updateValue((1, MOMENT), VALUE)
        for own in ("c", ["a"], ("b",)):
            self.short.updateValue(own, (1,))
        yield from self.tell("key", key)
        yield from self.tell("value", self.value.get())
        yield from self.tell("list", list(self.list.get()))
        yield from self.tell("get", self.map.getValue((1, MOMENT.astimezone(UTC))))
        yield from self.tell("pairs", list(self.map.iterator()))
        yield from self.tell("keys", list(self.map.keys()))
        yield from self.tell("values", list(self.map.values()))
        yield from self.tell("short", [list(self.short.iterator()), self.short.getValue("c")])
        for call in ("get", "exists", "clear"):
            yield from self.tell(f"deleted {call}", self.refusal(call))
        self.handle.registerTimer(timerValues.getCurrentWatermarkInMs() + 1)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        yield from self.tell("timer", key)

    def refusal(self, call: str) -> str:
        try:
            return str(getattr(self.gone, call)())
        except RuntimeError:
            return "refused"

    def tell(self, what: str, cell: Any) -> Iterator[Any]:
        told = {"what": what, "told": described(cell)}
        yield pd.DataFrame([told]) if self.frames else Row(**told)


def described(cell: Any) -> str:
    """A cell with the types of all that is in it; time zones by what they add to UTC."""
    if isinstance(cell, datetime):
        return f"{type(cell).__name__} {cell.replace(tzinfo=None)} {cell.utcoffset()}"
    if isinstance(cell, dict):
        return str({described(own): described(held) for own, held in cell.items()})
    if isinstance(cell, (tuple, list)):
        inside = ", ".join(map(described, cell))
        return f"{type(cell).__name__} {getattr(cell, '__fields__', '')} ({inside})"
    return f"{type(cell).__name__} {cell!r}"


@pytest.mark.parametrize("frames", [False, True], ids=["rows", "frames"])
def test_state_comes_back_in_sparks_forms(
    spark: SparkSession, tmp_path: Path, frames: bool
) -> None:
    rows = [("a", date(2024, 1, 1), Decimal("1.50"), MOMENT)]
    spark.createDataFrame(rows, COLUMNS).write.parquet(str(tmp_path / "in"))
    later = [("b", date(2024, 1, 1), Decimal("1.50"), MOMENT.replace(year=2025))]
    spark.createDataFrame(later, COLUMNS).write.mode("append").parquet(str(tmp_path / "in"))
    with settings(spark, {"spark.sql.session.timeZone": SESSION}):
        native = _told(spark, tmp_path, frames, native=True)
        assert _told(spark, tmp_path, frames, native=False) == native
    by_kind = dict(native)
    assert f"{MOMENT} None" in by_kind["value"]
    assert by_kind["get"].startswith("Row ")
    assert by_kind["deleted exists"] == "str 'refused'"
    assert "timer" in by_kind


@pytest.fixture(autouse=True)
def _by_value() -> Iterator[None]:
    """Workers cannot import the tests."""
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    yield
    cloudpickle.unregister_pickle_by_value(module)


def _told(
    spark: SparkSession, folder: Path, frames: bool, *, native: bool
) -> list[tuple[str, str]]:
    source = spark.readStream.schema(COLUMNS).parquet(str(folder / "in"))
    grouped = (source if native else stateful(source)).withWatermark("ts", "0 seconds")
    grouped = grouped.withColumn("s", F.struct("ts")).groupBy(
        *(["id", "day", "ts"] if frames else ["id", "day", "d", "ts", "s"])
    )
    method = grouped.transformWithStateInPandas if frames else grouped.transformWithState
    name = f"told_{frames}_{native}"
    query = (
        method(Telling(frames), "what string, told string", "Append", "EventTime")
        .writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(folder / name))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(tuple(row) for row in spark.table(name).collect())


def test_a_processor_that_returns_none_fails_its_query(spark: SparkSession, tmp_path: Path) -> None:
    class Silent(StatefulProcessor):
        def init(self, handle: Any) -> None:
            pass

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
            list(rows)

    spark.range(1).write.parquet(str(tmp_path / "in"))
    for native in (True, False):
        source = spark.readStream.schema("id long").parquet(str(tmp_path / "in"))
        with settings(spark, {}):
            query = (
                (source if native else stateful(source))
                .groupBy("id")
                .transformWithState(Silent(), "v int", "Append", "None")
                .writeStream.format("noop")
                .option("checkpointLocation", str(tmp_path / f"cp-{native}"))
                .trigger(availableNow=True)
                .start()
            )
            with pytest.raises(Exception, match="'NoneType' object is not iterable"):
                query.awaitTermination()
