"""How all rows of a table in Cassandra are read, however many were deleted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ReadFailure

from holdfast.errors import InvalidArgument, Unavailable
from holdfast.views.cassandra.statements import Statements

SELECT = "SELECT id FROM rows"
TOO_MANY, UNKNOWN = {"node": 1}, {"node": 0}


class Node:
    """A session that reads at most so many tombstones at once."""

    def __init__(self, most: int, codes: dict[str, int] | None = None) -> None:
        self.most, self.codes = most, codes
        self.live: list[int] = []
        self.dead: list[int] = []
        self.reads = 0
        self.partitioner = "org.apache.cassandra.dht.Murmur3Partitioner"

    @property
    def cluster(self) -> Any:
        return SimpleNamespace(metadata=self)

    @property
    def session(self) -> Node:
        return self

    @property
    def has_number_tokens(self) -> bool:
        return self.partitioner.endswith("Murmur3Partitioner")

    def prepared(self, query: str, **_: Any) -> str:
        return query

    def execute(self, query: str, args: tuple[int, ...]) -> Any:
        self.reads += 1
        low, high = args or (-(1 << 63), (1 << 63) - 1)
        assert ("token(id)" in query) == bool(args)
        if sum(low < token <= high for token in self.dead) > self.most:
            raise ReadFailure("failed", error_code_map=self.codes)
        rows = [(token,) for token in self.live if low < token <= high]
        return SimpleNamespace(current_rows=rows, has_more_pages=False)


def _read(node: Node, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    monkeypatch.setattr(Statements, "_client", node)
    statements = Statements("cassandra://host/keyspace/rows", {}, 0, "")
    return [row[0] for page in statements.pages("read rows", SELECT, "id") for row in page]


@pytest.mark.parametrize("codes", [None, TOO_MANY])
def test_a_range_with_too_many_deleted_rows_is_read_by_halves(
    codes: dict[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(10, codes)
    step = (1 << 64) // 1000
    node.dead = [-(1 << 63) + step * place for place in range(1, 1000)]
    node.live = [-(1 << 63) + 1, -1, 0, 1, (1 << 63) - 1]
    assert sorted(_read(node, monkeypatch)) == node.live
    assert 100 < node.reads < 500


def test_a_table_with_few_deleted_rows_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(10)
    node.live, node.dead = [1, 2, 3], [4, 5]
    assert _read(node, monkeypatch) == [1, 2, 3]
    assert node.reads == 1


def test_tokens_of_another_kind_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(10)
    node.live, node.partitioner = [1, 2, 3], "org.apache.cassandra.dht.RandomPartitioner"
    assert _read(node, monkeypatch) == [1, 2, 3]


def test_too_many_deleted_rows_of_one_partition_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(10, TOO_MANY)
    node.dead = [7] * 11
    with pytest.raises(InvalidArgument, match=r"tombstone_failure_threshold.*drop the table"):
        _read(node, monkeypatch)
    assert node.reads < 100


def test_a_read_that_failed_otherwise_is_not_read_by_halves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = Node(0, UNKNOWN)
    node.dead = [7]
    with pytest.raises(Unavailable, match="try again"):
        _read(node, monkeypatch)
    assert node.reads == 1
