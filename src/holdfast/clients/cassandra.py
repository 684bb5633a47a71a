"""Sessions with Cassandra: addresses, options, and what failures mean.

Sessions belong to a process, since a fork must not share the connections of its parent, and all
users with the same options share one. A session prepares a statement once, sends it to a node that
has the rows, and never repeats a request by itself: only callers know which requests may be
repeated. An unused session is closed after a minute or two, so that consecutive tasks share one.
Cassandra's driver closes all at exit.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Self
from urllib.parse import urlsplit
from weakref import WeakSet

from cassandra import (
    AuthenticationFailed,
    ConsistencyLevel,
    DriverException,
    ReadFailure,
    RequestValidationException,
    Unauthorized,
    UnresolvableContactPoints,
)
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, NoHostAvailable
from cassandra.connection import ConnectionBusy, ConnectionException
from cassandra.policies import (
    ConstantReconnectionPolicy,
    DCAwareRoundRobinPolicy,
    FallthroughRetryPolicy,
    TokenAwarePolicy,
)
from cassandra.protocol import ErrorMessage
from cassandra.protocol import RequestValidationException as InvalidMessage

from holdfast.clients.options import ClientOptions
from holdfast.errors import HoldfastError, InvalidArgument, Unavailable
from holdfast.schemes import CASSANDRA

ENVIRONMENT = "HOLDFAST_CASSANDRA_"
"""The prefix of environment variables that replace options: the option's name follows it."""
ERRORS = (
    DriverException,
    NoHostAvailable,
    ConnectionException,
    ConnectionBusy,
    ErrorMessage,
    OSError,
)
CONSISTENCIES = {
    "local_quorum": (ConsistencyLevel.LOCAL_QUORUM, ConsistencyLevel.LOCAL_SERIAL),
    "quorum": (ConsistencyLevel.QUORUM, ConsistencyLevel.SERIAL),
}
"""By value of the option: the level of reads and writes, and that of lightweight transactions."""
_TOO_MANY_TOMBSTONES = 1
"""The code in Cassandra's protocol for why a node failed to read."""
_CONNECT_S, _REQUEST_S, _RECONNECT_S = 10.0, 30.0, 0.5
_IDLE_S = 60.0
"""The least time for which a session without users is kept."""


@dataclass(frozen=True)
class CassandraAddress:
    """The parts of `cassandra://host,host:port/keyspace/name`."""

    netloc: str
    keyspace: str
    path: str

    @classmethod
    def of(cls, location: str) -> Self:
        """Parse an address. Raises InvalidArgument where a part is missing."""
        parts = urlsplit(location)
        keyspace, _, path = parts.path.strip("/").partition("/")
        if not (parts.netloc and keyspace and path):
            raise InvalidArgument(f"{location} is not complete. Write {CASSANDRA.form}.")
        return cls(parts.netloc, keyspace, path)


@dataclass(frozen=True, kw_only=True)
class CassandraOptions(ClientOptions):
    """How a cluster is reached; options that are not set come from the environment."""

    scheme = CASSANDRA
    whose = "Cassandra"

    username: str | None = None
    password: str | None = None
    tls: str | None = None
    ca: str | None = None
    local_dc: str | None = None
    consistency: str = "local_quorum"

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Self:
        """The options with these names. Raises InvalidArgument for others, never showing values."""
        names = [each.name for each in fields(cls)]
        around = {name: os.environ.get(ENVIRONMENT + name.upper()) for name in names}
        options = super().of({**{name: text for name, text in around.items() if text}, **given})
        if options.consistency.lower() not in CONSISTENCIES:
            raise InvalidArgument(f"The option consistency is one of {', '.join(CONSISTENCIES)}.")
        if (options.tls or "true").lower() not in ("true", "false"):
            raise InvalidArgument("The option tls is true or false.")
        return options


