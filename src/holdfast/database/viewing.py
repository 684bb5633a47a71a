"""The view of a store that is kept without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.database.partitioned import OPERATOR
from holdfast.engine.manifest import Manifest
from holdfast.engine.versions import VersionLog
from holdfast.errors import Unavailable, VersionNotFound
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.views import (
    Applied,
    Follower,
    Step,
    ViewSpec,
    bounds_before,
    changes_of,
    open_view,
    owner_of,
)


class DatabaseView:
    """Follows the versions of one root."""

    def __init__(self, spec: ViewSpec, root: str, versions: VersionLog, manifest: Manifest) -> None:
        self._root = root
        self._versions = versions
        self._view = open_view(spec)
        owner = owner_of(manifest, OPERATOR, DEFAULT_STORE_NAME) or f"root:{root}"
        self._follower = Follower(self._view, owner, root)
        self._follower.prepare(manifest.version)
        self._lock = threading.Lock()

    def follow(self, manifest: Manifest, providers: Sequence[HDFSBackedStateStoreProvider]) -> None:
        """Bring the view to a version. What fails leaves the version as it is: committed."""
        version = manifest.version
        with self._lock:
            before = bounds_before(self._before(version), manifest, OPERATOR, DEFAULT_STORE_NAME)
            is_whole = before is None or not self._follower.is_next(version)

            def run(step: Step) -> Iterator[Applied]:
                for part, provider in enumerate(providers):
                    store = provider.get_read_store(version)
                    bounds = None if before is None else before[part]
                    changes = changes_of(store, bounds, is_whole=step.is_whole)
                    yield step.run(self._view, changes)

            try:
                self._follower.follow(version, is_whole=is_whole, run=run)
            except Unavailable as error:
                raise Unavailable(
                    f"Version {version} of {self._root} is committed, and its view is not up to "
                    f"date. {error.message} sync_view(), the next commit or the next opening "
                    "catches up."
                ) from error

    def _before(self, version: int) -> Manifest | None:
        try:
            return self._versions.load(version - 1) if version else None
        except VersionNotFound:
            return None
