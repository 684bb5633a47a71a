"""A connection to a coordinator across the network."""

from __future__ import annotations

import contextlib
import logging
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from holdfast.coordinator import wire
from holdfast.coordinator.messages import Message, decode_answer, encode
from holdfast.coordinator.wire import Channel, CoordinatorAddress, ProtocolError

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0
HANDSHAKE_TIMEOUT_S = 2.0
RETRY_AFTER_S = 60.0
_FIRST_RETRY_AFTER_S = 1.0
_MOST_UNSENT = 1000
_UNSENT_S = 10.0
"""A report that could not be sent for so long is dropped: it may no longer be true."""
_AT_ONCE = 100
"""Questions sent before their answers are read: few enough for the network to hold both."""


class Connection:
    """One connection to an endpoint, opened when it is first needed.

    A caller waits at most `timeout_s` for the endpoint's host and for answers, and
    `handshake_timeout_s` for its turn, since an endpoint accepts a limited number at a time. After
    a failure the next attempt waits about one second, then two, four and so on, at most
    `retry_after_s`. Each pause is varied by half, so that workers do not return all at once.
    Messages that need no answer are kept until then, but not for long.
    """

    def __init__(
        self,
        address: CoordinatorAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._handshake_timeout_s = handshake_timeout_s
        self._retry_after_s = retry_after_s
        self._lock = threading.Lock()
        self._open: tuple[socket.socket, Channel] | None = None
        self._unsent: deque[tuple[float, Message]] = deque(maxlen=_MOST_UNSENT)
        self._not_before = 0.0
        self._next_pause_s = _FIRST_RETRY_AFTER_S
        self._has_warned = False

    def send(self, message: Message) -> None:
        with self._lock:
            self._unsent.append((time.monotonic(), message))
            self._exchange([])

    def ask(self, messages: Sequence[Message]) -> list[Any] | None:
        answers: list[Any] = []
        for start in range(0, len(messages), _AT_ONCE):
            with self._lock:
                some = self._exchange(messages[start : start + _AT_ONCE])
            if some is None:
                return None
            answers += some
        return answers

    def close(self) -> None:
        """Close the connection; the next message opens it again."""
        with self._lock:
            self._close()

    def _exchange(self, questions: Sequence[Message]) -> list[Any] | None:
        """Send waiting reports and some questions; return the answers, None if that failed."""
        if time.monotonic() < self._not_before:
            return None
        if self._open is not None and _is_stale(self._open[0]):
            self._close()
        was_open = self._open is not None
        try:
            return self._exchanged(questions)
        except (OSError, EOFError, ProtocolError) as error:
            self._close()
            if not was_open:
                self._give_up(error)
                return None
        try:  # The endpoint may have closed an old connection: a new one may work.
            return self._exchanged(questions)
        except (OSError, EOFError, ProtocolError) as error:
            self._close()
            self._give_up(error)
            return None

    def _exchanged(self, messages: Sequence[Message]) -> list[Any]:
        own, channel = self._open = self._open or self._connected()
        since = time.monotonic() - _UNSENT_S
        said = [*(message for at, message in self._unsent if at >= since), *messages]
        own.sendall(b"".join(channel.sealer.seal(encode(message)) for message in said))
        self._unsent.clear()
        self._next_pause_s = _FIRST_RETRY_AFTER_S
        payloads: list[bytes] = []
        deadline = time.monotonic() + self._timeout_s
        while len(payloads) < len(messages):
            if time.monotonic() > deadline:
                raise TimeoutError("no answer")
            payloads += channel.opener.feed(_received(own, 1 << 16))
        return [decode_answer(m, p) for m, p in zip(messages, payloads, strict=True)]

    def _connected(self) -> tuple[socket.socket, Channel]:
        place = (self._address.host.strip("[]"), self._address.port)
        try:
            own = socket.create_connection(place, self._timeout_s)
        except OSError:
            self._next_pause_s = self._retry_after_s  # nobody listens, or no route to the host
            raise
        try:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            own.settimeout(self._handshake_timeout_s)
            secret = self._address.secret
            greeted = _exactly(own, wire.GREETING_BYTES)
            reply = wire.reply_to(secret, greeted)
            own.sendall(reply)
            proof = _exactly(own, wire.PROOF_BYTES)
            own.settimeout(self._timeout_s)
            return own, wire.accept_proof(secret, greeted, reply, proof)
        except BaseException:
            own.close()
            raise

    def _give_up(self, error: Exception) -> None:
        pause_s = min(self._next_pause_s, self._retry_after_s)
        self._next_pause_s = 2 * pause_s
        self._not_before = time.monotonic() + pause_s * random.uniform(0.5, 1.5)
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(
            level,
            "The StateStoreCoordinator at %s:%d cannot be reached (%s). Tasks continue without "
            "preferred locations; the driver's host must be reachable from the executors.",
            self._address.host,
            self._address.port,
            str(error) or type(error).__name__,
        )

    def _close(self) -> None:
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open[0].close()
        self._open = None


def _is_stale(own: socket.socket) -> bool:
    """Whether the other end has closed a connection on which no answer is pending."""
    poll = select.poll()
    poll.register(own, select.POLLIN)
    return bool(poll.poll(0))


def _received(own: socket.socket, most: int) -> bytes:
    data = own.recv(most)
    if not data:
        raise EOFError("the connection was closed")
    return data


def _exactly(own: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += _received(own, count - len(data))
    return data


class _Connections:
    """The connection of this process to its application's endpoint."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._address: CoordinatorAddress | None = None
        self._connection: Connection

    def to(self, address: CoordinatorAddress) -> Connection:
        with self._lock:
            if self._address != address:
                if self._address is not None:
                    self._connection.close()
                self._address, self._connection = address, Connection(address)
            return self._connection


_connections = _Connections()


def connection_to(address: CoordinatorAddress) -> Connection:
    """The connection of this process to that endpoint; a connection to another one is closed."""
    return _connections.to(address)