class CassandraClient:
    """A session with the statements prepared in it."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.known: set[tuple[str, ...]] = set()
        """Facts that users of the session have found out and that never change."""
        self.users: WeakSet[object] = WeakSet()
        """The objects that asked for the session and still exist."""
        self.is_idle = False
        """Whether it had no users at the last check."""
        self._prepared: dict[tuple[str, bool, str], Any] = {}

    @property
    def has_number_tokens(self) -> bool:
        """Whether the cluster places rows by tokens of 64 bits, as all but very old ones do."""
        return str(self.session.cluster.metadata.partitioner).endswith("Murmur3Partitioner")

    def prepared(self, query: str, *, serial: bool = False, shape: str = "") -> Any:
        """The statement, prepared at its first use; `serial` reads see lightweight transactions.

        `shape` distinguishes a table from an earlier one of the same name that was dropped: a
        statement keeps the types that the columns had when it was prepared.
        """
        found = self._prepared.get((query, serial, shape))
        if found is None:
            found = self.session.prepare(query)
            profile = self.session.cluster.profile_manager.default
            if serial:
                found.consistency_level = profile.serial_consistency_level
            self._prepared[query, serial, shape] = found
        return found

    def run(self, query: str, *values: object, serial: bool = False) -> list[Any]:
        """Run a statement and return all its rows."""
        rows = self.session.execute(self.prepared(query, serial=serial), values)
        return list(rows)


_lock = threading.Lock()
_clients: dict[tuple[int, str, CassandraOptions], CassandraClient] = {}
_closer: threading.Thread | None = None
"""The thread that closes idle sessions; it runs while there are sessions."""


def _renew() -> None:
    """Reset what a fork inherits: the parent's threads are gone, and one may hold the lock."""
    global _lock, _closer
    _lock, _closer = threading.Lock(), None


os.register_at_fork(after_in_child=_renew)


def client_of(netloc: str, options: CassandraOptions, user: object) -> CassandraClient:
    """This process's client for the hosts in `netloc`; it stays open while `user` exists."""
    global _closer
    place = (os.getpid(), netloc, options)
    with _lock:
        if place not in _clients:
            _clients[place] = _connected(netloc, options)
        if _closer is None:
            _closer = threading.Thread(target=_close_in_time, name="holdfast-idle", daemon=True)
            _closer.start()
        client = _clients[place]
        client.users.add(user)
        client.is_idle = False
        return client


def _close_in_time() -> None:
    global _closer
    while True:
        time.sleep(_IDLE_S)
        close_idle()
        with _lock:
            if not _own():
                _closer = None
                return


def close_idle() -> None:
    """Close the sessions that have no users, and had none at the last call."""
    with _lock:
        unused = {place: client for place, client in _own().items() if not client.users}
        closed = [_clients.pop(place) for place, client in unused.items() if client.is_idle]
        for client in unused.values():
            client.is_idle = True
    for client in closed:
        with suppress(*ERRORS):
            client.session.cluster.shutdown()


def _own() -> dict[tuple[int, str, CassandraOptions], CassandraClient]:
    """The clients of this process, without those inherited from its parent."""
    return {place: client for place, client in _clients.items() if place[0] == os.getpid()}


def _connected(netloc: str, options: CassandraOptions) -> CassandraClient:
    hosts, port = _hosts(netloc)
    _quieten()
    users = None
    if options.username is not None:
        users = PlainTextAuthProvider(options.username, options.password or "")
    cluster = Cluster(
        hosts,
        port=port,
        auth_provider=users,
        ssl_context=_tls(options),
        execution_profiles={EXEC_PROFILE_DEFAULT: profile_of(options)},
        reconnection_policy=ConstantReconnectionPolicy(_RECONNECT_S, max_attempts=None),
        connect_timeout=_CONNECT_S,
        control_connection_timeout=_CONNECT_S,
    )
    try:
        return CassandraClient(cluster.connect())
    except NoHostAvailable:
        cluster.shutdown()
        _check_data_centre(netloc, options, cluster)
        raise
    except BaseException:
        cluster.shutdown()
        raise


def _check_data_centre(netloc: str, options: CassandraOptions, cluster: Cluster) -> None:
    """Raise InvalidArgument for a data centre that no known node is in."""
    found = {host.datacenter for host in cluster.metadata.all_hosts() if host.datacenter}
    if options.local_dc and found and options.local_dc not in found:
        raise InvalidArgument(
            f"Cassandra at {netloc} has no data centre {options.local_dc!r}; it has "
            f"{', '.join(sorted(found))}. Set the option local_dc to the nearest one."
        )


