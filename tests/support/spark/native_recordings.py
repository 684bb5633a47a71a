"""Spark's own side of a test: run, or replayed from what it gave before.

One file for each test module, under `recorded_native`, holds the output of every query that the
module's tests run in Spark's own streaming. `make recordings` writes them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from native import in_order, outputs_of, source_of
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import types as T

RECORDED_NATIVE = Path(__file__).parents[2] / "spark" / "recorded_native"
RECORD = "HOLDFAST_RECORD"
"""The environment variable that has tests run Spark's own side and record it."""
Outputs = list[list[Row]]


class NativeRuns:
    """The queries that one test runs in Spark's own streaming, in their order.

    They are replayed from the test's recording. They run when `live` is set, when tests are
    recorded, and on another Spark than the recorded one. A recording that is missing, or was made
    from another query or other rows, fails the test.
    """

    def __init__(self, spark: SparkSession, path: Path, test: str, *, live: bool = False) -> None:
        self.spark = spark
        self._path, self._test = path, test
        self._recording = not live and bool(os.environ.get(RECORD))
        self._recorded = [] if live or self._recording else self._load()
        self.live = live or (not self._recording and self._recorded is None)
        """Whether the queries run and nothing is recorded: input may be random then."""
        self._runs: list[dict[str, Any]] = []

    def run(
        self, folder: Path, checkpoint: Path, pipeline: Callable[[Any], Any], mode: str
    ) -> list[list[tuple[Any, ...]]]:
        """The output of every batch of a pipeline, as `native.run` gives it of ours."""
        frame = pipeline(source_of(self.spark, folder))
        return in_order(self.outputs(frame, checkpoint, mode, folder))

    def outputs(self, frame: DataFrame, checkpoint: Path, mode: str, *folders: Path) -> Outputs:
        """The output of every batch that had one, from one start of the query to its end.

        The rows of a recorded batch are in no order. `folders` are those that the query reads. A
        query that is replayed leaves no checkpoint.
        """
        if self.live:
            return outputs_of(frame, checkpoint, mode)
        run = {"mode": mode, "input": _rows_digest(folders), "query": _query_digest(frame),
               "schema": frame.schema.simpleString()}  # fmt: skip
        if self._recording:
            found = outputs_of(frame, checkpoint, mode)
            outputs = [
                sorted((encoded(row, frame.schema) for row in rows), key=_text) for rows in found
            ]
            self._runs.append({**run, "outputs": outputs})
        else:
            outputs = self._replayed(run)
        return [[decoded(row, frame.schema) for row in rows] for rows in outputs]

    def save(self) -> None:
        """Write what the test recorded, if it did, beside what its module's others did."""
        if not self._recording or not self._runs:
            return
        tests = json.loads(self._path.read_text())["tests"] if self._path.exists() else {}
        tests[self._test] = {"spark": self.spark.version, "runs": self._runs}
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(_file(tests))

    def _load(self) -> list[dict[str, Any]] | None:
        """The recorded runs of the test; None if another Spark gave them."""
        tests = json.loads(self._path.read_text())["tests"] if self._path.exists() else {}
        found = tests.get(self._test, {"spark": self.spark.version, "runs": []})
        return found["runs"] if found["spark"] == self.spark.version else None

    def _replayed(self, run: dict[str, Any]) -> list[list[Any]]:
        assert self._recorded is not None
        number = len(self._runs)
        self._runs.append(run)
        where = f"Run {number} of {self._test} in Spark's own streaming"
        again = "Run `make recordings ARGS=--tests`."
        assert number < len(self._recorded), f"{where} is not recorded. {again}"
        recorded = self._recorded[number]
        for part, now in run.items():
            assert recorded[part] == now, f"{where} was recorded with another {part}. {again}"
        outputs: list[list[Any]] = recorded["outputs"]
        return outputs


# -- fingerprints --------------------------------------------------------------------------------


