"""A reference to the coordinator: in the driver's own process, or across the network."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from holdfast.coordinator import wire
from holdfast.coordinator.endpoint import LOOPBACK, StateStoreCoordinator
from holdfast.coordinator.messages import (
    DeactivateInstances,
    GetLaggingStores,
    GetLocation,
    Message,
    ReportActiveInstance,
    ReportSnapshotUploaded,
    VerifyIfInstanceActive,
    decode_answer,
    encode,
)
from holdfast.coordinator.wire import Channel, CoordinatorAddress, Refused
from holdfast.ids import StateStoreProviderId

log = logging.getLogger(__name__)
TIMEOUT_S = 5.0
RETRY_AFTER_S = 60.0
_AT_ONCE = 100
"""Questions sent before their answers are read: few enough for the network to hold both."""


class Link(Protocol):
    """The way to a coordinator."""

    def send(self, message: Message) -> None:
        """Hand a message over without waiting for what becomes of it."""
        ...

    def ask(self, messages: Sequence[Message]) -> list[Any] | None:
        """The answers to some messages; None when the coordinator cannot be reached."""
        ...


class StateStoreCoordinatorRef:
    """What drivers and workers say to the coordinator: each method is one message.

    Nothing it does fails because the coordinator cannot be reached: a report is lost, a location
    unknown, an instance counted as active. That is logged once as a warning, and tried again
    after a while.
    """

    def __init__(self, link: Link, address: CoordinatorAddress) -> None:
        self._link = link
        self.address = address

    @classmethod
    def for_driver(
        cls, application_id: str, host: str = LOOPBACK, *, bind_address: str | None = None
    ) -> StateStoreCoordinatorRef:
        """The endpoint of this process's application, registered when there is none yet.

        It stays until the process ends or another application begins. Raises OSError when it
        cannot listen.
        """
        return cls(*_registry.found(application_id, host, bind_address))

    @classmethod
    def for_executor(cls, address: CoordinatorAddress) -> StateStoreCoordinatorRef:
        """The endpoint of the application whose driver is elsewhere."""
        link = _connections.to(address)
        log.debug("Retrieved existing StateStoreCoordinator endpoint")
        return cls(link, address)

    def report_active_instance(
        self, provider_id: StateStoreProviderId, host: str, executor_id: str
    ) -> None:
        """Say that this executor holds the provider from now on."""
        self._link.send(ReportActiveInstance(provider_id, host, executor_id))

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str
    ) -> bool:
        """Whether this executor's instance is the active one, as far as can be told."""
        return provider_id not in (self.inactive_among([provider_id], executor_id) or ())

    def inactive_among(
        self, provider_ids: Sequence[StateStoreProviderId], executor_id: str
    ) -> set[StateStoreProviderId] | None:
        """Those of some providers that are not active in this executor; None if nobody answers."""
        asked = [VerifyIfInstanceActive(each, executor_id) for each in provider_ids]
        answers = self._link.ask(asked)
        if answers is None:
            return None
        return {p for p, answer in zip(provider_ids, answers, strict=True) if answer is False}

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        """Where the active instance is, as Spark names task locations; None when unknown."""
        answer = self._answer(GetLocation(provider_id))
        return answer if isinstance(answer, str) else None

    def deactivate_instances(self, query_run_id: UUID) -> None:
        """Forget every instance of a run that has stopped."""
        self._answer(DeactivateInstances(query_run_id))

    def report_snapshot_uploaded(self, provider_id: StateStoreProviderId, version: int) -> None:
        """Say that the state of a version is in a snapshot."""
        self._link.send(ReportSnapshotUploaded(provider_id, version))

    def get_lagging_stores(
        self, query_run_id: UUID, newest_version: int, min_lag: int
    ) -> list[StateStoreProviderId]:
        """The run's stores whose snapshot is `min_lag` versions or more behind, worst first."""
        return self._answer(GetLaggingStores(query_run_id, newest_version, min_lag)) or []

    def _answer(self, message: Message) -> Any:
        answers = self._link.ask([message])
        return None if answers is None else answers[0]


class _Here:
    """The way inside the driver's process."""

    def __init__(self, coordinator: StateStoreCoordinator) -> None:
        self._instances = coordinator.instances

    def send(self, message: Message) -> None:
        message.tell(self._instances)

    def ask(self, messages: Sequence[Message]) -> list[Any]:
        return [message.tell(self._instances) for message in messages]


