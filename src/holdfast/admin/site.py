"""A root that an operation works on, and how an operation becomes one version of it.

Whether a driver runs on the root cannot be known from outside. So an operation claims the root as a
driver that starts does: one that runs stops with a Conflict, and loses nothing.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast import reading
from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.rewind import finish
from holdfast.backends.locations import open_storage
from holdfast.checkpoint import SparkCheckpoint
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import STATE_FOLDER
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.claims import Claims
from holdfast.engine.versions.journal import Journal, OperationEntry
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.retention import USUAL_RETENTION
from holdfast.errors import Conflict, IllegalState, InvalidArgument
from holdfast.reading import Root

Location = str | os.PathLike[str]


@dataclass(frozen=True)
class Site:
    """A root, opened for operations. Nothing is written by opening it."""

    root: Root
    runtime: Runtime
    checkpoint: SparkCheckpoint | None
    """Spark's checkpoint of the query, None for a standalone store."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How the root is reached; never to be shown or kept."""

    @property
    def storage(self) -> Storage:
        """Where the root's files are, past any cache."""
        return self.root.storage.source

    @property
    def location(self) -> str:
        """The root as a person would write it."""
        return self.root.location

    @property
    def versions(self) -> VersionLog:
        """The history of the root."""
        return VersionLog(self.storage, self.runtime)

    @property
    def journal(self) -> Journal:
        """The journal of the root."""
        return Journal(self.versions)

    def newest(self) -> Manifest:
        """The newest version that can be read. Raises Corruption where none can."""
        found = self.versions.newest_intact()
        if found is None:
            raise InvalidArgument(
                f"{self.location} has no version. Check the path.",
                condition="STATE_STORE_NOT_A_STORE",
            )
        return found

    def conf_of(self, manifest: Manifest) -> StateStoreConf:
        """The settings to write a version with: retention as its writer has it, else defaults."""
        kept = manifest.retention or USUAL_RETENTION
        return replace(
            StateStoreConf.empty,
            min_versions_to_retain=kept["versions"],
            grace_period_ms=kept["grace_ms"],
        )

    def age_ms(self, manifest: Manifest) -> int:
        """How long ago a version was committed, by this machine's clock."""
        return max(0, self.runtime.clock_ms() - manifest.committed_at_ms)

    def entry(
        self,
        kind: str,
        version: int,
        reason: str | None,
        detail: Mapping[str, Any],
        *,
        makes_version: bool = True,
        goes_back: bool = False,
    ) -> OperationEntry:
        """The journal's entry of an operation that begins now."""
        return OperationEntry(
            self.runtime.new_id(),
            kind,
            version,
            self.runtime.clock_ms(),
            _who(),
            makes_version,
            goes_back,
            reason,
            detail,
        )

    def check_unchanged(self, planned: Manifest) -> None:
        """Raise Conflict where a version was committed since an operation was planned."""
        newest = self.newest()
        if newest.commit_id != planned.commit_id:
            raise Conflict(
                f"{self.location} was at version {planned.version} when this was planned, and is "
                f"at {newest.version} now. Nothing was changed. Stop the stream, then plan again."
            )

    def finish_rewind(self) -> None:
        """Finish what an operation before this one, which crashed, has left to do."""
        if self.checkpoint is not None:
            finish(self.versions, self.newest(), self.checkpoint)

    def carry_out(
        self, entry: OperationEntry, planned: Manifest, publish: Callable[[], Manifest]
    ) -> Manifest:
        """Claim the root, write the entry, and have `publish` make the version of an operation.

        Raises Conflict where a driver or another operation was faster: then nothing was changed.
        """
        claims = Claims(self.storage, self.runtime, f"holdfast {entry.kind}")
        claims.take()
        self.check_unchanged(planned)
        self.finish_rewind()
        self.journal.begin(entry)
        try:
            claims.check()
            made = publish()
        except (Conflict, IllegalState, InvalidArgument):
            # A writer that slept is told of a conflict, and its version may count all the same.
            if not self.journal.has_version(entry):
                self.journal.give_up(entry)
            raise
        self.journal.done(entry)
        return made


def open_site(
    location: Location,
    checkpoint: Location | None = None,
    options: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
) -> Site:
    """Open the one root at a location: a query's checkpoint or stateLocation, or a store's folder.

    `checkpoint` names Spark's checkpoint where the state is elsewhere. Raises InvalidArgument for a
    place without state, with several roots, or that can only be read, and IllegalState
    (STATE_STORE_WRONG_PAIR) for a checkpoint of another query.
    """
    root = reading.open_root(location, options=options)
    if root.storage.source.read_only:
        raise InvalidArgument(
            f"{root.location} can only be read from here. Nothing was changed. Name the root by an "
            "address that Holdfast writes to."
        )
    found = _checkpoint_of(root, location, checkpoint, options)
    if found is not None:
        found.check_pair(root.location, root.newest_readable())
    return Site(root, runtime or Runtime.system(), found, dict(options or {}))


def _checkpoint_of(
    root: Root,
    location: Location,
    checkpoint: Location | None,
    options: Mapping[str, str] | None,
) -> SparkCheckpoint | None:
    """Spark's checkpoint: the one that is named, or the folder that the state is in."""
    if checkpoint is not None:
        return _opened(os.fspath(checkpoint), options)
    folder, _, name = root.location.rstrip("/").rpartition("/")
    if name != STATE_FOLDER or not folder or root.kind != "query":
        return None
    around = _opened(folder, options)
    return around if around.is_noted() or around.query_id() is not None else None


def _opened(location: str, options: Mapping[str, str] | None) -> SparkCheckpoint:
    storage = open_storage(location, options).source
    return SparkCheckpoint(StoredFiles(storage), storage.location)


def _who() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # no name for this user id, as in some containers
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
