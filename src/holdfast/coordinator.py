"""Who holds which store. The protocol, and the form it takes inside one process."""

from __future__ import annotations

import threading
from typing import Protocol
from uuid import UUID

from holdfast.ids import StateStoreProviderId


class Coordinator(Protocol):
    """Knows the active instance of every provider."""

    def report_active_instance(
        self, provider_id: StateStoreProviderId, host: str, executor_id: str
    ) -> None:
        """Say that this executor holds the provider from now on. Nobody waits for an answer."""
        ...

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str
    ) -> bool:
        """Whether this executor's instance is the active one."""
        ...

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        """Where the active instance is, as Spark names task locations; None when unknown."""
        ...

    def deactivate_instances(self, query_run_id: UUID) -> None:
        """Forget every instance of a run that has stopped."""
        ...


class LocalCoordinator:
    """A coordinator for one process. The last executor to report a provider holds it."""

    def __init__(self) -> None:
        self._instances: dict[StateStoreProviderId, tuple[str, str]] = {}
        self._lock = threading.Lock()

    def report_active_instance(
        self, provider_id: StateStoreProviderId, host: str, executor_id: str
    ) -> None:
        with self._lock:
            self._instances[provider_id] = (host, executor_id)

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str
    ) -> bool:
        with self._lock:
            instance = self._instances.get(provider_id)
        return instance is not None and instance[1] == executor_id

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        with self._lock:
            instance = self._instances.get(provider_id)
        return None if instance is None else f"executor_{instance[0]}_{instance[1]}"

    def deactivate_instances(self, query_run_id: UUID) -> None:
        with self._lock:
            for provider_id in [p for p in self._instances if p.query_run_id == query_run_id]:
                del self._instances[provider_id]
