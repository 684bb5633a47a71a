"""A reference to the coordinator, in the driver's own process or across the network."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, Protocol
from uuid import UUID

from holdfast.coordinator.connection import connection_to
from holdfast.coordinator.endpoint import LOOPBACK, StateStoreCoordinator
from holdfast.coordinator.messages import (
    DeactivateInstances,
    GetLaggingStores,
    GetLocation,
    Message,
    ReportActiveInstance,
    ReportSnapshotUploaded,
    VerifyIfInstanceActive,
)
from holdfast.coordinator.wire import CoordinatorAddress
from holdfast.ids import StateStoreProviderId

log = logging.getLogger(__name__)


class Link(Protocol):
    """A way to send messages to a coordinator. Neither method raises when that fails."""

    def send(self, message: Message) -> None:
        """Send a message without waiting for its effect. It may get lost."""
        ...

    def ask(self, messages: Sequence[Message]) -> list[Any] | None:
        """Return an answer to each message, or None when the coordinator cannot be reached."""
        ...


class StateStoreCoordinatorRef:
    """The coordinator as drivers and workers use it: each method sends one kind of message.

    Nothing fails because the coordinator cannot be reached: then a report is lost, a location is
    unknown and an instance counts as active. The first failure is logged as a warning, and the
    connection is tried again after a while. Safe to use from several threads.

    Get one from `for_driver` or `for_executor`; `address` is what executors need to reach it.
    """

    def __init__(self, link: Link, address: CoordinatorAddress) -> None:
        self._link = link
        self.address = address

    @classmethod
    def for_driver(
        cls, application_id: str, host: str = LOOPBACK, *, bind_address: str | None = None
    ) -> StateStoreCoordinatorRef:
        """Return a reference to this process's endpoint, which is started if necessary.

        `application_id` is Spark's id of the application: the endpoint serves one application, and
        lives until the process ends or another application begins. `host` is the name under which
        executors reach this process, `bind_address` the address to listen on if that differs.
        Raises OSError when it cannot listen there.
        """
        return cls(*_registry.found(application_id, host, bind_address))

    @classmethod
    def for_executor(cls, address: CoordinatorAddress) -> StateStoreCoordinatorRef:
        """Return a reference to the endpoint at `address`, in the driver's process.

        All references of a process share one connection, which opens with the first message.
        """
        link = connection_to(address)
        log.debug("Retrieved existing StateStoreCoordinator endpoint")
        return cls(link, address)

    def report_active_instance(
        self, provider_id: StateStoreProviderId, host: str, executor_id: str
    ) -> None:
        """Report that this executor holds the provider from now on.

        `host` and `executor_id` are Spark's names of the executor.
        """
        self._link.send(ReportActiveInstance(provider_id, host, executor_id))

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str
    ) -> bool:
        """Return whether this executor's instance is the active one; True if nobody answers."""
        return provider_id not in (self.inactive_among([provider_id], executor_id) or ())

    def inactive_among(
        self, provider_ids: Sequence[StateStoreProviderId], executor_id: str
    ) -> set[StateStoreProviderId] | None:
        """Return which of these providers are not active in this executor.

        None means that the coordinator cannot be reached.
        """
        asked = [VerifyIfInstanceActive(each, executor_id) for each in provider_ids]
        answers = self._link.ask(asked)
        if answers is None:
            return None
        return {p for p, answer in zip(provider_ids, answers, strict=True) if answer is False}

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        """Return the active instance's location in Spark's notation; None when it is unknown."""
        answer = self._answer(GetLocation(provider_id))
        return answer if isinstance(answer, str) else None

    def expect_instances(self, query_run_id: UUID, count: int) -> None:
        """Set how many instances a run will have, so that as many workers may connect at once.

        Does nothing outside the driver.
        """
        if isinstance(self._link, _LocalLink):
            self._link.instances.expect_instances(query_run_id, count)

    def deactivate_instances(self, query_run_id: UUID) -> None:
        """Forget every instance and snapshot of a run that has stopped."""
        self._answer(DeactivateInstances(query_run_id))

    def report_snapshot_uploaded(self, provider_id: StateStoreProviderId, version: int) -> None:
        """Report that the provider has a snapshot of its state at `version`."""
        self._link.send(ReportSnapshotUploaded(provider_id, version))

    def get_lagging_stores(
        self, query_run_id: UUID, newest_version: int, min_lag: int
    ) -> list[StateStoreProviderId]:
        """Return the run's stores whose snapshot is `min_lag` or more versions behind.

        `newest_version` is the version to count from. The stores furthest behind come first; there
        are at most `MAX_LAGGING` of them, and none when the coordinator cannot be reached.
        """
        return self._answer(GetLaggingStores(query_run_id, newest_version, min_lag)) or []

    def _answer(self, message: Message) -> Any:
        answers = self._link.ask([message])
        return None if answers is None else answers[0]


class _LocalLink:
    """Calls the coordinator directly, inside the driver's process."""

    def __init__(self, coordinator: StateStoreCoordinator) -> None:
        self.instances = coordinator.instances

    def send(self, message: Message) -> None:
        message.tell(self.instances)

    def ask(self, messages: Sequence[Message]) -> list[Any]:
        return [message.tell(self.instances) for message in messages]


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
                return _LocalLink(known), known.address
            self._stop()
            made = StateStoreCoordinator(host, bind_address=bind_address)
            self._endpoint, self._application_id = made, application_id
            self._pid = os.getpid()
            log.info("Registered StateStoreCoordinator endpoint")
            return _LocalLink(made), made.address

    def stop(self) -> None:
        if self._pid != os.getpid():
            return  # a fork of the driver is ending: the endpoint belongs to the parent
        with self._lock:
            self._stop()

    def _stop(self) -> None:
        if self._endpoint is not None:
            self._endpoint.stop()
        self._endpoint = None


_registry = _Registry()
atexit.register(_registry.stop)
