"""Times outside the years 1 to 9999, which Python's datetime cannot hold, are kept and shown."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli import app
from holdfast.engine.hashing.spark_hash import KeyHasher
from holdfast.reading.cells import cell_json, from_json
from holdfast.spark.monitoring.metrics import QueryMetrics, metrics_text
from holdfast.types import AtomicType, RowCodec, moment, moment_text, parse_schema

FAR = np.datetime64("12000-03-04T05:06:07.000008", "us")
EARLY = np.datetime64("-0044-03-15T12:00:00", "us")
FAR_DAY = np.datetime64("12000-03-04", "D")
NEAR = datetime(2026, 1, 31, 12, tzinfo=UTC)


def test_rows_with_far_times_survive_arrow() -> None:
    codec = RowCodec(
        parse_schema(
            "a timestamp, b timestamp_ntz, c date, d array<date>, e struct<s: timestamp>, "
            "f map<timestamp_ntz, date>"
        )
    )
    rows = [
        (FAR, EARLY, FAR_DAY, [FAR_DAY, date(2026, 1, 1), None], (FAR,), {FAR: FAR_DAY}),
        (NEAR, NEAR.replace(tzinfo=None), date(1, 1, 1), [], (NEAR,), {}),
        (None, None, None, None, None, None),
    ]
    assert [codec.encode(row) for row in rows] == rows
    again = codec.from_arrow(codec.to_arrow(rows))
    assert again == rows
    assert [type(cell) for cell in again[0][:3]] == [np.datetime64] * 3
    assert type(again[1][0]) is datetime


@pytest.mark.parametrize("bad", [np.datetime64("NaT", "us"), np.datetime64("2026-01-31", "us")])
def test_numpys_moments_are_taken_only_where_a_datetime_has_no_room(bad: np.datetime64) -> None:
    with pytest.raises(holdfast.InvalidArgument):
        RowCodec(parse_schema("a timestamp")).encode((bad,))


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz", "date"])
def test_a_far_key_has_the_hash_of_its_column(kind: str) -> None:
    schema = parse_schema(f"k {kind}")
    cell = FAR_DAY if kind == "date" else FAR
    codec, hasher = RowCodec(schema), KeyHasher(schema, 1)
    assert hasher.hash_columns(codec.to_arrow([(cell,)])).tolist() == [hasher.hash_row((cell,))]


@pytest.mark.parametrize(
    ("kind", "cell", "text"),
    [
        ("timestamp", FAR, "+12000-03-04T05:06:07.000008Z"),
        ("timestamp", EARLY, "-0044-03-15T12:00:00Z"),
        ("timestamp_ntz", FAR, "+12000-03-04T05:06:07.000008"),
        ("date", FAR_DAY, "+12000-03-04"),
        ("timestamp", NEAR, "2026-01-31T12:00:00Z"),
    ],
)
def test_far_times_are_written_and_read_as_text(kind: str, cell: Any, text: str) -> None:
    assert cell_json(AtomicType(kind), cell) == text
    assert from_json(AtomicType(kind), text) == cell


def test_moments_are_written_as_spark_writes_them() -> None:
    assert moment_text(0) == "1970-01-01T00:00:00.000Z"
    assert moment_text(253402300800000) == "+10000-01-01T00:00:00.000Z"
    assert moment(253402300799999) == datetime(9999, 12, 31, 23, 59, 59, 999000, UTC)
    assert moment(253402300800000) == np.datetime64("10000-01-01", "us")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two versions: one key with a far time of its own and in its value, and one near it."""
    db = holdfast.open(tmp_path / "db", key="at timestamp", value="day date, n long")
    with db.update() as store:
        store.put((FAR,), (FAR_DAY, 1))
        store.put((NEAR,), (NEAR.date(), 1))
    with db.update() as store:
        store.put((FAR,), (FAR_DAY, 2))
        assert store.get((FAR,)) == (FAR_DAY, 2)
    assert db.get((FAR,)) == (FAR_DAY, 2)
    db.close()
    return tmp_path / "db"


@pytest.mark.parametrize(
    "command",
    [
        ["scan", "{}"],
        ["scan", "{}", "--where", "at > '+11000-01-01T00:00:00Z'"],
        ["diff", "{}", "1", "2"],
        ["get", "{}", "--key-json", '["+12000-03-04T05:06:07.000008Z"]', "--history"],
        ["get", "{}", "--key-json", '["+12000-03-04T05:06:07.000008Z"]'],
    ],
)
def test_the_command_line_shows_far_times(root: Path, command: list[str]) -> None:
    for options in ([], ["--json"]):
        ran = CliRunner().invoke(
            app, [*(part.replace("{}", str(root)) for part in command), *options]
        )
        assert ran.exit_code in (0, 1), ran.output
        assert "+12000-03-04" in ran.output
        assert not options or json.loads(ran.output)


def test_live_state_shows_far_times(root: Path) -> None:
    state = holdfast.read(root)
    assert state.get(FAR) == (FAR_DAY, 2)
    assert int(FAR.astype(np.int64)) in state.to_arrow().column("at").cast(pa.int64()).to_pylist()
    frame = state.to_pandas().set_index("n")
    assert frame.loc[2, "day"] == FAR_DAY
    assert frame.loc[1, "day"] == NEAR.date()
    assert str(frame.loc[2, "at"]).startswith("12000-03-04 05:06:07.000008")


def test_figures_hold_a_watermark_after_the_year_9999() -> None:
    metrics = QueryMetrics()
    progress = {
        "version": 1, "isTick": False, "numInputRows": 1, "inputRowsPerSecond": 1.0,
        "durationMs": {"triggerExecution": 1, "commit": 1}, "stateOperators": [],
        "eventTime": {"watermark": "+10000-01-01T00:00:00.000Z"},
    }  # fmt: skip
    metrics.add(progress)
    assert 'holdfast_watermark_seconds{query=""} 253402300800\n' in metrics_text([metrics])
