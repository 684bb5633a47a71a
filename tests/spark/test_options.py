"""Settings as options of a stream's writer: for one query, before those of the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, write_batches
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from holdfast import stateful
from holdfast.errors import InvalidArgument

pytestmark = pytest.mark.spark
ZSTD_FRAME = b"\x28\xb5\x2f\xfd"
"""How what zstd has compressed begins."""


def _writer(spark: SparkSession, folder: Path, checkpoint: str, **options: Any) -> Any:
    stream = stateful(spark.readStream.schema(SCHEMA).parquet(str(folder / "in")))
    counted = stream.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute")).count()
    writer = counted.writeStream.format("noop").trigger(availableNow=True)
    return writer.options(checkpointLocation=str(folder / checkpoint), **options)


def _files(folder: Path, writer: Any) -> set[str]:
    """The kinds of files that a query's state is made of."""
    writer.start().awaitTermination()
    return {path.relative_to(folder).parts[0] for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def no_packs(spark: SparkSession) -> Iterator[None]:
    """The session says that deltas are files of their own."""
    spark.conf.set("spark.holdfast.packThreshold", "0")
    yield
    spark.conf.unset("spark.holdfast.packThreshold")


@pytest.mark.usefixtures("no_packs")
def test_an_option_goes_before_the_sessions_setting_for_its_query_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=3, batches=1)
    for checkpoint, options, has_packs in [
        ("short", {"packthreshold": "1m", "locality": "off"}, True),
        ("whole", {"spark.holdfast.packThreshold": "1m"}, True),
        ("other", {"packThreshold_": "1m", "somebodys": "y"}, False),
    ]:
        state = tmp_path / checkpoint / "holdfast"
        made = _files(state, _writer(spark, tmp_path, checkpoint, **options))
        assert ("packs" in made) == has_packs, checkpoint


def test_the_compression_of_a_sink_is_not_that_of_the_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=4, batches=1)
    options = {"compression": "gzip", "spark.holdfast.compression": "zstd", "packThreshold": "0"}
    writer = _writer(spark, tmp_path, "cp", **options).format("parquet")
    writer.start(str(tmp_path / "out")).awaitTermination()
    names = [path.name for path in (tmp_path / "out").glob("*.parquet")]
    assert names
    assert all(name.endswith(".gz.parquet") for name in names)
    segments = [p for p in (tmp_path / "cp" / "holdfast" / "0").rglob("*") if p.is_file()]
    assert any(ZSTD_FRAME in path.read_bytes() for path in segments)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("spark.holdfast.packTreshold", "1m", r"packTreshold.*spark\.holdfast\.packThreshold"),
        ("mergeFanout", "many", "spark.holdfast.mergeFanout"),
        ("LOCALITY", "perhaps", "spark.holdfast.locality"),
        ("view.user", "me", "view.user has no effect without the option view"),
    ],
)
def test_what_cannot_be_an_option_is_refused_by_name(
    spark: SparkSession, tmp_path: Path, name: str, value: str, told: str
) -> None:
    (tmp_path / "in").mkdir()
    with pytest.raises(InvalidArgument, match=told):
        _writer(spark, tmp_path, "cp", **{name: value}).start()
    if name != "view.user":
        plain = stateful(spark.readStream.format("rate").load()).writeStream.format("noop")
        with pytest.raises(InvalidArgument, match=told):
            plain.option(name, value).start()
