"""How roots in databases are reached, and what is refused: servers, options, tables of others."""

from __future__ import annotations

import time

import pytest
from remotes import refusal

import holdfast
from holdfast.conf import StateStoreConf
from holdfast.errors import Unavailable
from servers import Cassandra, DynamoDb
from servers.base import LOOPBACK, free_ports

pytestmark = pytest.mark.services
IMPATIENT = StateStoreConf(retry_timeout_ms=300)


@pytest.mark.parametrize("scheme", ["cassandra", "dynamodb"])
def test_a_server_that_is_down_at_the_start_is_asked_again_and_then_named(scheme: str) -> None:
    (port,) = free_ports(1)
    address = {"cassandra": f"{LOOPBACK}:{port}/state", "dynamodb": "local"}[scheme]
    given = {"endpoint_url": f"http://{LOOPBACK}:{port}", "key": "k", "secret": "s"}
    location, options = f"{scheme}://{address}/down", given if scheme == "dynamodb" else {}
    for conf in (IMPATIENT, {"retry_timeout_ms": 300}):
        started = time.monotonic()
        with pytest.raises(Unavailable, match=r"Could not list 'versions' in .*again"):
            holdfast.open(location, "n long", "v long", options=options, conf=conf)
        assert time.monotonic() - started < 45


def test_a_keyspace_that_is_not_there_is_named_with_how_to_make_it(cassandra: Cassandra) -> None:
    location = f"cassandra://{cassandra.address}/nowhere/totals"
    for call in (
        lambda: holdfast.open(location, "n long", "v long"),
        lambda: holdfast.read(location),
    ):
        error = refusal(call)
        assert "no keyspace nowhere" in str(error)
        assert 'CREATE KEYSPACE "nowhere"' in str(error)


def test_a_table_of_somebody_else_is_refused_and_left_alone(cassandra: Cassandra) -> None:
    with cassandra.cluster() as cluster:
        session = cluster.connect()
        for keyspace, columns in {
            "foreign_table": "user text PRIMARY KEY, total bigint",
            "other_schema": "upload text, number bigint, data blob, PRIMARY KEY ((upload, number))",
        }.items():
            cassandra.create_keyspace(keyspace)
            table = f"{keyspace}.holdfast_chunks"
            session.execute(f"CREATE TABLE {table} ({columns})", timeout=60)
            location = f"cassandra://{cassandra.address}/{keyspace}/totals"
            error = refusal(lambda at=location: holdfast.open(at, "n long", "v long"))
            assert table in str(error)
            assert error.condition == "STATE_STORE_SCHEMA_MISMATCH"
            found = session.execute(
                "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s", (keyspace,)
            )
            assert [row.table_name for row in found] == ["holdfast_chunks"]


@pytest.mark.parametrize(("name", "kind"), [("user", "S"), ("holdfast_place", "N")])
def test_a_dynamodb_table_of_somebody_else_is_refused_and_left_alone(
    dynamodb: DynamoDb, name: str, kind: str
) -> None:
    table = f"foreign-{name}-holdfast"
    client = dynamodb.client()
    client.create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": name, "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind}],
    )
    location = f"dynamodb://{dynamodb.region}/foreign-{name}"
    error = refusal(lambda: holdfast.open(location, "n long", "v long", options=dynamodb.options))
    assert table in str(error)
    assert error.condition == "STATE_STORE_SCHEMA_MISMATCH"
    assert client.scan(TableName=table)["Count"] == 0


def test_missing_keys_of_dynamodb_are_refused(
    dynamodb: DynamoDb, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    bare = {"endpoint_url": dynamodb.url}
    error = refusal(lambda: holdfast.read(f"dynamodb://{dynamodb.region}/bare", options=bare))
    assert error.condition == "STATE_STORE_ACCESS_DENIED"
    assert "credentials" in str(error)


@pytest.mark.parametrize(
    ("location", "options", "said"),
    [
        ("cassandra://host/state", {}, "cassandra://host:port/keyspace/name"),
        ("cassandra://host/no-such/x", {}, "cannot be a keyspace"),
        ("cassandra://me:PLANTED@host/state/x", {}, "do not belong into an address"),
        ("cassandra://host/state/x", {"passwords": "PLANTED"}, "no option 'passwords'"),
        ("cassandra://host/state/x", {"consistency": "PLANTED"}, "local_quorum, quorum"),
        ("cassandra://host/state/x", {"tls": "PLANTED"}, "true or false"),
        ("cassandra://no-such-host.invalid/state/x", {}, "No such host"),
        ("dynamodb://eu-west-1", {}, "dynamodb://region/table-prefix"),
        ("dynamodb://eu-west-1/a b", {}, "cannot begin the name of a table"),
        ("dynamodb://eu-west-1/x", {"region": "PLANTED"}, "The region is in the address"),
        (
            "dynamodb://eu-west-1/x",
            {"endpoint_url": "http://no-such-host.invalid:1", "key": "k", "secret": "PLANTED"},
            "No such host",
        ),
    ],
)
def test_what_cannot_be_an_address_or_option_is_refused_at_once(
    location: str, options: dict[str, str], said: str
) -> None:
    error = refusal(lambda: holdfast.read(location, options=options))
    assert said in str(error)
    assert "PLANTED" not in str(error)
