"""The contract of a coordinator, and one that works inside one process."""

from __future__ import annotations

import threading
from typing import Protocol
from uuid import UUID

from holdfast.ids import StateStoreProviderId

MAX_LAGGING = 100
"""The most stores that `get_lagging_stores` returns."""


class Coordinator(Protocol):
    """Knows the active instance of every provider, and its newest snapshot."""

    def report_active_instance(
        self, provider_id: StateStoreProviderId, host: str, executor_id: str
    ) -> None:
        """Report that this executor holds the provider from now on, without waiting."""
        ...

    def verify_if_instance_active(
        self, provider_id: StateStoreProviderId, executor_id: str
    ) -> bool:
        """Whether this executor's instance is the active one."""
        ...

    def get_location(self, provider_id: StateStoreProviderId) -> str | None:
        """The active instance's location in Spark's notation; None when it is unknown."""
        ...

    def deactivate_instances(self, query_run_id: UUID) -> None:
        """Forget every instance of a run that has stopped, and its snapshots."""
        ...

    def report_snapshot_uploaded(self, provider_id: StateStoreProviderId, version: int) -> None:
        """Report that the provider has a snapshot of its state at `version`, without waiting."""
        ...

    def get_lagging_stores(
        self, query_run_id: UUID, newest_version: int, min_lag: int
    ) -> list[StateStoreProviderId]:
        """The run's active stores whose snapshot is `min_lag` versions or more behind the newest.

        The stores furthest behind come first, at most `MAX_LAGGING` of them. A store without a
        snapshot counts as if it had one of version 0.
        """
        ...


class LocalCoordinator:
    """A coordinator for one process. The last executor to report a provider holds it."""

    def __init__(self) -> None:
        self._instances: dict[StateStoreProviderId, tuple[str, str]] = {}
        self._snapshots: dict[StateStoreProviderId, int] = {}
        self._expected: dict[UUID, int] = {}
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
        return None if instance is None else task_location(*instance)

    def expect_instances(self, query_run_id: UUID, count: int) -> None:
        """Set how many instances a run will have."""
        with self._lock:
            self._expected[query_run_id] = count

    @property
    def expected(self) -> int:
        """How many instances all runs that have not stopped will have."""
        with self._lock:
            return sum(self._expected.values())

    def deactivate_instances(self, query_run_id: UUID) -> None:
        with self._lock:
            self._expected.pop(query_run_id, None)
            for kept in (self._instances, self._snapshots):
                for provider_id in [p for p in kept if p.query_run_id == query_run_id]:
                    del kept[provider_id]

    def report_snapshot_uploaded(self, provider_id: StateStoreProviderId, version: int) -> None:
        with self._lock:
            self._snapshots[provider_id] = max(version, self._snapshots.get(provider_id, 0))

    def get_lagging_stores(
        self, query_run_id: UUID, newest_version: int, min_lag: int
    ) -> list[StateStoreProviderId]:
        with self._lock:
            lags = {
                provider_id: newest_version - self._snapshots.get(provider_id, 0)
                for provider_id in self._instances
                if provider_id.query_run_id == query_run_id
            }
        lagging = [provider_id for provider_id, lag in lags.items() if lag >= min_lag]
        return sorted(lagging, key=lambda p: -lags[p])[:MAX_LAGGING]


def task_location(host: str, executor_id: str) -> str:
    """An executor in Spark's notation for preferred locations of a task."""
    return f"executor_{host}_{executor_id}"
