"""The file-backed provider, under the name Spark users know it by."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.backends.locations import open_storage
from holdfast.engine.provider import EngineProvider
from holdfast.engine.statestore import EngineStateStore as HDFSBackedStateStore
from holdfast.engine.storage import Storage

__all__ = ["HDFSBackedStateStore", "HDFSBackedStateStoreProvider"]


class HDFSBackedStateStoreProvider(EngineProvider):
    """Keeps the versions of a store at any root that `open_storage` supports."""

    def _open_storage(self, location: str, options: Mapping[str, str]) -> Storage:
        return open_storage(location, options, self._conf)
