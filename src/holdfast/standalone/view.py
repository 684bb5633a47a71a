"""Keeps the view of a store up to date without Spark."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from holdfast.engine.files.manifest import Manifest
from holdfast.engine.provider import EngineProvider
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Unavailable
from holdfast.ids import DEFAULT_STORE_NAME, OPERATOR
from holdfast.views import ChangeCounts, Follower, ViewSpec, ViewStep, open_view


class StandaloneView:
    """Writes each version of one root to its view."""

    def __init__(self, spec: ViewSpec, root: str, versions: VersionLog, manifest: Manifest) -> None:
        self._root = root
        self._versions = versions
        self._view = open_view(spec)
        self._follower = Follower(
            self._view, manifest, OPERATOR, DEFAULT_STORE_NAME, root, versions.newest_intact
        )
        self._lock = threading.Lock()

    def follow(self, manifest: Manifest, providers: Sequence[EngineProvider]) -> None:
        """Update the view to a version. A failure does not undo the commit.

        Raises Unavailable if the database does not answer.
        """
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
                f"Version {version} of {self._root} is committed, but its view is out of date. "
                f"{error.message} sync_view(), the next commit or the next opening updates it."
            ) from error
