"""Record what Spark's own queries write into their checkpoints, for tests without Spark.

    python tests/contracts/record_checkpoints.py

Rewrites `checkpoints.json` beside this script: by Spark's version and kind of query, the files of
the checkpoint with their text. Recordings of other versions stay.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

TARGET = Path(__file__).with_name("checkpoints.json")
_SQL = "spark.sql.streaming"
_STATES = f"{_SQL}.stateStore"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
_LOG_2 = {f"{_SQL}.offsetLog.formatVersion": "2"}


def _kept(folder: Path) -> dict[str, str]:
    """The files that checkpoints are read by, and one of the state."""
    patterns = ("metadata", "offsets/[0-9]*", "commits/[0-9]*", "state/0/_metadata/metadata")
    found = sorted(path for pattern in patterns for path in folder.glob(pattern))
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def main() -> None:
    """Run each query over two files, a batch each."""
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    work = Path(tempfile.mkdtemp())
    (work / "in").mkdir()
    for number in (0, 1):
        (work / "in" / f"{number}.json").write_text(f'{{"k": {number}}}\n')

    def source(name: str | None, kind: str) -> DataFrame:
        reader = session.readStream if name is None else session.readStream.name(name)
        if kind == "rate":
            rows = reader.format("rate-micro-batch").option("rowsPerBatch", 2).load()
            return rows.select(F.col("value").alias("k"))
        return reader.schema("k long").option("maxFilesPerTrigger", 1).json(str(work / "in"))

    def run(kind: str, frame: DataFrame) -> dict[str, str]:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(work / kind))
        writer.trigger(availableNow=True).start().awaitTermination()
        return _kept(work / kind)

    made = {"one source": run("one", source(None, "file"))}
    made["two sources"] = run("two", source(None, "file").union(source(None, "rate")))
    made["stateful"] = run("stateful", source(None, "file").dropDuplicates(["k"]))
    session.conf.set(f"{_STATES}.providerClass", _ROCKSDB)
    session.conf.set(f"{_STATES}.checkpointFormatVersion", "2")
    made["stateful, commit log 2"] = run("ids", source(None, "file").dropDuplicates(["k"]))
    for name, value in _LOG_2.items():
        session.conf.set(name, value)
    made["offset log 2"] = run("log", source(None, "file").union(source(None, "rate")))
    session.conf.set(f"{_SQL}.queryEvolution.enableSourceEvolution", "true")
    named = source("first", "file").union(source("second", "rate"))
    made["offset log 2, named"] = run("named", named)
    recorded = json.loads(TARGET.read_text()) if TARGET.exists() else {}
    recorded[session.version] = made
    TARGET.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
