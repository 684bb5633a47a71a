"""approx_count_distinct gives what Spark gives, to the digit, also of state with sketches."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import holdfast
import make_golden_sketches as made
from holdfast.streams.aggregates import hll
from holdfast.streams.aggregates.parts import LONG, FunctionCall, Parts, distinct_estimate
from holdfast.streams.aggregates.registers import header, merged

pytestmark = pytest.mark.spark
GOLDEN = Path(__file__).parent / "golden_sketches"
_SIZES = (0, 1, 7, 40, 300, 700, 1500, 2600, 6000, 30_000)


@pytest.mark.any_spark
@pytest.mark.parametrize("rsd", [0.39, 0.2, 0.05, 0.02, 0.007])
def test_estimates_of_all_sizes_are_those_of_spark(spark: SparkSession, rsd: float) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    precision = hll.precision_of(rsd)
    rows = spark.range(sum(_SIZES)).select(
        F.expr(
            " ".join(
                [
                    "CASE",
                    *(f"WHEN id < {sum(_SIZES[: at + 1])} THEN {at}" for at in range(len(_SIZES))),
                    "END",
                ]
            )
        ).alias("size"),
        F.expr(f"id * 31 + {seed}").alias("v"),
    )
    registers = _parts(rsd).partials[1].batch.replace("x1", "v")
    found = (
        rows.groupBy("size")
        .agg(F.approx_count_distinct("v", rsd).alias("spark"), F.expr(registers).alias("cell"))
        .toArrow()
    )
    cells = found.column("cell").combine_chunks()
    _, estimates = merged(pa.array([header(precision)] * len(cells)), cells)
    assert estimates.to_pylist() == found.column("spark").to_pylist()


def _parts(rsd: float) -> Parts:
    return distinct_estimate(FunctionCall("f", (LONG,), rsd))


@pytest.mark.any_spark
def test_what_is_measured_of_the_bias_is_what_spark_has(spark: SparkSession) -> None:
    name = "org.apache.spark.sql.catalyst.util.HyperLogLogPlusPlusHelper$"
    jvm = spark._jvm
    assert jvm is not None
    helper = jvm.java.lang.Class.forName(name).getField("MODULE$").get(None)
    ours = hll._corrections()
    assert [c.threshold for c in ours] == list(helper.THRESHOLDS())
    assert [c.raw.tolist() for c in ours] == [list(row) for row in helper.RAW_ESTIMATE_DATA()]
    assert [c.biases.tolist() for c in ours] == [list(row) for row in helper.BIAS_DATA()]


@pytest.mark.any_spark
def test_a_batch_brings_no_more_than_registers_have_ranks(spark: SparkSession) -> None:
    batch = _parts(0.2).partials[1].batch.replace("x1", "id")
    (row,) = spark.range(200_000).agg(F.expr(batch).alias("cell")).collect()
    pairs = np.frombuffer(row.cell[2:], ">u4")
    assert len(set(pairs >> 6)) == 32
    assert len(pairs) <= 32 * 20


def test_state_with_sketches_is_rewritten_once_and_gives_what_spark_gives(
    spark: SparkSession, tmp_path: Path
) -> None:
    given: dict[int, list[Any]] = {}
    shutil.copytree(GOLDEN / "cp", tmp_path / "cp")
    for number in range(3):
        made.write(tmp_path / "in", number)
    for log in (tmp_path / "cp" / "sources" / "0").iterdir():
        log.write_text(log.read_text().replace(made.INPUT, f"file://{tmp_path}/in"))
    made.start(spark, tmp_path / "in", tmp_path / "cp", given).awaitTermination()
    wanted = made.counted(spark.read.schema(made.SCHEMA).parquet(str(tmp_path / "in")))
    assert given[max(given)] == _sorted(wanted)
    versions = len(holdfast.read(str(tmp_path / "cp")).history())
    made.write(tmp_path / "in", 3)
    made.start(spark, tmp_path / "in", tmp_path / "cp", given).awaitTermination()
    wanted = made.counted(spark.read.schema(made.SCHEMA).parquet(str(tmp_path / "in")))
    assert given[max(given)] == _sorted(wanted)
    assert len(holdfast.read(str(tmp_path / "cp")).history()) == versions + 1


def test_the_golden_state_has_sketches_of_both_forms() -> None:
    state = holdfast.read(str(GOLDEN / "cp"))
    forms = {row["n_sketch"][0] for row in state.to_arrow().to_pylist()}
    assert forms == {0, 1}
    assert json.loads((GOLDEN / "expected.json").read_text())["given"]


def _sorted(frame: DataFrame) -> list[Any]:
    return sorted(map(list, frame.collect()))
