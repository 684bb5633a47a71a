"""Streams and databases that are killed: a reader of the view sees committed values, and no other.

A real driver process, its JVM and its workers get SIGKILL, and the database too, while a batch is
under way; another process reads users' totals by plain CQL or GetItem all the time.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from file_batches import files_taken
from pyspark.sql import SparkSession
from streams_with_views import Stream, processed
from view_databases import InCassandra, InDynamoDb, ViewDatabase

import holdfast
from holdfast.spark.view import StreamView, ViewedStore
from holdfast.views import ChangeCounts
from servers import Cassandra, DynamoDb

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = ROOT / "tests" / "support" / "services"
PHASES = ("view", "commit", "noted", "compute")
USERS = ["Sankar", "Jade", "Kun", *(f"user{number}" for number in range(60))]
READ = USERS[:15]
"""Whom the reader asks for, again and again."""
SEEDS = [("Sankar", 200), ("Jade", 800), ("Sankar", 300), ("Kun", 100)]
"""The worked example, one transaction a batch."""
Totals = dict[str, int]


def _write_files(folder: Path, rnd: random.Random, count: int) -> list[Totals]:
    """The files of a stream; the totals after each number of them."""
    folder.mkdir()
    totals: list[Totals] = [{}]
    for number in range(count):
        rows = (
            SEEDS[number : number + 1]
            if number < len(SEEDS)
            else [(rnd.choice(USERS), rnd.randrange(1, 100)) for _ in range(80)]
        )
        after = dict(totals[-1])
        for user, amount in rows:
            after[user] = after.get(user, 0) + amount
        totals.append(after)
        lines = [json.dumps({"user": user, "shopping": amount}) + "\n" for user, amount in rows]
        path = folder / f"{number:04}.json"
        path.write_text("".join(lines))
        os.utime(path, (number + 1000, number + 1000))
    return totals


class Driver:
    """The stream's process."""

    def __init__(self, folder: Path, database: ViewDatabase, table: str) -> None:
        script, log = PROGRAMS / "driver_with_view.py", (folder / "driver.log").open("a")
        paths = [str(EXAMPLES), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        with log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    str(script),
                    str(folder),
                    database.location(table),
                    json.dumps(database.options),
                ],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.said = "start"

    def until(self, phase: str, times: int) -> bool:
        """Whether it came to a phase so many times; not if it ended before."""
        assert self._process.stdout is not None
        while times:
            line = self._process.stdout.readline().strip()
            if not line:
                return False
            self.said = line
            times -= line == f"phase {phase}"
        return True

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def finish(self, folder: Path) -> None:
        said, _ = self._process.communicate(timeout=400)
        assert self._process.returncode == 0, (folder / "driver.log").read_text()[-3000:]
        assert said.splitlines()[-1].startswith("done")


@pytest.fixture(params=["cassandra", "dynamodb"])
def server(request: pytest.FixtureRequest) -> Cassandra | DynamoDb:
    """Each database that has views."""
    found: Cassandra | DynamoDb = request.getfixturevalue(request.param)
    return found


def _views_in(server: Cassandra | DynamoDb) -> InCassandra | InDynamoDb:
    return InCassandra(server) if isinstance(server, Cassandra) else InDynamoDb(server)


@contextmanager
def _reader(database: ViewDatabase, table: str, path: Path) -> Iterator[None]:
    if isinstance(database, InCassandra):
        address = database.node.address
    else:
        assert isinstance(database, InDynamoDb)
        address = database.server.url
    reader = subprocess.Popen(
        [
            sys.executable,
            str(PROGRAMS / "view_reader.py"),
            address,
            table,
            ",".join(READ),
            str(path),
        ]
    )
    try:
        yield
    finally:
        reader.terminate()
        reader.wait()


def _kill_again_and_again(folder: Path, server: Cassandra | DynamoDb, rounds: int) -> None:
    """In each round the database is killed in a batch and started again, then the stream is."""
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    database = _views_in(server)
    table = database.table("kills")
    totals = _write_files(folder / "in", rnd, count=len(SEEDS) + 2 * rounds + 6)
    reads = folder / "reads.jsonl"
    with _reader(database, table, reads):
        for number in range(rounds):
            driver = Driver(folder, database, table)
            try:
                assert driver.until("view", rnd.randrange(1, 3)), driver.said
                time.sleep(rnd.uniform(0, 0.1))
                server.kill()
                server.start()
                phase = PHASES[number % len(PHASES)]
                driver.until(phase, 1)
                time.sleep(rnd.uniform(0, 0.12))
            finally:
                driver.kill()
            print(f"round {number}: the database in a batch, the stream after {driver.said!r}")
            assert not driver.said.startswith("done"), "the files ran out before the kills did"
        Driver(folder, database, table).finish(folder)
        time.sleep(1)
    # Each batch is a version; there are no others.
    taken = [0, *files_taken(folder / "cp")]
    _check_reads(reads, [totals[count] for count in taken])
    found = {user: total for user, (total, _) in database.totals(table).items()}
    database.close()
    assert found == totals[-1]


def _check_reads(path: Path, totals: list[Totals]) -> None:
    """Each value was its key's in that version, as `totals` has them, and no key went back."""
    newest: dict[str, int] = defaultdict(int)
    lines = path.read_text().splitlines()
    seen = set()
    for line in lines:
        user, total, version = json.loads(line)
        assert total == totals[version][user], (user, version)
        assert version >= newest[user], (user, version, newest[user])
        newest[user] = version
        seen.add((user, version))
    print(f"{len(lines)} reads, {len(seen)} different rows, up to version {max(newest.values())}")
    assert len(seen) > 3 * len(READ)


@pytest.mark.services
@pytest.mark.timeout(1500)
def test_a_reader_sees_only_committed_totals_while_stream_and_database_are_killed(
    server: Cassandra | DynamoDb, tmp_path: Path
) -> None:
    _kill_again_and_again(tmp_path, server, rounds=4)


@pytest.mark.soak
def test_twenty_kills_show_a_reader_nothing_but_committed_totals(
    server: Cassandra | DynamoDb, tmp_path: Path
) -> None:
    _kill_again_and_again(tmp_path, server, rounds=20)


@pytest.mark.services
def test_a_database_that_goes_down_in_mid_stream_stops_it_and_the_next_start_goes_on(
    server: Cassandra | DynamoDb,
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    database, killed = _views_in(server), []
    stream, by_tasks = Stream(spark, tmp_path, database), StreamView._by_tasks
    stream.add(("a", 1), ("b", 2))
    stream.add(("a", 5))
    stream.add(("b", 5))

    def killing(self: StreamView, shown: ViewedStore) -> list[ChangeCounts]:
        if shown.step.version == 2:
            server.kill()
            killed.append(shown.step.version)
        return by_tasks(self, shown)

    monkeypatch.setattr(StreamView, "_by_tasks", killing)
    spark.conf.set("spark.holdfast.retryTimeout", "500ms")
    try:
        with pytest.raises(Exception, match="Nothing is lost: try again when"):
            stream.run(processed)
    finally:
        monkeypatch.undo()
        spark.conf.unset("spark.holdfast.retryTimeout")
        if killed:
            server.start()
    columns = "user string, total long, _version long"
    assert killed == [2]
    assert holdfast.read(tmp_path / "cp", store="total").version == 2
    assert stream.rows(columns) == [("a", 1, 1), ("b", 2, 1)]
    stream.run(processed)
    assert stream.rows(columns) == [("a", 6, 2), ("b", 7, 3)]
    database.close()