class Connection:
    """The way across the network: one connection, opened when it is first needed.

    Once it has failed, it is not tried again for `retry_after_s`.
    """

    def __init__(
        self,
        address: CoordinatorAddress,
        *,
        timeout_s: float = TIMEOUT_S,
        retry_after_s: float = RETRY_AFTER_S,
    ) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._retry_after_s = retry_after_s
        self._lock = threading.Lock()
        self._open: tuple[socket.socket, Channel] | None = None
        self._not_before = 0.0
        self._has_warned = False

    def send(self, message: Message) -> None:
        self._exchange([message], answered=False)

    def ask(self, messages: Sequence[Message]) -> list[Any] | None:
        answers: list[Any] = []
        for start in range(0, len(messages), _AT_ONCE):
            some = self._exchange(messages[start : start + _AT_ONCE], answered=True)
            if some is None:
                return None
            answers += some
        return answers

    def close(self) -> None:
        """End the connection; it is opened again when it is needed."""
        with self._lock:
            self._close()

    def _exchange(self, messages: Sequence[Message], *, answered: bool) -> list[Any] | None:
        with self._lock:
            if time.monotonic() < self._not_before:
                return None
            was_open = self._open is not None
            try:
                return self._exchanged(messages, answered)
            except (OSError, EOFError, Refused) as error:
                self._close()
                if not was_open:
                    self._give_up(error)
                    return None
            try:  # The connection was an old one: a new one may do.
                return self._exchanged(messages, answered)
            except (OSError, EOFError, Refused) as error:
                self._close()
                self._give_up(error)
                return None

    def _exchanged(self, messages: Sequence[Message], answered: bool) -> list[Any] | None:
        own, channel = self._open = self._open or self._connected()
        own.sendall(b"".join(channel.sealer.seal(encode(message)) for message in messages))
        if not answered:
            return None
        payloads: list[bytes] = []
        deadline = time.monotonic() + self._timeout_s
        while len(payloads) < len(messages):
            if time.monotonic() > deadline:
                raise TimeoutError("no answer")
            payloads += channel.opener.feed(_received(own, 1 << 16))
        return [decode_answer(m, p) for m, p in zip(messages, payloads, strict=True)]

    def _connected(self) -> tuple[socket.socket, Channel]:
        place = (self._address.host.strip("[]"), self._address.port)
        own = socket.create_connection(place, self._timeout_s)
        try:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secret = self._address.secret
            greeted = _exactly(own, wire.GREETING_BYTES)
            reply = wire.reply_to(secret, greeted)
            own.sendall(reply)
            proof = _exactly(own, wire.PROOF_BYTES)
            return own, wire.accept_proof(secret, greeted, reply, proof)
        except BaseException:
            own.close()
            raise

    def _give_up(self, error: Exception) -> None:
        self._not_before = time.monotonic() + self._retry_after_s
        level = logging.DEBUG if self._has_warned else logging.WARNING
        self._has_warned = True
        log.log(
            level,
            "The StateStoreCoordinator at %s:%d cannot be reached (%s). Tasks go on without "
            "preferred locations; the driver's host must be reachable from the executors.",
            self._address.host, self._address.port, str(error) or type(error).__name__,
        )  # fmt: skip

    def _close(self) -> None:
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open[0].close()
        self._open = None


def _received(own: socket.socket, most: int) -> bytes:
    data = own.recv(most)
    if not data:
        raise EOFError("the connection was ended")
    return data


def _exactly(own: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        data += _received(own, count - len(data))
    return data


class _Registry:
    """The endpoint of this process's application."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._application_id = ""
        self._endpoint: StateStoreCoordinator | None = None
        self._pid = os.getpid()

    def found(
        self, application_id: str, host: str, bind_address: str | None
    ) -> tuple[Link, CoordinatorAddress]:
        with self._lock:
            known = self._endpoint
            if known is not None and self._application_id == application_id and known.is_running:
                log.debug("Retrieved existing StateStoreCoordinator endpoint")
                return _Here(known), known.address
            self._stop()
            made = StateStoreCoordinator(host, bind_address=bind_address)
            self._endpoint, self._application_id = made, application_id
            self._pid = os.getpid()
            log.info("Registered StateStoreCoordinator endpoint")
            return _Here(made), made.address

    def stop(self) -> None:
        if self._pid != os.getpid():
            return  # a fork of the driver ends; the endpoint is not its own
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()
        self._endpoint = None


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


_registry = _Registry()
_connections = _Connections()
atexit.register(_registry.stop)
