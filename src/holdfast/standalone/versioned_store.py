"""The open store: update, read any version, tag, maintain."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

import pyarrow as pa

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest, PartitionEntry
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.periodic import PeriodicJob
from holdfast.engine.provider import EngineProvider
from holdfast.engine.statestore import EngineStateStore
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.commit import PreparedPartition, StorePartition
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.requests import MergeRequests
from holdfast.engine.versions.retention import Cleaner
from holdfast.errors import Closed, VersionNotFound
from holdfast.ids import DEFAULT_STORE_NAME, OPERATOR, StateStoreId
from holdfast.reading.figures import intact_history
from holdfast.reading.model import KeyVersion, VersionInfo
from holdfast.reading.reader import StorePlace
from holdfast.reading.root import NEWEST
from holdfast.standalone.partitions import PartitionedReader, PartitionedStore
from holdfast.standalone.view import StandaloneView
from holdfast.store import Row, RowPair
from holdfast.types import Schema
from holdfast.views import ViewSpec

log = logging.getLogger(__name__)


class VersionedStore:
    """A versioned store without Spark, as `holdfast.open` returns it.

    Any number of processes may read it while one writes. If two writers commit the same version,
    the second one gets Conflict and loses only its own update. It is a context manager that closes
    itself.

    Methods raise Closed after `close`, and Unavailable if the storage does not answer. Reads raise
    InvalidArgument for a key, column or filter that does not fit, and Corruption where stored data
    is damaged beyond repair.
    """

    def __init__(
        self,
        root: str,
        storage: Storage,
        versions: VersionLog,
        manifest: Manifest,
        conf: StateStoreConf,
        options: Mapping[str, str],
        runtime: Runtime,
        view: ViewSpec | None = None,
    ) -> None:
        self.root = root
        self.runtime = runtime
        self._storage = storage
        self._versions = versions
        self._conf = conf
        self._manifest = manifest
        self._store = manifest.operators[OPERATOR][DEFAULT_STORE_NAME]
        self._shape = StoreShape.of_entry(self._store)
        self._place = StorePlace(versions, OPERATOR, DEFAULT_STORE_NAME)
        self._committer = Committer(versions, runtime, conf)
        self._cleaner = Cleaner(versions, runtime, conf)
        self._requests = MergeRequests(storage)
        self._lock = threading.RLock()
        self._maintenance: PeriodicJob | None = None
        self._closed = False
        self._providers = [self._new_provider(e.index, options) for e in self._store.partitions]
        self._view = None if view is None else StandaloneView(view, self.root, versions, manifest)
        self.sync_view()

    def _new_provider(self, partition: int, options: Mapping[str, str]) -> EngineProvider:
        provider = HDFSBackedStateStoreProvider(
            prepares_only=True, runtime=self.runtime, versions=self._versions, shape=self._shape
        )
        provider.init(
            StateStoreId(self.root, OPERATOR, partition),
            self._shape.key_schema,
            self._shape.value_schema,
            self._shape.key_index,
            self._shape.prefix,
            self._conf,
            options,
        )
        return provider

    @property
    def version(self) -> int:
        """The newest version this object knows; `refresh` looks for newer ones."""
        return self._manifest.version

    @property
    def key_schema(self) -> Schema:
        """The schema of the keys."""
        return self._shape.key_schema

    @property
    def value_schema(self) -> Schema:
        """The schema of the values."""
        return self._shape.value_schema

    @property
    def partitions(self) -> int:
        """How many partitions the keys are spread over."""
        return len(self._providers)

    @property
    def tags(self) -> dict[str, int]:
        """The version of each tag, by its name."""
        return self._versions.tags()

    def refresh(self) -> int:
        """Look for versions that other writers committed, and return the newest one."""
        self._check_open()
        newest = self._versions.newest()
        with self._lock:
            if newest is not None and newest > self.version:
                self._manifest = self._versions.load(newest)
            return self.version

    def update(self) -> PartitionedStore:
        """Open the newest version for update.

            with db.update() as store:
                store.put(("Sankar",), (200,))

        Leaving the block commits the next version; an exception aborts it. Without `with`, call
        `commit` or `abort`. The commit raises Conflict if another writer was faster. Raises
        IllegalState if the root can only be read. The first call starts background maintenance.
        """
        self._check_open()
        if self._storage.read_only:
            self._storage.create_if_absent("", b"")  # refuses, saying why
        self._start_maintenance()
        based_at_ms = self.runtime.monotonic_ms()
        self.refresh()
        base = self._manifest
        commit_id = self.runtime.new_id()
        parts = [p.get_store(base.version, lambda _: base) for p in self._providers]

        def commit(done: list[EngineStateStore]) -> None:
            self._commit(base, based_at_ms, commit_id, [part.prepared for part in done])

        return PartitionedStore(
            self._place, base.version, parts, self._reopened, commit, self.sync_view
        )

    def at(self, version: int | str) -> PartitionedReader:
        """Open a version for reading.

        `version` is its number (an int or text), one of its tags, or "newest", which also looks for
        versions that other writers committed. Raises VersionNotFound if there is no such version,
        or if retention has removed it.
        """
        self._check_open()
        if isinstance(version, str):
            tags = self.tags  # one may be called as a number is, or "newest"
            if version not in tags and version == NEWEST:
                return self._reopened(None)
            if version not in tags and not version.isdecimal():
                raise VersionNotFound(f"There is no tag {version!r}. The tags are {sorted(tags)}.")
            version = tags[version] if version in tags else int(version)
        load = cache(self._versions.load)  # one manifest names all partitions
        parts = [provider.get_read_store(version, load) for provider in self._providers]
        return PartitionedReader(self._place, version, parts, self._reopened)

    def _reopened(self, at: int | str | None) -> PartitionedReader:
        if at is None:
            newest = self._versions.newest_intact()
            at = self.version if newest is None else newest.version
        return self.at(at)

    def get(self, key: Any) -> Row | None:
        """Return the value of `key` in the newest known version; None if it has no such key."""
        return self.at(self.version).get(key)

    def get_many(self, keys: pa.Table) -> pa.Table:
        """Look up many keys in the newest known version.

        `keys` is a table with the key columns. Returns it in the same order, with the value columns
        (null where a key is absent) and a boolean `_found`.
        """
        return self.at(self.version).get_many(keys)

    def scan(
        self, columns: Sequence[str] | None = None, where: Any = None, prefix: Any = None
    ) -> pa.Table:
        """Return the newest known version as a table, in no particular order.

        `columns` picks some columns. `where` is a filter: text as in `holdfast scan --where`, or a
        pyarrow.compute expression. `prefix` leaves the keys that begin with it: a plain cell or a
        tuple of the first columns of the key, or a dict of any of them.
        """
        return self.at(self.version).scan(columns, where, prefix)

    def prefix_scan(self, prefix: Any) -> Iterator[RowPair]:
        """Iterate over the pairs of the newest known version whose keys begin with `prefix`.

        Requires: the store was created with `num_cols_prefix_key` = len(prefix).
        """
        return self.at(self.version).prefix_scan(prefix)

    def key_history(self, key: Any) -> list[KeyVersion]:
        """List the versions in which a key was added, changed or removed, oldest first."""
        return self.at(self.version).key_history(key)

    def tag(self, name: str, version: int | None = None) -> None:
        """Name a version (by default the newest known one) and keep it until it is untagged.

        Raises VersionNotFound if there is no such version, or if retention is removing it, and
        InvalidArgument if the tag already names another version.
        """
        self._check_open()
        self._versions.tag(name, self.version if version is None else version)

    def untag(self, name: str) -> None:
        """Remove a tag; from then on retention may remove its version.

        Raises InvalidArgument if there is no such tag.
        """
        self._check_open()
        self._versions.untag(name)

    def history(self) -> list[VersionInfo]:
        """List every version that can be read, newest first; damaged ones are logged instead."""
        self._check_open()
        return intact_history(self._versions)

    def maintain(self, *, snapshot: bool = False) -> None:
        """Run compaction and retention now instead of waiting for the background.

        With `snapshot` every partition is merged into one segment, even if that is not due, as are
        those that `holdfast compact --request` asks for. The next commit uses the merged segments.
        A partition that cannot be merged is logged; the other partitions and retention continue.
        """
        self._check_open()
        load = lru_cache(1)(self._versions.load)
        asked = self._requested()
        for provider in self._providers:
            place = OPERATOR, DEFAULT_STORE_NAME, provider.state_store_id.partition_id
            try:
                provider.do_snapshot(force=snapshot or place in asked, load=load)
            except Exception:
                log.warning("Error performing snapshot and cleaning up %s", provider, exc_info=True)
            with self._lock:
                segments = self._manifest.entry(*place).segments
                self._requests.note_merged(place, segments, provider.finished_merges)
        self._cleaner.clean(self._waiting_files, self._lock)

    def _requested(self) -> set[StorePartition]:
        """The partitions that somebody has asked to be merged."""
        with self._lock:
            return self._requests.places(self._manifest)

    def sync_view(self) -> None:
        """Update the view, if there is one, to the newest version this object knows.

        Opening and every commit do that already. Call it after the view's database did not answer.
        Raises Unavailable if it still does not.
        """
        if self._view is not None:
            self._view.follow(self._manifest, self._providers)

    def _waiting_files(self) -> set[str]:
        return {path for provider in self._providers for path in provider.waiting_files()}

    def close(self) -> None:
        """Stop background maintenance and release all files. A second call does nothing."""
        with self._lock:
            self._closed = True
            maintenance, self._maintenance = self._maintenance, None
        if maintenance is not None:
            maintenance.stop()
        for provider in self._providers:
            provider.close()

    def _commit(
        self,
        base: Manifest,
        based_at_ms: int,
        commit_id: str,
        prepared: list[PreparedPartition],
    ) -> None:
        with self._lock:
            manifest = self._committer.commit(base, based_at_ms, prepared, commit_id)
            for provider in self._providers:
                provider.note_committed(manifest)
            self._requests.note_committed(manifest)
            self._manifest = manifest
        log.info("Committed version %d of %s", manifest.version, self.root)

    def _start_maintenance(self) -> None:
        with self._lock:
            if self._maintenance is None:
                self._maintenance = PeriodicJob(
                    "holdfast-maintenance", self._conf.maintenance_interval_ms, self.maintain
                )

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"The store at {self.root} is closed. Open it again.")

    def __enter__(self) -> VersionedStore:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"VersionedStore[{self.root}, version={self.version}, partitions={self.partitions}, "
            f"key=({_cut(self.key_schema.ddl())}), value=({_cut(self.value_schema.ddl())})]"
        )

    def _repr_html_(self) -> str:
        keys = sum(entry.num_keys for entry in self._entries())
        rows = [
            ("root", self.root),
            ("version", self.version),
            ("keys", f"{keys:,}"),
            ("partitions", self.partitions),
            ("key", self.key_schema.ddl()),
            ("value", self.value_schema.ddl()),
        ]
        cells = "".join(
            f"<tr><th>{name}</th><td>{html.escape(str(cell))}</td></tr>" for name, cell in rows
        )
        return f"<table>{cells}</table>"

    def _entries(self) -> list[PartitionEntry]:
        return [entry for _, _, entry in self._manifest.partitions()]


def _cut(text: str, width: int = 40) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
