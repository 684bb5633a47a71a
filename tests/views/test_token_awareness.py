"""Rows go to nodes that have them, few in a message; the driver's own ring says which those are."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra.cqltypes import LongType, UTF8Type
from cassandra.metadata import KeyspaceMetadata, Metadata
from cassandra.policies import SimpleConvictionPolicy
from cassandra.pool import Host
from cassandra.query import BatchStatement, PreparedStatement

from holdfast.clients.cassandra import CassandraOptions, profile_of
from holdfast.views.cassandra import statements
from holdfast.views.cassandra.statements import Statements

ROWS = [(number, f"user {number}") for number in range(400)]
"""The version, then the key: as a delete has them."""


class Ring:
    """A cluster of five nodes with some tokens each, two copies of every row, and no server."""

    def __init__(self) -> None:
        nodes = [
            Host(f"10.0.0.{n}", SimpleConvictionPolicy, datacenter="here") for n in range(1, 6)
        ]
        for node in nodes:
            node.set_up()
        self.metadata = Metadata()
        self.metadata.keyspaces["shop"] = KeyspaceMetadata(
            "shop", True, "SimpleStrategy", {"replication_factor": "2"}
        )
        rnd = random.Random(5)
        tokens = {node: [str(rnd.randrange(-(1 << 63), 1 << 63)) for _ in "123"] for node in nodes}
        self.metadata.rebuild_token_map("org.apache.cassandra.dht.Murmur3Partitioner", tokens)
        self.policy = profile_of(CassandraOptions(local_dc="here")).load_balancing_policy
        self.policy.populate(self, nodes)

    @property
    def cluster(self) -> Ring:
        return self

    @property
    def session(self) -> Ring:
        return self

    def prepared(self, query: str, **_: Any) -> PreparedStatement:
        """The statement as a server would describe it."""
        columns = [
            SimpleNamespace(keyspace_name="shop", table_name="totals", name=name, type=kind)
            for name, kind in (("[timestamp]", LongType), ("user", UTF8Type))
        ]
        return PreparedStatement(columns, b"id", [1], query, None, 4, None, None)

    def nodes_of(self, row: tuple[int, str]) -> set[Host]:
        return set(self.metadata.get_replicas("shop", row[1].encode()))


def _sent(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, list[tuple[int, str]]]]:
    """The messages of a bulk write, each with the rows in it."""
    sent: list[Any] = []

    def send(session: object, messages: Any, **_: Any) -> list[tuple[bool, None]]:
        assert session is ring
        sent.extend(message for message, _ in messages)
        return [(True, None)] * len(messages)

    monkeypatch.setattr(Statements, "_client", ring)
    monkeypatch.setattr(statements, "execute_concurrent", send)
    view = Statements("cassandra://10.0.0.1/shop/totals", {}, 0, "")
    view.run_all("remove rows", "DELETE …", ROWS)
    return [(message, _rows(message)) for message in sent]


def _rows(message: Any) -> list[tuple[int, str]]:
    if not isinstance(message, BatchStatement):
        return [(int.from_bytes(message.values[0]), message.values[1].decode())]
    inner = [values for _, _, values in message._statements_and_parameters]
    return [(int.from_bytes(version), user.decode()) for version, user in inner]


def test_every_message_goes_first_to_a_node_that_has_all_its_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = Ring()
    sent = _sent(ring, monkeypatch)
    assert sorted(row for _, rows in sent for row in rows) == ROWS
    first = [next(ring.policy.make_query_plan(None, message)) for message, _ in sent]
    for node, (_, rows) in zip(first, sent, strict=True):
        assert all(node in ring.nodes_of(row) for row in rows)
    assert len(set(first)) == 5


def test_rows_of_the_same_nodes_share_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring()
    sent = _sent(ring, monkeypatch)
    assert all(len({frozenset(ring.nodes_of(row)) for row in rows}) == 1 for _, rows in sent)
    assert max(len(rows) for _, rows in sent) == 10
    places = {tuple(ring.metadata.get_replicas("shop", row[1].encode())) for row in ROWS}
    assert 5 < len(places) <= 15
    assert len(sent) < len(ROWS) / 10 + len(places)
