"""A driver that shows users' totals in a view, says on its output where it is, and is killed there.

    python driver_with_view.py FOLDER VIEW OPTIONS

Reads FOLDER/in one file a batch. OPTIONS is JSON: how the database is reached. Ends when all files
are read.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from driver_to_kill import announce, session
from pyspark import cloudpickle

import shopping_totals
from holdfast.engine.versions.log import VersionLog
from holdfast.spark.versions.computation import Computation
from holdfast.spark.view import StreamView
from holdfast.views.cassandra.view import CassandraView
from holdfast.views.dynamodb.view import DynamoDbView


def main() -> None:
    folder, view, options = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
    # Workers cannot import the examples.
    cloudpickle.register_pickle_by_value(shopping_totals)
    announce(Computation, "_run_stage", "compute")
    announce(VersionLog, "publish", "commit")
    announce(StreamView, "_by_tasks", "view", after=True)
    for kind in (CassandraView, DynamoDbView):
        announce(kind, "note", "noted", after=True)
    spark = session("driver with a view")
    # The server is away for as long as it takes to start it.
    spark.conf.set("spark.holdfast.retryTimeout", "5min")
    source = spark.readStream.schema(shopping_totals.SCHEMA).option("maxFilesPerTrigger", "1")
    query = (
        shopping_totals.totals(source.json(str(folder / "in")))
        .writeStream.outputMode("update")
        .format("noop")
        .trigger(availableNow=True)
        .option("checkpointLocation", str(folder / "cp"))
        .option("view", view)
        .options(**{f"view.{name}": value for name, value in options.items()})
        .start()
    )
    query.awaitTermination()
    print(f"done {query.version}", flush=True)


if __name__ == "__main__":
    main()
