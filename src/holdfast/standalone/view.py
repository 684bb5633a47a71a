"""The view of a store that is kept without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Unavailable
from holdfast.ids import DEFAULT_STORE_NAME, OPERATOR
from holdfast.views import ChangeCounts, Follower, ViewSpec, ViewStep, open_view


class StandaloneView:
    """Follows the versions of one root."""

    def __init__(self, spec: ViewSpec, root: str, versions: VersionLog, manifest: Manifest) -> None:
        self._root = root
        self._versions = versions
        self._view = open_view(spec)
        self._follower = Follower(
            self._view, manifest, OPERATOR, DEFAULT_STORE_NAME, root, versions.newest_intact
        )
        self._lock = threading.Lock()

    def follow(self, manifest: Manifest, providers: Sequence[HDFSBackedStateStoreProvider]) -> None:
        """Bring the view to a version. What fails leaves the version as it is: committed."""
        version = manifest.version

        def run(step: ViewStep) -> Iterator[ChangeCounts]:
            for part, provider in enumerate(providers):
                changes = step.changes(provider.get_read_store(version, lambda _: manifest), part)
                yield step.run(self._view, changes)

        try:
            with self._lock:
                self._follower.follow(manifest, lambda: self._versions.load(version - 1), run)
        except Unavailable as error:
            raise Unavailable(
                f"Version {version} of {self._root} is committed, and its view is not up to "
                f"date. {error.message} sync_view(), the next commit or the next opening "
                "catches up."
            ) from error
