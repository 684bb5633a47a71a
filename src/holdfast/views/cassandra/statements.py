"""CQL statements for views: retried while that helps, many at a time, with failures mapped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from cassandra.concurrent import execute_concurrent
from cassandra.query import BatchStatement, BatchType

from holdfast.clients.cassandra import (
    ERRORS,
    CassandraAddress,
    CassandraClient,
    CassandraOptions,
    client_of,
    is_overfull,
    mapped,
    passes,
)
from holdfast.clients.retrying import retried
from holdfast.errors import HoldfastError, InvalidArgument, Unavailable

T = TypeVar("T")
STATEMENTS_IN_FLIGHT = 64
"""The most messages that one caller has in flight."""
_MOST_ROWS, _MOST_BYTES = 10, 4096
"""The limits of one message; Cassandra warns about more partitions or more bytes."""
_ALL_TOKENS = (-(1 << 63), (1 << 63) - 1)
"""All tokens; no key has the first one, so a range may exclude its start."""


class _TooManyTombstones(Exception):
    """A read met more tombstones than Cassandra allows."""


class Statements:
    """Runs statements at a location in Cassandra.

    `shape` identifies the types of the columns: an earlier table of the same name may have had
    others.
    """

    def __init__(
        self, location: str, options: Mapping[str, str], limit_ms: int, shape: str
    ) -> None:
        self._location, self._shape = location, shape
        self.address = CassandraAddress.of(location)
        self._options = CassandraOptions.of(options)
        self._limit_ms = limit_ms

    @property
    def _client(self) -> CassandraClient:
        return client_of(self.address.netloc, self._options, self)

    def run(self, what: str, cql: str, *args: object, serial: bool = False) -> list[Any]:
        """The rows of a statement. Requires: it may be repeated, or the caller checks."""
        return self._call(what, lambda: self._client.run(cql, *args, serial=serial))

    def pages(self, what: str, cql: str, key: str) -> Iterator[list[Any]]:
        """The rows of a table, a page at a time; `key` is its partition key. Rows may come twice.

        Cassandra ends a read that meets too many deleted rows. Then its range of tokens is read in
        halves: a smaller range has fewer of them. Requires: `cql` has no WHERE.
        """
        can_halve = self._call(what, lambda: self._client.has_number_tokens)
        within = f" WHERE token({key}) > ? AND token({key}) <= ?" if can_halve else ""
        left = [_ALL_TOKENS]
        while left:
            low, high = left.pop()
            try:
                yield from self._pages(what, cql + within, *((low, high) if can_halve else ()))
            except _TooManyTombstones:
                if not can_halve or high - low == 1:
                    raise self._overfull(what) from None
                middle = (low + high) // 2
                left += [(middle, high), (low, middle)]

    def _pages(self, what: str, cql: str, *args: object) -> Iterator[list[Any]]:
        def first() -> Any:
            client = self._client
            return client.session.execute(client.prepared(cql, shape=self._shape), args)

        found = self._call(what, lambda: _unless_overfull(first))
        while True:
            yield list(found.current_rows)
            if not found.has_more_pages:
                return
            self._call(what, lambda: _unless_overfull(found.fetch_next_page))

    def _overfull(self, what: str) -> InvalidArgument:
        return InvalidArgument(
            f"Could not {what} at {self._location}: one value of the first key column seems to "
            "have more tombstones than tombstone_failure_threshold allows. They go "
            "gc_grace_seconds after their rows were removed, by default ten days. Raise the "
            "threshold, or drop the table: then the view is created and filled again."
        )

    def define(self, what: str, cql: str) -> None:
        """Run a statement that creates or alters a table."""
        self._call(what, lambda: self._client.session.execute(cql))

    def run_all(self, what: str, cql: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run a statement for each row, several at a time; those that fail are sent again.

        Rows on the same nodes are sent there together, a few at a time: this saves messages, and no
        node has to forward rows. Requires: the statement may be repeated.
        """
        left: list[Sequence[Any]] = list(rows)

        def attempt() -> None:
            nonlocal left
            client = self._client
            prepared = client.prepared(cql, shape=self._shape)
            groups = list(_grouped(client, self.address.keyspace, prepared, left))
            done = execute_concurrent(
                client.session,
                [(batch, None) for batch, _ in groups],
                concurrency=STATEMENTS_IN_FLIGHT,
                raise_on_first_error=False,
            )
            failed = [
                (sent, why) for (_, sent), (good, why) in zip(groups, done, strict=True) if not good
            ]
            left = [row for sent, _ in failed for row in sent]
            if failed:
                raise failed[0][1]

        if left:
            self._call(what, attempt)

    def _call(self, what: str, call: Callable[[], T]) -> T:
        try:
            return retried(call, passes, self._limit_ms)
        except ERRORS as error:
            raise self._mapped(error, f"Could not {what} at {self._location}: ") from None

    def _mapped(self, error: Exception, failed: str) -> HoldfastError:
        known = mapped(error, failed)
        if isinstance(known, InvalidArgument):
            return known
        if passes(error):
            return Unavailable(
                f"{failed}{type(error).__name__}. Nothing is lost: try again when Cassandra "
                "answers."
            )
        # The server's own message may show a value.
        return InvalidArgument(f"{failed}{type(error).__name__}. Cassandra rejected the request.")


def _unless_overfull(read: Callable[[], T]) -> T:
    """Return what `read` returns; a read with too many tombstones is not retried as it is."""
    try:
        return read()
    except ERRORS as error:
        if is_overfull(error):
            raise _TooManyTombstones from error
        raise


def _grouped(
    client: CassandraClient, keyspace: str, prepared: Any, rows: Sequence[Sequence[Any]]
) -> Iterator[tuple[Any, list[Sequence[Any]]]]:
    """Statements to send, each with its rows; rows of the same nodes share an unlogged batch."""
    replicas_of = client.session.cluster.metadata.get_replicas
    waiting: dict[tuple[Any, ...], _Group] = {}
    for row in rows:
        bound = prepared.bind(row)
        size = sum(len(value) for value in bound.values if isinstance(value, bytes))
        nodes = tuple(replicas_of(keyspace, bound.routing_key))
        group = waiting.setdefault(nodes, _Group())
        if group.rows and not group.has_room(size):
            yield group.statement, group.rows
            group = waiting[nodes] = _Group()
        group.add(bound, row, size)
    for group in waiting.values():
        yield group.statement, group.rows


class _Group:
    """Rows that go in one message."""

    def __init__(self) -> None:
        self.rows: list[Sequence[Any]] = []
        self._bound: list[Any] = []
        self._bytes = 0

    def has_room(self, size: int) -> bool:
        return len(self.rows) < _MOST_ROWS and self._bytes + size <= _MOST_BYTES

    def add(self, bound: Any, row: Sequence[Any], size: int) -> None:
        self._bound.append(bound)
        self.rows.append(row)
        self._bytes += size

    @property
    def statement(self) -> Any:
        """The only statement, or an unlogged batch with the effect of its statements."""
        if len(self._bound) == 1:
            return self._bound[0]
        batch = BatchStatement(BatchType.UNLOGGED)
        for bound in self._bound:
            batch.add(bound)
        return batch
