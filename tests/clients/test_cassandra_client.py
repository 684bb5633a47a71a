"""Sessions with Cassandra: which failures pass, whom an address names, when they are closed."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace

import pytest
from cassandra import (
    AlreadyExists,
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    Unauthorized,
)
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ConfigurationException, OverloadedErrorMessage, SyntaxException

from holdfast.clients import cassandra as cassandra_client
from holdfast.clients.cassandra import (
    CassandraClient,
    CassandraOptions,
    _hosts,
    client_of,
    close_idle,
    passes,
    profile_of,
)
from holdfast.errors import InvalidArgument


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (OperationTimedOut(), True),
        (OverloadedErrorMessage(0x1001, "busy", None), True),
        (NoHostAvailable("none", {"host": ConnectionRefusedError()}), True),
        (SyntaxException(0x2000, "line 1", None), False),
        (ConfigurationException(0x2300, "option", None), False),
        (NoHostAvailable("none", {"host": SyntaxException(0x2000, "line 1", None)}), False),
        (AlreadyExists("keyspace", "table"), False),
        (InvalidRequest(), False),
        (Unauthorized(), False),
    ],
)
def test_only_what_passes_by_itself_is_sent_again(error: Exception, again: bool) -> None:
    assert passes(error) is again


@pytest.mark.parametrize(
    ("netloc", "hosts", "port"),
    [
        ("a", ["a"], 9042),
        ("a,b:9999", ["a", "b"], 9999),
        ("a:9999,b:9999", ["a", "b"], 9999),
        ("[::1]:9999", ["::1"], 9999),
    ],
)
def test_an_address_names_hosts_and_the_port_they_share(
    netloc: str, hosts: list[str], port: int
) -> None:
    assert _hosts(netloc) == (hosts, port)


@pytest.mark.parametrize("netloc", ["a:1,b:2", "a,,b", "a:port", ":9042"])
def test_hosts_that_cannot_be_reached_by_one_port_are_refused(netloc: str) -> None:
    with pytest.raises(InvalidArgument):
        _hosts(netloc)


@pytest.mark.parametrize(
    ("word", "level", "serial"),
    [
        ("local_quorum", ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.LOCAL_SERIAL),
        ("QUORUM", ConsistencyLevel.QUORUM, ConsistencyLevel.SERIAL),
    ],
)
def test_the_consistency_is_the_one_asked_for(word: str, level: int, serial: int) -> None:
    profile = profile_of(CassandraOptions.of({"consistency": word}))
    assert profile.consistency_level == level
    assert profile.serial_consistency_level == serial


# -- when sessions are closed --------------------------------------------------------------------


class User:
    """Somebody who asks for a session."""


@pytest.fixture
def open_sessions(monkeypatch: pytest.MonkeyPatch) -> list[CassandraClient]:
    """The sessions that are open; none of them is connected to anything."""
    found: list[CassandraClient] = []

    def connected(*_: object) -> CassandraClient:
        client = CassandraClient(SimpleNamespace(cluster=SimpleNamespace()))
        client.session.cluster.shutdown = lambda: found.remove(client)
        found.append(client)
        return client

    monkeypatch.setattr(cassandra_client, "_connected", connected)
    monkeypatch.setattr(cassandra_client, "_clients", {})
    monkeypatch.setattr(cassandra_client, "_closer", None)
    return found


def test_a_session_is_shared_and_closed_when_its_last_user_is_gone(
    open_sessions: list[CassandraClient],
) -> None:
    users, elsewhere = [User(), User()], User()
    client = client_of("a", CassandraOptions(), users[0])
    assert client_of("a", CassandraOptions(), users[1]) is client
    other = client_of("a", CassandraOptions(consistency="quorum"), elsewhere)
    while users:
        close_idle()
        close_idle()
        assert open_sessions == [client, other]
        users.pop()
    close_idle()
    close_idle()
    assert open_sessions == [other]
    assert client_of("a", CassandraOptions(), elsewhere) is not client


def test_users_that_follow_each_other_share_a_session(open_sessions: list[CassandraClient]) -> None:
    clients = []
    for _ in range(3):
        clients.append(client_of("a", CassandraOptions(), User()))
        close_idle()
    assert open_sessions == clients[:1]
    assert clients == clients[:1] * 3


def test_idle_sessions_are_closed_in_time(
    open_sessions: list[CassandraClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cassandra_client, "_IDLE_S", 0.01)
    for _ in range(2):  # the thread that closes them ends, and another comes
        client_of("a", CassandraOptions(), User())
        deadline = time.monotonic() + 20
        while open_sessions or cassandra_client._closer is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_fork_leaves_the_sessions_of_its_parent_alone(
    open_sessions: list[CassandraClient],
) -> None:
    client_of("a", CassandraOptions(), User())
    if (child := os.fork()) == 0:
        close_idle()
        close_idle()
        left = len(open_sessions)
        user = User()
        own = client_of("a", CassandraOptions(), user)
        os._exit(0 if left == 1 and open_sessions[1:] == [own] else 1)
    assert os.waitpid(child, 0)[1] == 0
