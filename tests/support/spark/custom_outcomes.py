"""What a case of custom state gave, start by start, in a form that JSON keeps."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from custom_cases import GROUPS, CustomCase, pipeline, tables
from native import collect, write_batch
from outcomes import Cells, Outcome, in_order, plain, row_difference
from pyspark.sql import Row, SparkSession

import holdfast
from holdfast import stateful

_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_LONG = 300
"""Cells with more characters are kept by their digest."""


def run_case(spark: SparkSession, case: CustomCase, folder: Path, *, native: bool) -> Outcome:
    """Run a case in a folder of its own."""
    waiting = folder / "all"
    waiting.mkdir(parents=True)
    for number, table in enumerate(tables(case)):
        write_batch(waiting, number, table)
    with settings(spark, case.settings):
        if case.of.is_batch:
            return [_batch(spark, case, waiting, native=native)]
        return list(_starts(spark, case, folder, native=native))


def _batch(spark: SparkSession, case: CustomCase, folder: Path, *, native: bool) -> dict[str, Any]:
    rows = spark.read.schema(case.schema).parquet(str(folder))
    made = pipeline(spark, case)(rows if native else stateful(rows))
    return {"outputs": [_rows(made.collect())], "state": []}


def _starts(
    spark: SparkSession, case: CustomCase, folder: Path, *, native: bool
) -> Iterator[dict[str, Any]]:
    found = folder / "in"
    found.mkdir()
    waiting = sorted((folder / "all").glob("*.parquet"))
    for count in case.starts:
        for path in waiting[:count]:
            path.rename(found / path.name)
        waiting = waiting[count:]
        outputs = collect(
            spark,
            found,
            folder / "cp",
            pipeline(spark, case),
            case.mode.lower(),
            native=native,
            schema=case.schema,
        )
        read = native_state if native else own_state
        state = [in_order(rows) for rows in read(spark, case, folder / "cp")]
        yield {"outputs": [_rows(rows) for rows in outputs], "state": state}


@contextmanager
def settings(spark: SparkSession, wanted: dict[str, str]) -> Iterator[None]:
    """The session with some settings; Spark's own needs RocksDB, Holdfast does not mind."""
    wanted = {**wanted, "spark.sql.streaming.stateStore.providerClass": _ROCKSDB}
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def _rows(rows: list[Row]) -> list[Cells]:
    return in_order([[short(plain(cell)) for cell in row] for row in rows])


def short(cell: Any) -> Any:
    """A cell, or the digest of one that is too long to be kept."""
    text = json.dumps(cell, sort_keys=True)
    return cell if len(text) <= _LONG else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


# -- state -------------------------------------------------------------------------------------


def native_state(spark: SparkSession, case: CustomCase, checkpoint: Path) -> Iterator[list[Cells]]:
    """What Spark's own state holds: a list for each variable, and one for the timers."""
    reader = spark.read.format("statestore").option("operatorId", int(case.of.is_chained))
    if case.api == GROUPS:
        rows = reader.load(str(checkpoint)).collect()
        yield [_group_entry(case, row.key, row.value.asDict()) for row in rows]
        return
    for variable in case.of.variables:
        named = reader.option("stateVarName", variable.rstrip("*"))
        rows = named.load(str(checkpoint)).collect()
        yield [_cells([*row.key, *_own_key(row), *_value(row)]) for row in rows]
    if case.of.time != "None":
        # A reader keeps its options: this one must not name a variable.
        reader = spark.read.format("statestore").option("operatorId", int(case.of.is_chained))
        timed = reader.option("readRegisteredTimers", "true").load(str(checkpoint)).collect()
        yield [_timer(case, row.key, row.expiration_timestamp_ms) for row in timed]


def _own_key(row: Row) -> Any:
    return row.asDict().get("user_map_key", ())


def _value(row: Row) -> Any:
    """What an entry holds, without the time at which it ends."""
    known = row.asDict()
    value = known.get("user_map_value", known.get("list_element", known.get("value")))
    return value.value if "ttlExpirationMs" in value.__fields__ else value


def own_state(spark: SparkSession, case: CustomCase, checkpoint: Path) -> Iterator[list[Cells]]:
    """What our state holds, in the form of `native_state`."""
    if case.api == GROUPS:
        rows = _read(checkpoint, "state")
        yield [_group_entry(case, key.values(), value) for key, value in rows]
        return
    width = len(case.keys)
    for variable in case.of.variables:
        own = width + 1 if variable.endswith("*") else width  # without the place in a list
        rows = [([*k.values()], v.values()) for k, v in _read(checkpoint, variable.rstrip("*"))]
        yield [_cells([*key[:width], *key[own:], *value]) for key, value in rows]
    if case.of.time != "None":
        timers = [[*key.values()] for key, _ in _read(checkpoint, "$timers")]
        yield [_timer(case, timer[:width], timer[width]) for timer in timers]


def _read(checkpoint: Path, store: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    state = holdfast.read(checkpoint, operator=0, store=store)
    return [
        (
            {name: row[name] for name in state.key_schema.names},
            {name: row[name] for name in state.value_schema.names},
        )
        for row in state.scan().to_pylist(maps_as_pydicts="strict")
    ]


def _timer(case: CustomCase, key: Any, moment: int) -> Cells:
    """A timer; a moment by the clock is another one in each run."""
    return _cells([*key, "some time" if case.of.time == "ProcessingTime" else moment])


def _group_entry(case: CustomCase, key: Any, value: dict[str, Any]) -> Cells:
    """The state of a key and its timeout, if it has one."""
    state = value.get("groupState", value.get("state"))
    timeout = value.get("timeoutTimestamp", value.get("timeout_ms"))
    timeout = None if timeout == -1 else timeout
    if timeout is not None and case.of.time == "ProcessingTimeTimeout":
        timeout = "some time"
    return _cells([*key, state, timeout])


def _cells(cells: list[Any]) -> Cells:
    return [short(plain(cell)) for cell in cells]


def difference(expected: Outcome, found: Outcome) -> str | None:
    """Where two outcomes differ first, in words; None where they agree."""
    for number, (native, own) in enumerate(zip(expected, found, strict=True)):
        for what in ("outputs", "state"):
            if len(native[what]) != len(own[what]):
                return f"start {number}, {what}: {native[what]} expected, got {own[what]}"
            for at, (a, b) in enumerate(zip(native[what], own[what], strict=True)):
                if said := row_difference(a, b):
                    return f"start {number}, {what} {at}: {said}"
    return None
