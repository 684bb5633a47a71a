"""The driver's endpoint: one thread that serves every worker of the application."""

from __future__ import annotations

import contextlib
import logging
import resource
import selectors
import socket
import threading
import time
from collections.abc import Iterator

from holdfast.coordinator import wire
from holdfast.coordinator.instances import LocalCoordinator
from holdfast.coordinator.messages import decode, encode_answer
from holdfast.coordinator.wire import Channel, CoordinatorAddress, ProtocolError, Secret

log = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"
FRAME_TIMEOUT_S = 5.0
PROOF_TIMEOUT_S = 2.0
MAX_CONNECTIONS = 4096
_FEWEST_UNPROVED = 64
_BACKLOG = 4096
"""Connections that the kernel queues until there is room; its own limit may be lower."""
_SETTLED_S = 1.0
"""After so long without a message, no message of a worker is in transit."""
_READ_BYTES = 1 << 16
_MAX_UNREAD_BYTES = 4 * wire.MAX_ANSWER_BYTES


class StateStoreCoordinator:
    """Tells the workers of one application which executor holds which store.

    It listens on a free port from its creation until `stop`. Workers prove that they know the
    application's secret. A connection without a proof is closed after `proof_timeout_s`; one that
    sends half a frame or does not read its answers is closed after `timeout_s`; one that is merely
    idle stays. Nothing that a connection sends can end the endpoint.

    File descriptors are limited, and everybody who can reach the port can connect. So at most 64
    connections, or twice the expected instances, may be without a proof, and never more than a
    quarter of the descriptors; further ones wait to be accepted. Workers get about half of the
    descriptors: beyond that the one that was silent longest, for a second at least, is
    disconnected, and connects again when it has a message.
    """

    def __init__(
        self,
        host: str = LOOPBACK,
        *,
        bind_address: str | None = None,
        timeout_s: float = FRAME_TIMEOUT_S,
        proof_timeout_s: float = PROOF_TIMEOUT_S,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self.instances = LocalCoordinator()
        self._timeout_s = timeout_s
        self._proof_timeout_s = proof_timeout_s
        self._max_connections = max_connections
        self._secret = Secret.random()
        self._listener = _listening(bind_address or host)
        self.address = CoordinatorAddress(host, self._listener.getsockname()[1], self._secret)
        """The address that workers connect to."""
        self._connections: dict[socket.socket, _Connection] = {}
        self._unproved: set[_Connection] = set()
        self._accepts = True
        self._has_warned = False
        self._wake, self._woken = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._stopping = False
        self._thread = threading.Thread(
            target=self._serve, name="holdfast-coordinator", daemon=True
        )
        self._thread.start()

    def __repr__(self) -> str:
        return f"StateStoreCoordinator({self.address.host}:{self.address.port})"

    def stop(self) -> None:
        """End the thread and close every connection. Calling it again does nothing."""
        self._stopping = True
        with contextlib.suppress(OSError):
            self._wake.send(b"!")
        self._thread.join()

    @property
    def is_running(self) -> bool:
        """Whether the endpoint is serving."""
        return self._thread.is_alive()

    # -- the thread ----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            while not self._stopping:
                for key, events in self._selector.select(self._until_next_deadline()):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj is self._woken:
                        self._woken.recv(_READ_BYTES)  # or it would wake for ever
                    elif key.fileobj in self._connections:  # else it was closed to make room
                        self._attend(key.data, events)
                self._end_overdue()
                self._accept_while_there_is_room()
        except Exception:
            log.warning("The StateStoreCoordinator endpoint ended", exc_info=True)
        finally:
            for connection in list(self._connections.values()):
                self._drop(connection)
            self._selector.close()
            for own in (self._listener, self._wake, self._woken):
                own.close()

    def _until_next_deadline(self) -> float | None:
        deadlines = [c.deadline for c in self._connections.values() if c.deadline is not None]
        oldest = None if self._accepts else self._oldest_worker
        if oldest is not None and not oldest.is_settled and oldest.deadline is None:
            deadlines.append(oldest.used_at + _SETTLED_S)
        return max(0.0, min(deadlines) - time.monotonic()) if deadlines else None

    @property
    def most_unproved(self) -> int:
        """How many connections may be without a proof at a time."""
        wanted = max(_FEWEST_UNPROVED, 2 * self.instances.expected)
        return max(1, min(wanted, _descriptors() // 4))

    def _accept_while_there_is_room(self) -> None:
        """Start or stop accepting: a connection in the kernel's queue costs no descriptor."""
        self._end_surplus()
        wanted = self._has_room
        if wanted and not self._accepts:
            self._selector.register(self._listener, selectors.EVENT_READ)
        elif self._accepts and not wanted:
            self._selector.unregister(self._listener)
        self._accepts = wanted

    def _end_surplus(self) -> None:
        """Close connections of workers admitted at a time when none could be closed for them."""
        while self._is_full and len(self._connections) - len(self._unproved) > self._most_workers:
            oldest = self._oldest_worker
            if oldest is None or not oldest.is_settled:
                return
            self._drop(oldest)

    @property
    def _is_full(self) -> bool:
        return len(self._connections) >= self._most_workers + self.most_unproved

    def _accept(self) -> None:
        while self._has_room:
            try:
                own, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                time.sleep(0.05)  # perhaps out of file descriptors: do not spin
                return
            own.setblocking(False)
            own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = _Connection(own, self._secret, self._timeout_s, self._proof_timeout_s)
            self._connections[own] = connection
            self._unproved.add(connection)
            self._selector.register(own, selectors.EVENT_READ, connection)
            self._attend(connection, selectors.EVENT_WRITE)

    @property
    def _has_room(self) -> bool:
        """Whether there is room for one more: without a proof now, and as a worker later."""
        if len(self._unproved) >= self.most_unproved or self._is_full:
            return False
        oldest = self._oldest_worker
        return oldest is None or oldest.is_settled

    @property
    def _most_workers(self) -> int:
        return max(1, min(self._max_connections, _descriptors() // 2))

    @property
    def _oldest_worker(self) -> _Connection | None:
        """The worker that was silent longest; None while there is room for another."""
        if len(self._connections) - len(self._unproved) < self._most_workers:
            return None
        workers = (c for c in self._connections.values() if c not in self._unproved)
        return min(workers, key=lambda c: c.used_at)

    def _let_in(self, connection: _Connection) -> None:
        """Count a connection as a worker's; close the oldest one if there are too many."""
        oldest = self._oldest_worker
        self._unproved.remove(connection)
        if oldest is not None and oldest.is_settled:
            self._drop(oldest)

    def _attend(self, connection: _Connection, events: int) -> None:
        """Read, answer and write as far as possible; a failure closes only this connection."""
        try:
            if events & selectors.EVENT_READ:
                for payload in connection.read():
                    message = decode(payload)
                    answer = message.tell(self.instances)
                    if message.is_question:
                        connection.answer(encode_answer(answer))
            connection.write()
            if connection.is_proved and connection in self._unproved:
                self._let_in(connection)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.unread else 0)
            self._selector.modify(connection.own, wanted, connection)
        except ProtocolError as refusal:
            self._tell(str(refusal))
            self._drop(connection)
        except (OSError, EOFError):
            self._drop(connection)
        except Exception:
            self._drop(connection)
            log.warning("The StateStoreCoordinator closed a connection", exc_info=True)

    def _end_overdue(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.deadline is not None and connection.deadline <= now:
                self._tell("silence in the middle of a conversation")
                self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        self._connections.pop(connection.own, None)
        self._unproved.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(connection.own)
        connection.own.close()

    def _tell(self, what: str) -> None:
        """Warn about the first refusal only: many of them must not flood the log."""
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(level, "The StateStoreCoordinator refused a connection: %s", what)


class _Connection:
    """One worker's connection as the endpoint sees it."""

    def __init__(
        self, own: socket.socket, secret: Secret, timeout_s: float, proof_timeout_s: float
    ) -> None:
        self.own = own
        self.unread = bytearray(wire.greeting())
        """Bytes that the worker has not read yet."""
        self.used_at = time.monotonic()
        """When it last sent something."""
        self.deadline: float | None = self.used_at + proof_timeout_s
        """When the connection is closed unless it proceeds; None while nothing is pending."""
        self._secret = secret
        self._timeout_s = timeout_s
        self._greeted = bytes(self.unread)
        self._reply = b""
        self._channel: Channel | None = None

    @property
    def is_proved(self) -> bool:
        """Whether the other end has proved that it knows the secret."""
        return self._channel is not None

    @property
    def is_settled(self) -> bool:
        """Whether it can be closed without losing a message."""
        return self.deadline is None and time.monotonic() - self.used_at >= _SETTLED_S

    def read(self) -> Iterator[bytes]:
        """The requests that are complete by now. Raises EOFError at the end of the stream."""
        data = self.own.recv(_READ_BYTES)
        if not data:
            raise EOFError
        self.used_at = time.monotonic()
        if self._channel is None:
            data = self._shake_hands(data)
        if self._channel is None:
            return
        payloads = self._channel.opener.feed(data)
        if payloads and not self.unread:
            self.deadline = None
        yield from payloads

    def _shake_hands(self, data: bytes) -> bytes:
        """Consume the worker's reply to the greeting; return the bytes that came after it."""
        self._reply += data
        if len(self._reply) < wire.REPLY_BYTES:
            return b""
        reply, rest = self._reply[: wire.REPLY_BYTES], self._reply[wire.REPLY_BYTES :]
        proof, self._channel = wire.accept_reply(self._secret, self._greeted, reply)
        self.unread += proof
        self.deadline = None
        return rest

    def answer(self, payload: bytes) -> None:
        """Queue an answer."""
        assert self._channel is not None
        self.unread += self._channel.sealer.seal(payload)
        if len(self.unread) > _MAX_UNREAD_BYTES:
            raise ProtocolError("answers that nobody reads")

    def write(self) -> None:
        """Send what the worker takes without waiting, and set the next deadline."""
        if self.unread:
            with contextlib.suppress(BlockingIOError):
                del self.unread[: self.own.send(self.unread)]
                if self._channel is not None:
                    self.deadline = None
        is_idle = self._channel is not None and not self._channel.opener.has_part
        if is_idle and not self.unread:
            self.deadline = None
        elif self.deadline is None:
            self.deadline = time.monotonic() + self._timeout_s


def _listening(host: str) -> socket.socket:
    plain = host.strip("[]")
    family = socket.AF_INET6 if ":" in plain else socket.AF_INET
    listener = socket.create_server((plain, 0), family=family, backlog=_BACKLOG)
    listener.setblocking(False)
    return listener


def _descriptors() -> int:
    """How many file descriptors this process may have."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 1 << 20 if limit == resource.RLIM_INFINITY else limit
