"""Without ANSI, decimals that overflowed are lost for ever, as they are in Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from native import collect, outputs_of, source_of, write_batch
from native_recordings import NativeRuns
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import holdfast
from holdfast import stateful
from holdfast.streams.aggregates.functions import BY_NODE
from holdfast.streams.aggregates.parts import FunctionCall, Parts, sum_of

pytestmark = pytest.mark.spark

_BIG = Decimal("9" * 38)
_BATCHES: list[list[tuple[str, Any]]] = [
    [("between", _BIG), ("within", _BIG), ("within", _BIG), ("late", None), ("small", 1)],
    [("between", _BIG), ("within", 1), ("late", None), ("small", 1)],
    [("between", 1), ("within", 1), ("late", 4), ("small", 1)],
]
_KINDS = pa.schema(
    [("id", pa.string()), ("d", pa.decimal128(38, 0)), ("ts", pa.timestamp("us", tz="UTC"))]
)
_SCHEMA = "id string, d decimal(38,0), ts timestamp"
Outputs = list[list[tuple[Any, ...]]]


def _write(folder: Path, first: int, last: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(first, last):
        ids, cells = zip(*_BATCHES[number], strict=True)
        times = [datetime(2026, 1, 1, tzinfo=UTC)] * len(ids)
        write_batch(folder, number, pa.table([ids, cells, times], schema=_KINDS))


def _one_column(call: FunctionCall) -> Parts:
    return Parts(sum_of(call).partials[:1], "sum")


def _totals(frame: Any, *keys: Any) -> Any:
    totals = F.sum("d").alias("s"), F.avg("d").alias("m"), (F.sum("d") + 1).alias("p")
    return frame.groupBy("id", *keys).agg(*totals)


def _run(native_runs: NativeRuns, folder: Path, pipeline: Any = _totals) -> dict[str, Outputs]:
    """What Spark's own query and ours put out, from one start to its end."""
    source = source_of(native_runs.spark, folder / "in", _SCHEMA)
    sparks, own = pipeline(source), pipeline(stateful(source))
    found = {
        "native": native_runs.outputs(sparks, folder / "native", "complete", folder / "in"),
        "ours": outputs_of(own, folder / "ours", "complete"),
    }
    return {
        name: [sorted(map(tuple, rows), key=repr) for rows in outputs]
        for name, outputs in found.items()
    }


@pytest.fixture
def without_ansi(spark: SparkSession) -> Iterator[None]:
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", "false")
    yield
    spark.conf.set("spark.sql.ansi.enabled", before)


@pytest.mark.usefixtures("without_ansi")
@pytest.mark.parametrize("slides", [False, True], ids=["by key", "by sliding windows"])
def test_what_overflowed_stays_null_as_sparks_does(
    native_runs: NativeRuns, tmp_path: Path, slides: bool
) -> None:
    windows = [F.window("ts", "4 minutes", "2 minutes")] if slides else []
    _write(tmp_path / "in", 0, 3)
    found = _run(native_runs, tmp_path, lambda frame: _totals(frame, *windows))
    assert found["ours"] == found["native"]
    sums = [{(row[0], row[-3]) for row in rows} for rows in found["native"]]
    assert ("between", None) not in sums[0]
    assert {("between", None), ("within", None), ("late", 4), ("small", 3)} == sums[2]


@pytest.mark.usefixtures("without_ansi")
def test_state_that_does_not_know_what_overflowed_goes_on_and_knows_from_then(
    native_runs: NativeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path / "in", 0, 1)
    with monkeypatch.context() as before:
        # As sums were kept at first: by one column, which is null for nothing and for too much.
        before.setitem(BY_NODE, "Sum", replace(BY_NODE["Sum"], apart=_one_column))
        assert len(_run(native_runs, tmp_path)["ours"]) == 1
    assert "s_seen" not in holdfast.read(tmp_path / "ours").value_schema.names
    _write(tmp_path / "in", 1, 3)
    found = _run(native_runs, tmp_path)
    assert "s_seen" in holdfast.read(tmp_path / "ours").value_schema.names
    lost = [[row for row in rows if row[0] == "within"] for rows in found["ours"]]
    assert [row[0][1] for row in lost] == [1, 2]
    known = {
        name: [[row for row in rows if row[0] != "within"] for rows in outputs]
        for name, outputs in found.items()
    }
    assert known["ours"] == known["native"]
    assert len(known["ours"]) == 2


def test_what_overflowed_fails_a_query_that_goes_on_with_ansi(
    spark: SparkSession, tmp_path: Path, without_ansi: None
) -> None:
    def run_both(match: str | None = None) -> None:
        for native in (True, False):
            with pytest.raises(StreamingQueryException, match=match) if match else nullcontext():
                collect(
                    spark,
                    tmp_path / "in",
                    tmp_path / ("native" if native else "ours"),
                    lambda frame: frame.groupBy("id").agg(F.sum("d")),
                    "complete",
                    native=native,
                    schema=_SCHEMA,
                )

    _write(tmp_path / "in", 0, 2)
    run_both()
    spark.conf.set("spark.sql.ansi.enabled", "true")
    _write(tmp_path / "in", 2, 3)
    run_both(match=r"OVERFLOW|OUT_OF_RANGE")
