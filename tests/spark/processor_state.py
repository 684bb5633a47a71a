"""What the variables of a processor hold, in Spark's own state and in Holdfast's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[None]:
    """Spark's own needs RocksDB; Holdfast does not mind."""
    name = "spark.sql.streaming.stateStore.providerClass"
    spark.conf.set(name, _ROCKSDB)
    yield
    spark.conf.unset(name)


def held(
    spark: SparkSession, checkpoint: Path, names: list[str], *, native: bool
) -> list[list[str]]:
    """What the variables hold at the end, each as sorted entries."""
    found = []
    for name in names:
        reader = spark.read.format("statestore" if native else "holdfast")
        rows = reader.option("stateVarName", name).load(str(checkpoint)).collect()
        if native:
            cells = [_entry(row) for row in rows]
        else:
            cells = [[*row.key, *row.value] for row in rows]
            if name in ("items", "all"):
                cells = [[entry[0], *entry[2:]] for entry in cells]
        found.append(sorted(map(repr, cells)))
    return found


def _entry(row: Row) -> list[Any]:
    """An entry of Spark's state in our words: key, own key, value."""
    known = row.asDict()
    own = known.get("user_map_key", ())
    value = known.get("user_map_value", known.get("list_element", known.get("value")))
    return [*row.key, *own, *value]
