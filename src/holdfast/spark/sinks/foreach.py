"""`foreach`: the user's writer, called for each row on the workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from pyspark import TaskContext
from pyspark.sql import DataFrame, Row

from holdfast.spark.sinks.sink import OutputBatch, Sink


class ForeachSink(Sink):
    """Calls a function with each row, or an object's open, process and close for each partition.

    As in Spark, `open(partition_id, epoch_id)` may return False to skip the rows, and
    `close(error)` is always called. Epochs count from 0 as Spark's batches do. After a crash the
    newest epoch is repeated with the same rows. Requires: Spark's own foreach takes the writer.
    """

    description = "ForeachSink"
    sees_partitions = True

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self.delivered_rows = frame.rdd.mapPartitions(
            _of_partition(self._writer, batch.epoch)
        ).sum()


def _of_partition(writer: Any, epoch: int) -> Callable[[Iterable[Row]], Iterable[int]]:
    """Writes the rows of a partition, and gives how many they are."""

    def call(rows: Iterable[Row]) -> Iterable[int]:
        number = 0
        for number, row in enumerate(rows, 1):  # noqa: B007 - the last one is the count
            writer(row)
        return [number]

    def write(rows: Iterable[Row]) -> Iterable[int]:
        number = 0
        context = TaskContext.get()
        assert context is not None
        wanted = not hasattr(writer, "open") or writer.open(context.partitionId(), epoch)
        failure: Exception | None = None
        try:
            if wanted:
                for number, row in enumerate(rows, 1):  # noqa: B007 - the last one is the count
                    writer.process(row)
        except Exception as error:
            failure = error
            raise
        finally:
            if hasattr(writer, "close"):
                writer.close(failure)
        return [number]

    return call if callable(writer) else write
