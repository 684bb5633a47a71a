"""The example of a service: it serves users' totals over HTTP while the stream goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from view_databases import InCassandra, InDynamoDb, ViewDatabase

import shopping_totals
from servers import Cassandra

pytestmark = pytest.mark.services
SERVICE = Path(__file__).parents[2] / "examples" / "totals_service.py"


def _with_two_hosts(view: str) -> str:
    return view.replace("cassandra://127.0.0.1:", "cassandra://127.0.0.1,127.0.0.1:")


@contextmanager
def _service(database: ViewDatabase, table: str) -> Iterator[str]:
    environment = dict(os.environ)
    if isinstance(database, InDynamoDb):
        environment["AWS_ENDPOINT_URL"] = database.server.url
        environment["AWS_ACCESS_KEY_ID"] = environment["AWS_SECRET_ACCESS_KEY"] = "any"
    service = subprocess.Popen(
        [sys.executable, str(SERVICE), _with_two_hosts(database.location(table)), "0"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stdout is not None
        yield service.stdout.readline().strip().removesuffix("USER")
    finally:
        service.terminate()
        service.communicate()


def _total(url: str, user: str) -> tuple[int, int] | None:
    try:
        with urlopen(url + user) as answer:
            found = json.load(answer)
    except HTTPError as error:
        error.close()
        if error.code == 404:
            return None
        raise
    assert found["user"] == user
    return found["total"], found["version"]


@pytest.mark.parametrize("kind", ["cassandra", "dynamodb"])
def test_totals_are_served_after_each_transaction_while_the_stream_runs(
    request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    server = request.getfixturevalue(kind)
    database = InCassandra(server) if isinstance(server, Cassandra) else InDynamoDb(server)
    table, incoming = database.table("ShopTotals"), tmp_path / "in"
    incoming.mkdir()
    # Workers cannot import the examples.
    cloudpickle.register_pickle_by_value(shopping_totals)
    source = spark.readStream.schema(shopping_totals.SCHEMA).json(str(incoming))
    query = (
        shopping_totals.totals(source)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(tmp_path / "cp"))
        .option("view", database.location(table))
        .options(**{f"view.{name}": value for name, value in database.options.items()})
        .start()
    )
    expected = [("Sankar", 200), ("Jade", 800), ("Sankar", 500), ("Kun", 100)]
    try:
        with _service(database, table) as url:
            assert _total(url, "Sankar") is None
            pairs = zip(shopping_totals.TRANSACTIONS, expected, strict=True)
            for number, (transaction, (user, total)) in enumerate(pairs, 1):
                aside = tmp_path / "aside"
                aside.write_text(json.dumps(transaction) + "\n")
                aside.rename(incoming / f"{number}.json")
                query.processAllAvailable()
                assert _total(url, user) == (total, number)
            assert _total(url, "Jade") == (800, 2)
    finally:
        query.stop()
    database.close()
