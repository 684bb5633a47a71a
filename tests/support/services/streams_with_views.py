"""Streams whose state is shown in views, and a processor for them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor
from view_databases import ViewDatabase

from holdfast import stateful

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SCHEMA = "user string, amount long, ts timestamp"


class Totals(StatefulProcessor):
    """A total, and the amounts it is made of; a user who pays 0 is forgotten."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")
        self.seen = handle.getListState("seen", "amount long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        amounts = [row.amount for row in rows]
        before = self.total.get()
        if 0 in amounts:
            self.total.clear()
        else:
            self.total.update(((before[0] if before else 0) + sum(amounts),))
            self.seen.appendValue((amounts[0],))
        yield Row(user=key[0], total=sum(amounts))


class Visits(StatefulProcessor):
    """A total that stays, and the last amount, which is forgotten after a minute."""

    def init(self, handle: Any) -> None:
        self.total = handle.getValueState("total", "total long")
        self.last = handle.getValueState("last", "amount long", 60_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        amounts = [row.amount for row in rows]
        before = self.total.get()
        self.total.update(((before[0] if before else 0) + sum(amounts),))
        self.last.update((amounts[-1],))
        yield Row(user=key[0], total=sum(amounts))


def visited(frame: Any) -> Any:
    grouped = frame.withWatermark("ts", "0 seconds").groupBy("user")
    return grouped.transformWithState(Visits(), "user string, total long", "Update", "EventTime")


def processed(frame: Any) -> Any:
    grouped = frame.groupBy("user")
    return grouped.transformWithState(Totals(), "user string, total long", "Update", "None")


def _counted(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    import pandas as pd

    before = state.get[0] if state.exists else 0
    count = before + sum(len(frame) for frame in frames)
    state.update((count,))
    yield pd.DataFrame({"user": [key[0]], "n": [count]})


def counted_by_pandas(frame: Any) -> Any:
    """How many rows each user has."""
    return frame.groupBy("user").applyInPandasWithState(
        _counted, "user string, n long", "n long", "update", "NoTimeout"
    )


def _added(keys: Any, rows: Any, state: Any, times: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    by_key = rows.group_by("_group").aggregate([("amount", "sum"), ("amount", "min")])
    by_key = by_key.sort_by("_group")
    total = pc.add(pc.if_else(state["_exists"], state["total"], 0), by_key["amount_sum"])
    kept = pc.not_equal(by_key["amount_min"], 0)
    return (
        pa.table({"total": total, "_exists": kept}),
        pa.table({"user": keys["user"], "total": total}),
    )


def added_in_arrow(frame: Any) -> Any:
    """Users' totals; a user who pays 0 is forgotten."""
    return frame.groupBy("user").transformWithStateInArrow(
        _added, "user string, total long", "total long", "Update", "None"
    )


class Stream:
    """A stream of files, one a batch, whose state is shown in a view."""

    def __init__(self, spark: SparkSession, folder: Path, database: ViewDatabase) -> None:
        self._spark, self._folder, self._database = spark, folder, database
        self.table = database.table("stream")
        self._files = 0
        (folder / "in").mkdir()

    def add(self, *rows: tuple[str | None, int] | tuple[str | None, int, str]) -> None:
        """A file of rows: user, amount, and a time of 2026-01-01 where it matters."""
        lines = [
            {"user": row[0], "amount": row[1], "ts": f"2026-01-01 {(*row, '00:00')[2]}:00"}
            for row in rows
        ]
        aside = self._folder / "aside"
        aside.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self._files += 1
        aside.rename(self._folder / "in" / f"{self._files:04}.json")

    def run(self, logic: Any, mode: str = "update", **options: Any) -> Any:
        """Run over the files that are there; the query, at its end."""
        source = self._spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
        writer = logic(stateful(source.json(str(self._folder / "in")))).writeStream
        writer = writer.format("noop").outputMode(mode).trigger(availableNow=True)
        given = {"checkpointLocation": str(self._folder / "cp"), **self.view_options, **options}
        for name, value in given.items():
            if value is not None:
                writer = writer.option(name, value)
        query = writer.start()
        query.awaitTermination()
        return query

    @property
    def view_options(self) -> dict[str, str]:
        return {
            "view": self._database.location(self.table),
            **{f"view.{name}": value for name, value in self._database.options.items()},
        }

    def rows(self, schema: str, table: str | None = None) -> list[tuple[Any, ...]]:
        """The rows that a service finds, in order."""
        found = self._database.rows(table or self.table)
        return sorted(
            (tuple(self._database.decoded(schema, row).values()) for row in found), key=repr
        )
