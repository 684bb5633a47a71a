"""A job written for Spark's own state, run by Holdfast unchanged: dedupe, window, upsert.

    python examples/ported_upserts.py

Payments come more than once. Duplicates are dropped, the amounts of ten minutes are summed up, and
`foreachBatch` upserts the sums into a table in SQLite. `job` is the same function for both engines:
to port it, wrap its source in `stateful(...)`. Here both run it, each with its own checkpoint.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from click_sessions import arrive
from holdfast import stateful

SCHEMA = "id string, shop string, amount long, at timestamp"
PAYMENTS = (
    # batches of payments: id, shop, amount, minute
    (("p1", "north", 10, 1), ("p2", "south", 7, 2)),
    # Two of them come again.
    (("p1", "north", 10, 1), ("p3", "north", 5, 8), ("p4", "south", 4, 12), ("p2", "south", 7, 2)),
    (("p5", "north", 1, 40),),  # moves the watermark past the windows before it
)


def job(payments: Any, upsert: Callable[[DataFrame, int], None]) -> Any:
    """The job as it was written for Spark; `payments` is a DataFrame, or that in `stateful`."""
    return (
        payments.withWatermark("at", "5 minutes")
        .dropDuplicatesWithinWatermark(["id"])
        .groupBy(F.window("at", "10 minutes"), "shop")
        .agg(F.sum("amount").alias("total"))
        .writeStream.outputMode("append")
        .foreachBatch(upsert)
        .trigger(availableNow=True)
    )


def upsert_into(database: Path) -> Callable[[DataFrame, int], None]:
    """Upserts sums; a batch that comes again after a crash changes nothing."""

    def upsert(sums: DataFrame, batch_id: int) -> None:
        start = F.date_format("window.start", "HH:mm").alias("start")
        rows = [tuple(row) for row in sums.select("shop", start, "total").collect()]
        with sqlite3.connect(database) as table:
            table.executemany(
                "INSERT INTO sums VALUES (?, ?, ?) "
                "ON CONFLICT (shop, start) DO UPDATE SET total = excluded.total",
                rows,
            )
        table.close()

    return upsert


def run(spark: SparkSession, place: Path, name: str, wrap: Callable[[DataFrame], Any]) -> None:
    """Run the job, then print its table."""
    database = place / f"{name}.db"
    with sqlite3.connect(database) as table:
        table.execute("CREATE TABLE sums (shop, start, total, PRIMARY KEY (shop, start))")
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    payments = wrap(source.json(str(place / "payments")))
    query = job(payments, upsert_into(database))
    query.option("checkpointLocation", str(place / name)).start().awaitTermination()
    found = table.execute("SELECT shop, start, total FROM sums ORDER BY shop, start").fetchall()
    print(f"{name}: {', '.join(f'{shop} {start} {total}' for shop, start, total in found)}")
    table.close()


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
        place = Path(folder)
        (place / "payments").mkdir()
        for number, batch in enumerate(PAYMENTS):
            rows = [
                {"id": payment, "shop": shop, "amount": n, "at": f"2024-05-01T12:{minute:02d}:00Z"}
                for payment, shop, n, minute in batch
            ]
            arrive(place / "payments", number, rows)
        run(spark, place, "spark", lambda payments: payments)
        run(spark, place, "holdfast", stateful)
    spark.stop()


if __name__ == "__main__":
    main()