def profile_of(options: CassandraOptions) -> ExecutionProfile:
    """How requests are sent: once, to a node that has the rows, at the chosen consistency."""
    level, serial = CONSISTENCIES[options.consistency.lower()]
    return ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy(options.local_dc or "")),
        retry_policy=FallthroughRetryPolicy(),
        consistency_level=level,
        serial_consistency_level=serial,
        request_timeout=_REQUEST_S,
    )


def _hosts(netloc: str) -> tuple[list[str], int]:
    """The hosts, and the port that they share, which may follow any of them."""
    try:
        parts = [urlsplit(f"//{host}") for host in netloc.split(",")]
        ports = {part.port for part in parts if part.port is not None}
    except ValueError as error:
        raise InvalidArgument(f"{netloc!r} has no host and port: {error}.") from None
    hosts = [part.hostname for part in parts if part.hostname]
    if len(hosts) < len(parts) or len(ports) > 1:
        raise InvalidArgument(
            f"{netloc!r} must name hosts that listen on one port. Write host1,host2:9042."
        )
    return hosts, ports.pop() if ports else CASSANDRA.port


def _tls(options: CassandraOptions) -> ssl.SSLContext | None:
    wanted = (options.tls or ("true" if options.ca else "false")).lower() == "true"
    if not wanted:
        return None
    try:
        return ssl.create_default_context(cafile=options.ca)
    except OSError as error:
        raise InvalidArgument(
            f"The file of certificates in the option ca cannot be read: {error.strerror}."
        ) from error


def _quieten() -> None:
    """Keep the driver from logging what callers get as exceptions, unless its level is set."""
    logger = logging.getLogger("cassandra")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.CRITICAL)


def passes(error: Exception) -> bool:
    """Whether a request may succeed the next time. Requires: it may be repeated."""
    # The driver turns some of the server's errors into exceptions of other classes.
    refused = (
        AuthenticationFailed,
        RequestValidationException,
        InvalidMessage,
        UnresolvableContactPoints,
    )
    return isinstance(error, ERRORS) and not any(
        isinstance(each, refused) or _is_untrusted(each) for each in _causes(error)
    )


def is_overfull(error: Exception) -> bool:
    """Whether a read met too many tombstones, as far as the server says."""
    if not isinstance(error, ReadFailure):
        return False
    codes = error.error_code_map  # older protocols have none
    return not codes or _TOO_MANY_TOMBSTONES in codes.values()


def mapped(error: Exception, failed: str) -> HoldfastError:
    """The error for callers; `failed` begins its message."""
    causes = _causes(error)
    failed = f"{failed}{type(causes[-1]).__name__}."
    if any(isinstance(each, AuthenticationFailed | Unauthorized) for each in causes):
        return InvalidArgument(
            f"{failed} Set a user who may select, modify and create tables there: options username "
            f"and password, or {ENVIRONMENT}USERNAME and {ENVIRONMENT}PASSWORD.",
            condition="STATE_STORE_ACCESS_DENIED",
        )
    if isinstance(error, UnresolvableContactPoints):
        return InvalidArgument(f"{failed} No such host: check the address.")
    if any(_is_untrusted(each) for each in causes):
        return InvalidArgument(
            f"{failed} The server's certificate is not trusted. Set the option ca to the "
            "certificate of its authority, and name hosts as the certificate does."
        )
    if not passes(error):
        return Unavailable(f"{failed} The server rejected the request: {error}")
    return Unavailable(f"{failed} Try again; `holdfast doctor` checks the root.")


def _is_untrusted(error: Exception) -> bool:
    # The driver keeps only the text of the original error, not its class.
    return isinstance(error, OSError) and "CERTIFICATE_VERIFY_FAILED" in str(error)


def _causes(error: Exception) -> list[Exception]:
    """The failure, and the failures of all hosts where none could be reached."""
    inner = error.errors if isinstance(error, NoHostAvailable) else None
    found = inner.values() if isinstance(inner, Mapping) else inner or ()
    return [error, *(each for each in found if isinstance(each, Exception))]
