"""How roots in databases are reached, and what is refused: servers, options, tables of others."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import ResponseFuture, Session
from cassandra.policies import TokenAwarePolicy
from remotes import refusal
from view_databases import TOTALS, put_totals

import holdfast
from holdfast.clients import cassandra as cassandra_client
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


# -- sessions with Cassandra ---------------------------------------------------------------------


@contextmanager
def sent(monkeypatch: pytest.MonkeyPatch, *, traced: bool = False) -> Iterator[list[Any]]:
    """What goes to Cassandra meanwhile: the statements' futures."""
    plain, futures = Session.execute_async, list[ResponseFuture]()

    def noting(self: Session, *given: Any, **more: Any) -> ResponseFuture:
        future = plain(self, *given, **{**more, "trace": True} if traced else more)
        futures.append(future)
        return future

    with monkeypatch.context() as patched:
        patched.setattr(Session, "execute_async", noting)
        patched.setattr(Session, "execute", lambda *given: noting(*given).result())
        yield futures


@pytest.fixture
def store(cassandra: Cassandra, tmp_path: Path) -> Any:
    """Opens a store in Cassandra, with a view there, both with some options."""
    place = f"cassandra://{cassandra.address}/state"

    def opened(name: str, options: dict[str, str]) -> holdfast.VersionedStore:
        return holdfast.open(
            f"{place}/{name}",
            **TOTALS,
            options=options,
            view=f"{place}/{name}",
            view_options=options,
        )

    return opened


@pytest.mark.parametrize("word", ["quorum", "local_quorum"])
def test_the_consistency_asked_for_is_that_of_every_statement(
    store: Any, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    """The server says so, in its traces."""
    serial = {"quorum": "SERIAL", "local_quorum": "LOCAL_SERIAL"}[word]
    with store(f"level_{word}", {"consistency": word}) as db:
        with sent(monkeypatch, traced=True) as futures:
            put_totals(db, {"a": 1, "b": 2})
        assert db.get(("b",)) == (2,)
    kinds = [future.get_query_trace(max_wait=30).parameters for future in futures]
    levels = {kind["consistency_level"] for kind in kinds}
    assert levels == {word.upper(), serial}  # of rows, and of reads that see what Paxos decided
    assert {kind["serial_consistency_level"] for kind in kinds} == {serial}


def test_every_statement_of_a_commit_is_sent_to_a_node_that_has_its_rows(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store("routed", {}) as db:
        with sent(monkeypatch) as futures:
            put_totals(db, {f"user {number}": number for number in range(50)})
        assert futures
        for future in futures:
            assert future.query.routing_key is not None
            assert future.query.keyspace == "state"
            assert isinstance(future._load_balancer, TokenAwarePolicy)


def test_the_data_centre_asked_for_is_used_or_refused_with_those_there_are(
    store: Any, cassandra: Cassandra, tmp_path: Path
) -> None:
    with store("near", {"local_dc": "datacenter1"}) as db:
        put_totals(db, {"a": 1})
    away = {"local_dc": "atlantis"}
    error = refusal(lambda: store("far", away))
    assert "no data centre 'atlantis'; it has datacenter1" in str(error)
    assert "local_dc" in str(error)
    location = f"cassandra://{cassandra.address}/state/far"
    shown = refusal(lambda: holdfast.open(tmp_path, **TOTALS, view=location, view_options=away))
    assert str(shown) == str(error)


def test_connections_that_nobody_uses_are_closed(store: Any, cassandra: Cassandra) -> None:
    """The server has the list of them."""
    with cassandra.cluster() as cluster:
        session = cluster.connect()

        def connections() -> set[int]:
            return {row.port for row in session.execute("SELECT port FROM system_views.clients")}

        before = connections()
        db = store("closed", {"local_dc": "datacenter1", "consistency": "quorum"})
        put_totals(db, {"a": 1})
        own = connections() - before
        assert own
        for _ in range(2):
            cassandra_client.close_idle()
        put_totals(db, {"a": 2})
        assert own <= connections()
        db.close()
        del db
        gc.collect()
        for _ in range(2):
            cassandra_client.close_idle()
        deadline = time.monotonic() + 30
        while own & connections():
            assert time.monotonic() < deadline
            time.sleep(0.1)
