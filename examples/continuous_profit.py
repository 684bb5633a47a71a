"""Profit of trades in windows of five minutes, batch by batch, stopped and resumed half-way.

    python examples/continuous_profit.py                           trades come as files
    spark-submit --jars JARS examples/continuous_profit.py HOST:PORT    trades come from Kafka

Buying counts as positive, selling as negative. Each trade arrives in a separate batch; the last
one is late but still counts in its window. Afterwards the state is read back at an old version,
without Spark.
`python dev/serve.py kafka` runs a broker and prints its address and the JARS.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.spark import StatefulDataFrame

TOPIC = "spark-stream-05"
SCHEMA = "id string, type string, amount int, time string"
TRADES = (
    "{ 'id': 'apple', 'amount': 10, 'type': 'buy', 'time': '20-04-2020-10-10' }",
    "{ 'id': 'shell', 'amount': 18, 'type': 'buy', 'time': '20-04-2020-10-12' }",
    "{ 'id': 'apple', 'amount': 5, 'type': 'sell', 'time': '20-04-2020-10-22' }",
    "{ 'id': 'asus', 'amount': 5, 'type': 'buy', 'time': '20-04-2020-10-14' }",
)


def from_kafka(spark: SparkSession, servers: str) -> DataFrame:
    """The lines of the topic, from its beginning."""
    return (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", TOPIC)
        .option("startingOffsets", "earliest")
        .load()
    )


def from_files(spark: SparkSession, folder: Path, **options: str) -> DataFrame:
    """The lines of the files that arrive in `folder`."""
    return spark.readStream.options(**options).text(str(folder))


def trades(lines: DataFrame) -> DataFrame:
    """Trades with the time of the event and their share of the profit."""
    signed = F.when(F.col("type") == "sell", -1 * F.col("amount")).otherwise(F.col("amount"))
    return (
        lines.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("trade"))
        .select("trade.*")
        .withColumn("eventtime", F.to_timestamp("time", "dd-MM-yyyy-HH-mm"))
        .drop("time")
        .withColumn("profit", signed)
    )


def profit(lines: DataFrame, *groups: Column | str) -> StatefulDataFrame:
    """The profit of each group; the one line that is not plain PySpark is `stateful`."""
    return stateful(trades(lines)).groupBy(*groups).agg(F.sum("profit").alias("profit"))


def arrive(folder: Path, number: int, *lines: str) -> None:
    """Put a file into the folder whole, as a stream's source needs it."""
    unfinished = folder / f".{number}"
    unfinished.write_text("\n".join(lines) + "\n")
    unfinished.rename(folder / f"{number}.json")


def send(spark: SparkSession, servers: str, line: str) -> None:
    """Write a line to the topic."""
    rows = spark.createDataFrame([(line,)], "value string")
    to = rows.write.format("kafka").option("kafka.bootstrap.servers", servers)
    to.option("topic", TOPIC).save()


def run(lines: DataFrame, bring: Callable[[int, str], None], checkpoint: Path) -> None:
    """Show the profit after each trade, in two runs of the query with two trades each."""
    for half in (0, 2):
        query = (
            profit(lines, F.window("eventtime", "5 minutes"))
            .orderBy("window")
            .writeStream.outputMode("complete")
            .format("console")
            .option("truncate", "false")
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        query.processAllAvailable()
        for number in (half, half + 1):
            bring(number, TRADES[number])
            query.processAllAvailable()
        query.stop()


def show_version(checkpoint: Path, version: int) -> None:
    with holdfast.open(checkpoint / "holdfast") as state:
        print(f"Version {version} of the state, read without Spark:")
        for row in state.at(version).scan().to_pylist():
            print(f"  {row['window_start']:%H:%M} to {row['window_end']:%H:%M}: {row['profit']}")


def main() -> None:
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory(prefix="holdfast-") as place:
        checkpoint = Path(place, "checkpoint")
        if len(sys.argv) > 1:
            servers = sys.argv[1]
            run(from_kafka(spark, servers), lambda _, line: send(spark, servers, line), checkpoint)
        else:
            folder = Path(place, "trades")
            folder.mkdir()
            run(from_files(spark, folder), lambda *trade: arrive(folder, *trade), checkpoint)
        show_version(checkpoint, 2)
    spark.stop()


if __name__ == "__main__":
    main()
