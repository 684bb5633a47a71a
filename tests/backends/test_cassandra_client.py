"""Which failures of Cassandra pass by themselves."""

from __future__ import annotations

import pytest
from cassandra import AlreadyExists, InvalidRequest, OperationTimedOut, Unauthorized
from cassandra.cluster import NoHostAvailable
from cassandra.protocol import ConfigurationException, OverloadedErrorMessage, SyntaxException

from holdfast.backends.cassandra_client import passes


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
