"""Tasks on a cluster go where their state is, also when an executor is lost."""

from __future__ import annotations

import base64
import json
import os
import random
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast
from servers import SparkCluster

pytestmark = pytest.mark.services
BATCHES, KILL_AFTER, PARTITIONS = 8, 3, 4


def _write_files(folder: Path, seed: int) -> list[list[list[int]]]:
    """Random rows, one file a batch; what an update of the totals gives out after each."""
    folder.mkdir()
    rnd = random.Random(seed)
    totals: Counter[int] = Counter()
    updates = []
    for number in range(BATCHES):
        users = [rnd.randrange(50) for _ in range(200)]
        cells = [rnd.randrange(1, 100) for _ in users]
        pq.write_table(pa.table({"user": users, "v": cells}), folder / f"{number}.parquet")
        for user, cell in zip(users, cells, strict=True):
            totals[user] += cell
        updates.append(sorted([user, totals[user]] for user in set(users)))
    return updates


def _run(folder: Path, master: str, *how: object) -> list[dict[str, Any]]:
    """Run the application, check what came out and what is kept, and return its report."""
    folder.mkdir()
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    updates = _write_files(folder / "files", seed)
    script = Path(__file__).parents[1] / "support" / "services" / "located_app.py"
    command = [sys.executable, script, folder, master, *how]
    ended = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert f"done {BATCHES}" in ended.stdout
    versions: list[dict[str, Any]] = json.loads((folder / "report.json").read_text())
    assert [version["rows"] for version in versions] == updates
    with holdfast.open(folder / "cp" / "holdfast") as db:
        kept = sorted(zip(*db.at(BATCHES).scan().to_pydict().values(), strict=True))
    newest = {user: total for update in updates for user, total in update}
    assert kept == sorted(newest.items())
    return versions


def _executors(version: dict[str, Any]) -> list[str]:
    return [f"executor_{ran['host']}_{ran['executor']}" for ran in version["ran"]]


def _secrets(folder: Path) -> set[bytes]:
    """Every form the secret of a run might be written in."""
    secret = (folder / "secret").read_bytes()
    (folder / "secret").unlink()
    assert len(secret) == 32
    encoded = base64.b64encode(secret)
    return {secret, secret.hex().encode(), encoded.rstrip(b"="), repr(secret)[2:-1].encode()}


def _bytes_below(*folders: Path) -> bytes:
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return b"\n".join(path.read_bytes() for path in files)


def test_tasks_go_where_their_state_is_and_on_when_an_executor_is_lost(
    tmp_path: Path, cluster: SparkCluster
) -> None:
    versions = _run(tmp_path / "on", cluster.url, "on", BATCHES, KILL_AFTER)
    assert versions[0]["asked"] == [[]] * PARTITIONS, "nobody holds anything at first"
    for before, version in pairwise(versions[:KILL_AFTER]):
        held = _executors(before)
        assert len(set(held)) == 2, "two executors take part"
        assert version["asked"] == [[place] for place in held]
        assert version["told"] == held
        assert _executors(version) == held

    lost = versions[KILL_AFTER - 1]["ran"][0]["executor"]
    after = versions[KILL_AFTER:]
    assert all(ran["executor"] != lost for version in after for ran in version["ran"])
    last = versions[-1]
    assert len(set(_executors(last))) == 2, "the executor in its place takes part, too"
    assert last["told"] == _executors(last)
    for ran in last["ran"]:
        own = [p for p, other in enumerate(last["ran"]) if other["executor"] == ran["executor"]]
        assert set(ran["held"]) <= set(own), "what moved on was unloaded"
    merged = json.loads((tmp_path / "on" / "maintained.json").read_text())
    assert {int(partition): executor for partition, executor in merged.items()} == {
        partition: ran["executor"] for partition, ran in enumerate(last["ran"])
    }, "a snapshot is written where the partition is held"

    forms = _secrets(tmp_path / "on")
    written = _bytes_below(tmp_path, cluster.master.folder)
    assert b"Registered StateStoreCoordinator endpoint" in written
    assert not [form for form in forms if form in written]
    assert os.fsencode(str(tmp_path)) in (tmp_path / "on" / "processes").read_bytes()


def test_rows_are_the_same_with_locality_off(tmp_path: Path) -> None:
    versions = _run(tmp_path / "off", "local-cluster[2,1,1024]", "off", BATCHES)
    assert all(version["told"] == [] for version in versions)
    assert len({ran["jvm"] for version in versions for ran in version["ran"]}) == 2


# Counts rows with state in a folder that is another one in each process.
SCATTERED = """
import sys
from pyspark.sql import SparkSession
from holdfast import stateful

folder, master = sys.argv[1:]
spark = (
    SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.executor.memory", "512m").config("spark.sql.shuffle.partitions", "2")
    .config("spark.task.maxFailures", "1")
    .getOrCreate()
)
rows = spark.readStream.schema("user long").parquet(folder + "/files")
query = (
    stateful(rows).groupBy("user").count().writeStream.outputMode("update").format("noop")
    .option("checkpointLocation", folder + "/cp").option("stateLocation", "/proc/self/cwd/state")
    .trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def test_hosts_with_disks_of_their_own_are_refused(cluster: SparkCluster, tmp_path: Path) -> None:
    _write_files(tmp_path / "files", seed=0)
    done = subprocess.run(
        [sys.executable, "-c", SCATTERED, str(tmp_path), cluster.url],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode != 0
    assert "is not the folder that the driver writes to" in done.stderr
    with holdfast.open(tmp_path / "state") as db:
        assert db.version == 0
