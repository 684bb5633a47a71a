"""Servers for the tests of this folder. One that cannot start fails the tests that need it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from remotes import Remote, quick_folder
from view_databases import InCassandra, InDynamoDb, ViewDatabase

from servers import QUICK_START, Cassandra, DynamoDb, Hdfs, Kafka, Minio, Server, SparkCluster

Server.jvm = QUICK_START
_folders = itertools.count()
_HANGS_S = 1800
"""Longer than any test here takes on the busiest machine."""


_LONGEST = (
    "test_exactly_once", "test_view_kills", "test_cluster_kills", "test_database_roots",
    "test_remote_storages", "test_streams_on_remote_roots", "test_shipping", "test_unruly_tasks",
    "test_locality", "test_stream_views",
)  # fmt: skip
"""Files that take minutes, those that take most of them first."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Real servers and processes take their time; what hangs is ended all the same.

    The longest files come first, so that no process is left alone with one of them at the end.
    """
    for item in items:
        if item.get_closest_marker("services") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(_HANGS_S))
    order = {name: place for place, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)))


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker for the whole run; tests use topics of their own."""
    with Kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A Spark master with two workers of one core; one application at a time fits in."""
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hdfs]:
    """A NameNode and a DataNode; tests use folders of their own."""
    with Hdfs(tmp_path_factory.mktemp("hdfs")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    """A server with the bucket `state`; tests use folders of their own."""
    with Minio(tmp_path_factory.mktemp("minio")) as server:
        server.create_bucket("state")
        yield server


@pytest.fixture(scope="session")
def cassandra() -> Iterator[Cassandra]:
    """A node with the keyspace `state`; tests use names of their own."""
    with quick_folder() as folder, Cassandra(folder) as node:
        node.create_keyspace("state")
        yield node


@pytest.fixture(scope="session")
def guarded_cassandra() -> Iterator[Cassandra]:
    """A node with the keyspace `state` that asks for users and speaks TLS only."""
    with (
        quick_folder() as folder,
        Cassandra(folder, with_users=True, encrypted=True) as node,
    ):
        node.create_keyspace("state")
        yield node


@pytest.fixture(scope="session")
def dynamodb() -> Iterator[DynamoDb]:
    """A server without tables; tests use prefixes of their own."""
    with quick_folder() as folder, DynamoDb(folder) as server:
        yield server


@pytest.fixture(params=["cassandra", "dynamodb"])
def database(request: pytest.FixtureRequest) -> Iterator[ViewDatabase]:
    """Each database that has views."""
    server = request.getfixturevalue(request.param)
    place = InCassandra(server) if isinstance(server, Cassandra) else InDynamoDb(server)
    yield place
    place.close()


@pytest.fixture
def on_hdfs(hdfs: Hdfs) -> Remote:
    """The server, a new root on it, and how it is reached."""
    return hdfs, f"{hdfs.url}/storages/{next(_folders)}", {}


@pytest.fixture
def on_s3(minio: Minio) -> Remote:
    return minio, f"s3://state/storages/{next(_folders)}", minio.options


@pytest.fixture
def on_cassandra(cassandra: Cassandra) -> Remote:
    location = f"cassandra://{cassandra.address}/state/storages/{next(_folders)}"
    return cassandra, location, cassandra.options


@pytest.fixture
def on_dynamodb(dynamodb: DynamoDb) -> Remote:
    location = f"dynamodb://{dynamodb.region}/storages/{next(_folders)}"
    return dynamodb, location, dynamodb.options


@pytest.fixture(params=["on_hdfs", "on_s3", "on_cassandra", "on_dynamodb"])
def remote(request: pytest.FixtureRequest) -> Remote:
    """A new root on each kind of server."""
    found: Remote = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["on_cassandra", "on_dynamodb"])
def on_database(request: pytest.FixtureRequest) -> Remote:
    """A new root in each database."""
    found: Remote = request.getfixturevalue(request.param)
    return found
