"""The registry of loaded providers: opens stores by id and maintains them in the background."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from typing import Any

from holdfast.conf import StateStoreConf
from holdfast.coordinator import Coordinator, LocalCoordinator
from holdfast.engine.periodic import PeriodicJob
from holdfast.errors import InvalidArgument
from holdfast.ids import StateStoreProviderId
from holdfast.store import ReadStateStore, StateStore, StateStoreProvider

log = logging.getLogger(__name__)


class StateStores:
    """The providers loaded in this process, one for each id, created on first use. Thread-safe.

    From the first use until `stop`, a thread runs the maintenance of every provider once in
    `maintenance_interval_ms`, and unloads those that the coordinator reports as inactive. Only a
    provider whose maintenance fails is unloaded; the others continue.

    `coordinator` knows which executor holds which provider; by default there is one for this
    process alone. `executor_id` is the id under which this process reports to it.
    """

    def __init__(self, coordinator: Coordinator | None = None, executor_id: str = "driver") -> None:
        self._coordinator: Coordinator = coordinator or LocalCoordinator()
        self._executor_id = executor_id
        self._loaded: dict[StateStoreProviderId, StateStoreProvider] = {}
        self._maintenance: PeriodicJob | None = None
        self._lock = threading.RLock()

    def get(
        self,
        provider_id: StateStoreProviderId,
        key_schema: Any,
        value_schema: Any,
        key_index_ordinal: int | None,
        version: int,
        store_conf: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
        *,
        num_cols_prefix_key: int = 0,
    ) -> StateStore:
        """Open the store at `version` for update, loading its provider if necessary.

        `provider_id` names the store and the run of the query. The other parameters are those of
        `StateStoreProvider.init` and matter only when the provider is loaded: one that is loaded
        keeps those it was made with. The first call also starts the maintenance thread, with the
        interval of its `store_conf`.

        Raises InvalidArgument for a negative version, for parameters that `init` refuses and for a
        provider class that cannot be loaded, and VersionNotFound for a version that does not exist.
        """
        shape = (key_schema, value_schema, key_index_ordinal, num_cols_prefix_key)
        return self._provider(provider_id, shape, version, store_conf, hadoop_conf).get_store(
            version
        )

    def get_read_only(
        self,
        provider_id: StateStoreProviderId,
        key_schema: Any,
        value_schema: Any,
        key_index_ordinal: int | None,
        version: int,
        store_conf: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
        *,
        num_cols_prefix_key: int = 0,
    ) -> ReadStateStore:
        """Open the store at `version` for reading; otherwise like `get`."""
        shape = (key_schema, value_schema, key_index_ordinal, num_cols_prefix_key)
        return self._provider(provider_id, shape, version, store_conf, hadoop_conf).get_read_store(
            version
        )

    def _provider(
        self,
        provider_id: StateStoreProviderId,
        shape: tuple[Any, Any, int | None, int],
        version: int,
        store_conf: StateStoreConf,
        hadoop_conf: Mapping[str, str] | None,
    ) -> StateStoreProvider:
        if version < 0:
            raise InvalidArgument(f"A version is 0 or above, not {version}.")
        with self._lock:
            self._start_maintenance_if_needed(store_conf)
            provider = self._loaded.get(provider_id)
            if provider is None:
                provider = StateStoreProvider.create_and_init(
                    provider_id.store_id, *shape, store_conf, hadoop_conf
                )
                self._loaded[provider_id] = provider
            self._coordinator.report_active_instance(
                provider_id, socket.gethostname(), self._executor_id
            )
            return provider

    def is_loaded(self, provider_id: StateStoreProviderId) -> bool:
        """Whether the provider is loaded in this process."""
        with self._lock:
            return provider_id in self._loaded

    def unload(self, provider_id: StateStoreProviderId) -> None:
        """Close a provider and forget it. Does nothing when it is not loaded."""
        with self._lock:
            provider = self._loaded.get(provider_id)
        if provider is not None:
            self._unload(provider_id, provider)

    def _unload(self, provider_id: StateStoreProviderId, provider: StateStoreProvider) -> None:
        """Unload exactly this instance: another may have been loaded under its id since."""
        with self._lock:
            if self._loaded.get(provider_id) is not provider:
                return
            del self._loaded[provider_id]
        provider.close()

    def stop(self) -> None:
        """Unload every provider and end the maintenance thread, after a round under way."""
        with self._lock:
            providers, self._loaded = list(self._loaded.values()), {}
            maintenance, self._maintenance = self._maintenance, None
        if maintenance is not None:
            maintenance.stop()
        for provider in providers:
            provider.close()

    @property
    def is_maintenance_running(self) -> bool:
        """Whether the maintenance thread is alive."""
        with self._lock:
            return self._maintenance is not None and self._maintenance.is_running

    def do_maintenance(self) -> None:
        """Run one round of maintenance over all loaded providers. Failures are logged."""
        with self._lock:
            loaded = list(self._loaded.items())
        for provider_id, provider in loaded:
            try:
                if self._is_active(provider_id):
                    provider.do_maintenance()
                else:
                    self._maintain_and_unload(provider_id, provider)
            except Exception:
                log.warning("Maintenance of %s failed; unloading it", provider_id, exc_info=True)
                self._unload(provider_id, provider)

    def _maintain_and_unload(
        self, provider_id: StateStoreProviderId, provider: StateStoreProvider
    ) -> None:
        """Maintain a provider that is active elsewhere a last time, then unload it."""
        try:
            provider.do_maintenance()
        finally:
            self._unload(provider_id, provider)
            log.info("Unloaded %s: another instance is active", provider_id)

    def _is_active(self, provider_id: StateStoreProviderId) -> bool:
        return self._coordinator.verify_if_instance_active(provider_id, self._executor_id)

    def _start_maintenance_if_needed(self, conf: StateStoreConf) -> None:
        if self._maintenance is None:
            self._maintenance = PeriodicJob(
                "holdfast-maintenance", conf.maintenance_interval_ms, self.do_maintenance
            )


default = StateStores()
"""The registry of this process."""
