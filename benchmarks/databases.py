"""State in databases: roots next to the file backend, views next to one statement for each key.

    python benchmarks/databases.py [--keys 10000] [--batches 5]

The servers are started here, of one node each, on this machine and with their data in its memory:
the figures are local ones, and only their ratios mean something elsewhere. Every batch changes so
many keys. Ways are measured in turn, batch by batch; a figure is the median of the batches.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.append(str(Path(__file__).parents[1] / "dev"))

import holdfast
from harness import Report, timed
from holdfast.types import parse_schema
from holdfast.views import View, ViewSchema, ViewSpec, open_view
from holdfast.views.dynamodb.types import attribute
from holdfast.views.view import ViewProgress
from servers import Cassandra, DynamoDb

KEY, VALUE = "user string", "total long, mean double"
SCHEMA = ViewSchema(parse_schema(KEY), parse_schema(VALUE))
ROOTS = {"file": "a root in a folder", "cassandra": "a Cassandra root",
         "dynamodb": "a DynamoDB root"}  # fmt: skip
Batch = Callable[[int], None]
"""Writes the rows of a version."""


def rows_of(keys: int, version: int) -> pa.Table:
    """The rows of a batch: the same keys each time, with other values."""
    return pa.table(
        {
            "user": [f"user {number:08}" for number in range(keys)],
            "total": pa.array([number + version for number in range(keys)], pa.int64()),
            "mean": pa.array([(number + version) / 7 for number in range(keys)], pa.float64()),
        }
    )


def medians(ways: dict[str, Batch], batches: int) -> dict[str, float]:
    """By way the median seconds of a batch, after one that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for version in range(1, batches + 2):
        for name, way in ways.items():
            seconds[name].append(timed(lambda way=way, version=version: way(version)))
    return {name: statistics.median(each[1:]) for name, each in seconds.items()}


def naive_cassandra(node: Cassandra, table: str, keys: int) -> Batch:
    """One prepared statement after the other, each waited for."""
    session = node.cluster().connect("state")
    insert = session.prepare(
        f'INSERT INTO {table} (user, total, mean, "_version") VALUES (?, ?, ?, ?) USING TIMESTAMP ?'
    )

    def write(version: int) -> None:
        for row in rows_of(keys, version).to_pylist():
            session.execute(insert, (row["user"], row["total"], row["mean"], version, version))

    return write


def naive_dynamodb(server: DynamoDb, table: str, keys: int) -> Batch:
    """One conditional put after the other."""
    client: Any = server.client()
    encoders = {f.name: attribute(f.type).encode for f in (*SCHEMA.keys, *SCHEMA.values)}

    def write(version: int) -> None:
        number = {"N": str(version)}
        for row in rows_of(keys, version).to_pylist():
            cells = {name: encode(row[name]) for name, encode in encoders.items() if encode}
            client.put_item(
                TableName=table,
                Item={**cells, "_version": number},
                ConditionExpression="attribute_not_exists(#v) OR #v < :v",
                ExpressionAttributeNames={"#v": "_version"},
                ExpressionAttributeValues={":v": number},
            )

    return write


def view_at(location: str, options: dict[str, str]) -> View:
    view = open_view(ViewSpec(location, SCHEMA, options))
    view.prepare("benchmark", "benchmark")
    return view


def view_writer(view: View, keys: int) -> Batch:
    standing = view.standing()

    def write(version: int) -> None:
        nonlocal standing
        view.apply(version, rows_of(keys, version), None, has_encoded=False)
        standing = view.note(standing, ViewProgress(version))

    return write


def measure_views(
    report: Report, node: Cassandra, server: DynamoDb, keys: int, batches: int
) -> None:
    places = {
        "Cassandra": (f"cassandra://{node.address}/state/%s", node.options, naive_cassandra, node),
        "DynamoDB": (f"dynamodb://{server.region}/%s", server.options, naive_dynamodb, server),
    }
    for name, (location, options, naive, database) in places.items():
        view = view_at(location % "view", options)
        view_at(location % "naive", options)
        found = medians(
            {"view": view_writer(view, keys), "naive": naive(database, "naive", keys)}, batches
        )
        what = f"{keys:,} changed keys a batch"
        report.add(f"{name}: a view", keys / found["view"], "rows/s", note=what)
        report.add(f"{name}: one statement at a time", keys / found["naive"], "rows/s")
        bar = 3 if name == "Cassandra" else None
        ratio = found["naive"] / found["view"]
        report.add(f"{name}: a view against that", ratio, "times", at_least=bar)


def root_writer(location: str, options: dict[str, str], keys: int) -> tuple[Any, Batch]:
    db = holdfast.open(location, key=KEY, value=VALUE, options=options)

    def write(version: int) -> None:
        with db.update() as store:
            store.put_many(rows_of(keys, version))

    return db, write


def measure_roots(
    report: Report, folder: Path, node: Cassandra, server: DynamoDb, keys: int, batches: int
) -> None:
    places: dict[str, tuple[str, dict[str, str]]] = {
        "file": (str(folder / "root"), {}),
        "cassandra": (f"cassandra://{node.address}/state/root", node.options),
        "dynamodb": (f"dynamodb://{server.region}/root", server.options),
    }
    with ExitStack() as stack:
        ways = {}
        for name, (location, options) in places.items():
            db, ways[name] = root_writer(location, options, keys)
            stack.enter_context(db)
        found = medians(ways, batches)
    for name, seconds in found.items():
        report.add(f"commit to {ROOTS[name]}", seconds * 1000, "ms", note=f"{keys:,} keys")
    for name in ("cassandra", "dynamodb"):
        report.add(f"{ROOTS[name]} against a folder", found[name] / found["file"], "times")


@contextmanager
def quick_folder() -> Iterator[Path]:
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as name:
        yield Path(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--only", choices=("views", "roots"))
    parser.add_argument("--dry", action="store_true", help="write no results")
    given = parser.parse_args()
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    report = Report("State in databases: local figures, servers on the same machine")
    with quick_folder() as folder:
        cassandra, dynamodb = Cassandra(folder / "cassandra"), DynamoDb(folder / "dynamodb")
        with cassandra as node, dynamodb as server:
            node.create_keyspace("state")
            if given.only != "roots":
                measure_views(report, node, server, given.keys, given.batches)
            if given.only != "views":
                measure_roots(report, folder, node, server, given.keys, given.batches)
    if not given.dry:
        report.write("databases")
    sys.exit(0 if report.all_hold else 1)


if __name__ == "__main__":
    main()
