"""Spark's sources `statestore` and `state-metadata`, answered from Holdfast's state.

Spark's own sources read the state in Spark's checkpoint, where queries on Holdfast keep none. What
`format("holdfast")` gives has the same rows; here they get Spark's options and columns.
"""

from __future__ import annotations

import json

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from holdfast.types import parse_schema

SOURCES = ("statestore", "state-metadata")
_TIMERS = {"$timers": "$procTimers_keyToTimestamp"}


class StateRead:
    """What the tests use of DataFrameReader."""

    def __init__(self, session: SparkSession, source: str) -> None:
        self._session, self._source = session, source
        self._options: dict[str, str] = {}

    def option(self, key: str, value: object) -> StateRead:
        self._options[key] = str(value)
        return self

    def load(self, path: str | None = None) -> DataFrame:
        place = path or self._options["path"]
        stores = self._read(place, metadata="true")
        if self._source == "state-metadata":
            return _metadata(stores)
        (store,) = stores.where(F.col("stateStoreName") == self._options["stateVarName"]).collect()
        return self._state(place, store)

    def _read(self, place: str, **options: str) -> DataFrame:
        return self._session.read.format("holdfast").options(**options).load(place)

    def _state(self, place: str, store: Row) -> DataFrame:
        wanted = {"stateVarName": self._options["stateVarName"]}
        extra: list[Column] = []
        if self._options.get("readChangeFeed") == "True":
            first = int(self._options["changeStartBatchId"]) + 1
            wanted |= {"readChangeFeed": "true", "changeStartVersion": str(first)}
            extra = [(F.col("version") - 1).alias("batch_id"), F.col("change_type")]
        rows = self._read(place, **wanted)
        if (partition := self._options.get("snapshotPartitionId")) is not None:
            rows = rows.where(F.col("partition_id") == int(partition))
        return self._shaped(rows, store, extra)

    def _shaped(self, rows: DataFrame, store: Row, extra: list[Column]) -> DataFrame:
        """The columns that Spark's source has for this kind of variable."""
        keys, own = _key_columns(store)
        key, number = _part("key", keys).alias("key"), F.col("partition_id")
        is_flat = self._options.get("flattenCollectionTypes", "True") == "True"
        kind = _kind(store)
        if kind == "ValueState":
            return rows.select(*extra, key, "value", number)
        if kind == "ListState":
            entries = rows.select(*extra, key, F.col("value").alias("list_element"), number)
            if is_flat:
                return entries
            listed = F.collect_list("list_element").alias("list_value")
            return entries.groupBy("key", "partition_id").agg(listed)
        names = _part("key", own).alias("user_map_key")
        pairs = rows.select(*extra, key, names, F.col("value").alias("user_map_value"), number)
        if is_flat:
            return pairs
        listed = F.collect_list(F.struct("user_map_key", "user_map_value"))
        return pairs.groupBy("key", "partition_id").agg(
            F.map_from_entries(listed).alias("map_value")
        )


def _metadata(stores: DataFrame) -> DataFrame:
    lines = stores.collect()
    variables = [
        {
            "stateName": _TIMERS.get(line.stateStoreName, line.stateStoreName),
            "stateVariableType": _kind(line),
        }
        for line in lines
    ]
    first = lines[0]
    return stores.limit(1).select(
        "operatorId",
        "operatorName",
        F.lit("default").alias("stateStoreName"),
        "numPartitions",
        F.lit(first.minVersion - 1).alias("minBatchId"),
        F.lit(first.maxVersion - 1).alias("maxBatchId"),
        F.lit(json.dumps({"stateVariables": variables})).alias("operatorProperties"),
    )


def _kind(store: Row) -> str:
    own = _key_columns(store)[1]
    if store.stateStoreName in _TIMERS:
        return "TimerState"
    if not own:
        return "ValueState"
    return "ListState" if own == ["position"] else "MapState"


def _key_columns(store: Row) -> tuple[list[str], list[str]]:
    """The grouping columns, and those that a variable adds."""
    names = [field.name for field in parse_schema(store.keySchema)]
    split = store.numColsPrefixKey or len(names)
    return names[:split], names[split:]


def _part(struct: str, names: list[str]) -> Column:
    return F.struct(*(F.col(f"{struct}.`{name}`") for name in names))