def _rows_digest(folders: tuple[Path, ...]) -> str:
    """A digest of the rows in all files of some folders, by value, as Spark takes the files."""
    digest = hashlib.sha256()
    for folder in folders:
        files = {path.stat().st_mtime_ns // 1_000_000: path for path in folder.glob("*.parquet")}
        assert len(files) == len(list(folder.glob("*.parquet"))), (
            f"Files of {folder.name} have the same time: Spark takes them in no order."
        )
        for _, path in sorted(files.items()):
            table = pq.read_table(path)
            digest.update(f"{path.name} {table.schema} {table.to_pylist()!r}".encode())
    return digest.hexdigest()[:16]


def _query_digest(frame: DataFrame) -> str:
    """A digest of the analysed plan, without what is another in each session."""
    plan = frame._jdf.queryExecution().analyzed().toString()
    plan = re.sub(r"FileSource\[.*?\]", "FileSource", plan)
    plan = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "", plan)
    plan = re.sub(r"\brand\(-?\d+\)", "rand()", plan)
    numbers: dict[str, str] = {}
    plan = re.sub(r"#\d+", lambda found: numbers.setdefault(found[0], f"#{len(numbers)}"), plan)
    return hashlib.sha256(plan.encode()).hexdigest()[:16]


# -- cells ---------------------------------------------------------------------------------------


def encoded(cell: Any, kind: T.DataType) -> Any:
    """A cell as JSON: times in UTC, structs as lists."""
    if cell is None:
        return None
    if isinstance(kind, T.StructType):
        return [encoded(part, f.dataType) for part, f in zip(cell, kind.fields, strict=True)]
    if isinstance(kind, T.ArrayType):
        return [encoded(part, kind.elementType) for part in cell]
    if isinstance(kind, T.TimestampType):  # Spark gives them in the zone of this process
        return cell.astimezone(UTC).replace(tzinfo=None).isoformat(" ")
    if isinstance(kind, T.TimestampNTZType):
        return cell.isoformat(" ")
    if isinstance(kind, (T.DateType, T.DecimalType)):
        return str(cell)
    if isinstance(kind, T.BinaryType):
        return cell.hex()
    if isinstance(cell, float):
        return cell if math.isfinite(cell) else str(cell)
    assert isinstance(cell, (str, int)), f"A {kind.simpleString()} cannot be recorded yet."
    return cell


def decoded(cell: Any, kind: T.DataType) -> Any:
    """What `encoded` made JSON of, as Spark gives it."""
    if cell is None:
        return None
    if isinstance(kind, T.StructType):
        parts = (decoded(part, f.dataType) for part, f in zip(cell, kind.fields, strict=True))
        return Row(*kind.names)(*parts)
    if isinstance(kind, T.ArrayType):
        return [decoded(part, kind.elementType) for part in cell]
    if isinstance(kind, T.TimestampType):
        at = datetime.fromisoformat(cell).replace(tzinfo=UTC)
        return at.astimezone().replace(tzinfo=None)
    if isinstance(kind, T.TimestampNTZType):
        return datetime.fromisoformat(cell)
    if isinstance(kind, T.DateType):
        return date.fromisoformat(cell)
    if isinstance(kind, T.DecimalType):
        return Decimal(cell)
    if isinstance(kind, T.BinaryType):
        return bytearray.fromhex(cell)
    return float(cell) if isinstance(kind, (T.DoubleType, T.FloatType)) else cell


# -- files ---------------------------------------------------------------------------------------


def _file(tests: dict[str, Any]) -> str:
    """The text of a file: tests by name, a batch a line."""
    parts = []
    for test, body in sorted(tests.items()):
        runs = []
        for run in body["runs"]:
            head = "".join(f"{_text(k)}: {_text(v)}, " for k, v in run.items() if k != "outputs")
            batches = ",\n".join(map(_text, run["outputs"]))
            runs.append(f'{{{head}"outputs": [\n{batches}\n]}}')
        spark = _text(body["spark"])
        parts.append(f'{_text(test)}: {{"spark": {spark}, "runs": [\n' + ",\n".join(runs) + "\n]}")
    return '{"script": "tests/spark/record_native.py", "tests": {\n' + ",\n".join(parts) + "\n}}\n"


def _text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
