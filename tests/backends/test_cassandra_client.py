"""Which failures of Cassandra pass by themselves, and whom an address names."""

from __future__ import annotations

import pytest
from cassandra import AlreadyExists, InvalidRequest, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ConfigurationException, OverloadedErrorMessage, SyntaxException

from holdfast.backends.cassandra_client import _hosts, passes
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
