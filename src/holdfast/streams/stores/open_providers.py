"""The providers that a worker process keeps open from one task to the next.

Opening a partition reads its manifest and maps its segments, which takes longer than a small task.
PySpark ends worker processes without notice, so no background thread runs here. Instead, every ten
seconds or so a task first asks the coordinator which providers still belong to this executor, and
closes the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from holdfast.coordinator import CoordinatorAddress, StateStoreCoordinatorRef
from holdfast.engine.versions.log import VersionLog
from holdfast.ids import StateStoreId, StateStoreProviderId
from holdfast.store import StateStoreProvider

VERIFY_EVERY_S = 10.0
UNUSED_S = 60.0
"""Without a coordinator, a provider of another run is closed after so long without a task."""
ProviderKey = tuple[str, StateStoreId]
"""A store in a run of a query."""


@dataclass(frozen=True)
class Executor:
    """The executor a task runs in, as Spark knows it."""

    host: str
    executor_id: str


class OpenProviders:
    """The open providers of this process. Tasks of a process come one at a time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._providers: dict[ProviderKey, StateStoreProvider] = {}
        self._used_at: dict[ProviderKey, float] = {}
        self._histories: dict[str, VersionLog] = {}
        """By run, the manifests that its providers share."""
        self._reported: dict[ProviderKey, int] = {}
        """For each reported store, the version last opened here."""
        self._executor: Executor | None = None
        self._verified_at = clock()

    def arrive(self, executor: Executor | None) -> None:
        """Note in which executor the next task runs; None if that is unknown."""
        self._executor = executor

    def tidy(self, run_id: str, coordinator: CoordinatorAddress | None) -> None:
        """Close providers whose partition has moved or whose run has stopped, if a check is due.

        If the coordinator cannot be reached, providers of other runs that were not used for a while
        are closed. Requires: no task is using a provider.
        """
        now, executor = self._clock(), self._executor
        if coordinator is None or executor is None or now - self._verified_at < VERIFY_EVERY_S:
            return
        self._verified_at = now
        by_id = {_provider_id(place): place for place in self._providers}
        asked = StateStoreCoordinatorRef.for_executor(coordinator)
        gone = asked.inactive_among(list(by_id), executor.executor_id)
        if gone is None:
            self._close_unused(run_id)
            return
        for provider_id in gone:
            self._close(by_id[provider_id])

    def provider(
        self,
        place: ProviderKey,
        coordinator: CoordinatorAddress | None,
        make: Callable[[], StateStoreProvider],
    ) -> StateStoreProvider:
        """Return the provider of a store, made with `make` if it is not open yet.

        Without a coordinator, making one also closes providers that other runs no longer use.
        """
        known = self._providers.get(place)
        if known is not None:
            self._used_at[place] = self._clock()
            return known
        if coordinator is None or self._executor is None:
            self._close_unused(place[0])
        made = self._providers[place] = make()
        self._used_at[place] = self._clock()
        return made

    def _close_unused(self, run_id: str) -> None:
        """Close providers that runs other than this one have not used for a while."""
        since = self._clock() - UNUSED_S
        for place in list(self._providers):
            if place[0] != run_id and self._used_at[place] <= since:
                self._close(place)

    def history(self, run_id: str, make: Callable[[], VersionLog]) -> VersionLog:
        """Return the manifests that all providers of a run share; the first one makes them."""
        known = self._histories.get(run_id)
        if known is None:
            known = self._histories[run_id] = make()
        return known

    def report(
        self, place: ProviderKey, coordinator: CoordinatorAddress | None, version: int
    ) -> None:
        """Report to the coordinator that this executor has a store open at a version.

        If this process also opened the version before, no other executor can have had the store
        since, and the report is left out.
        """
        if coordinator is None or self._executor is None:
            return
        before = self._reported.get(place)
        self._reported[place] = version
        if before != version - 1:
            here = self._executor
            asked = StateStoreCoordinatorRef.for_executor(coordinator)
            asked.report_active_instance(_provider_id(place), here.host, here.executor_id)

    def report_snapshot(
        self, place: ProviderKey, coordinator: CoordinatorAddress | None, version: int
    ) -> None:
        """Report to the coordinator that the state of a version is in a snapshot."""
        if coordinator is not None:
            asked = StateStoreCoordinatorRef.for_executor(coordinator)
            asked.report_snapshot_uploaded(_provider_id(place), version)

    def _close(self, place: ProviderKey) -> None:
        self._reported.pop(place, None)
        del self._used_at[place]
        self._providers.pop(place).close()
        for run_id in set(self._histories) - {run for run, _ in self._providers}:
            del self._histories[run_id]


def _provider_id(place: ProviderKey) -> StateStoreProviderId:
    run_id, store_id = place
    return StateStoreProviderId(store_id, UUID(run_id))


here = OpenProviders()
"""The providers of this process."""
