"""The open store: update, read, tag, look back."""

from __future__ import annotations

import html
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest, PartitionEntry
from holdfast.engine.partition.chain import StoreShape
from holdfast.engine.periodic import PeriodicJob
from holdfast.engine.statestore import EngineStateStore
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
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
    """A root with one keyed store, dealt out to a number of partitions.

    Any number of readers may have it open, in any process; one writer at a time. A second writer
    that commits the same version gets Conflict and loses nothing but its own update.
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
        self._lock = threading.RLock()
        self._maintenance: PeriodicJob | None = None
        self._closed = False
        self._providers = [self._new_provider(e.index, options) for e in self._store.partitions]
        self._view = None if view is None else StandaloneView(view, self.root, versions, manifest)
        self.sync_view()

    def _new_provider(
        self, partition: int, options: Mapping[str, str]
    ) -> HDFSBackedStateStoreProvider:
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
        """The newest version this handle knows; `refresh` looks for newer ones."""
        return self._manifest.version

    @property
    def key_schema(self) -> Schema:
        """The columns of a key."""
        return self._shape.key_schema

    @property
    def value_schema(self) -> Schema:
        """The columns of a value."""
        return self._shape.value_schema

    @property
    def partitions(self) -> int:
        """How many partitions the keys are dealt out to."""
        return len(self._providers)

    @property
    def tags(self) -> dict[str, int]:
        """Every tag with the version it names."""
        return self._versions.tags()

    def refresh(self) -> int:
        """Look for versions other writers committed; return the newest."""
        self._check_open()
        newest = self._versions.newest()
        with self._lock:
            if newest is not None and newest > self.version:
                self._manifest = self._versions.load(newest)
            return self.version

    def update(self) -> PartitionedStore:
        """The newest version, open for update. As a context manager it commits on leaving and
        aborts on an exception.
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
        """A version for reading: by number, by number in text, by tag, or "newest"."""
        self._check_open()
        if version == NEWEST:
            return self._reopened(None)
        if isinstance(version, str) and version.isdecimal():
            version = int(version)
        elif isinstance(version, str):
            tags = self.tags
            if version not in tags:
                raise VersionNotFound(f"There is no tag {version!r}; there are {sorted(tags)}.")
            version = tags[version]
        loaded: dict[int, Manifest] = {}

        def load(wanted: int) -> Manifest:  # one manifest names all partitions
            if wanted not in loaded:
                loaded[wanted] = self._versions.load(wanted)
            return loaded[wanted]

        parts = [provider.get_read_store(version, load) for provider in self._providers]
        return PartitionedReader(self._place, version, parts, self._reopened)

    def _reopened(self, at: int | str | None) -> PartitionedReader:
        if at is None:
            newest = self._versions.newest_intact()
            at = self.version if newest is None else newest.version
        return self.at(at)

    def get(self, key: Any) -> Row | None:
        """The value of a key in the newest version."""
        return self.at(self.version).get(key)

    def get_many(self, keys: pa.Table) -> pa.Table:
        """The keys in their order, their newest values and `_found`."""
        return self.at(self.version).get_many(keys)

    def scan(self, columns: Sequence[str] | None = None, where: Any = None) -> pa.Table:
        """The newest version as a table. `where` is text, as in `holdfast scan --where`, or a
        pyarrow.compute expression.
        """
        return self.at(self.version).scan(columns, where)

    def prefix_scan(self, prefix: Any) -> Iterator[RowPair]:
        """Pairs of the newest version whose first key columns equal `prefix`."""
        return self.at(self.version).prefix_scan(prefix)

    def key_history(self, key: Any) -> list[KeyVersion]:
        """The versions there are in which a key came, changed or went, oldest first."""
        return self.at(self.version).key_history(key)

    def tag(self, name: str, version: int | None = None) -> None:
        """Name a version, the newest when none is given; it is kept until untagged."""
        self._check_open()
        self._versions.tag(name, self.version if version is None else version)

    def untag(self, name: str) -> None:
        """Remove a tag; its version may be cleaned up from then on."""
        self._check_open()
        self._versions.untag(name)

    def history(self) -> list[VersionInfo]:
        """Every version that can be read, newest first; damaged ones are named in the log."""
        self._check_open()
        return intact_history(self._versions)

    def maintain(self, *, snapshot: bool = False) -> None:
        """Merge what is due and clean up now, rather than in the background.

        With `snapshot` every partition is merged whole, due or not; the next commit uses it.

        A partition that cannot be merged is named in the log; the others and the clean-up go on.
        """
        self._check_open()
        load = lru_cache(1)(self._versions.load)
        for provider in self._providers:
            try:
                provider.do_snapshot(force=snapshot, load=load)
            except Exception:
                log.warning("Error performing snapshot and cleaning up %s", provider, exc_info=True)
        self._cleaner.clean(self._waiting_files, self._lock)

    def sync_view(self) -> None:
        """Bring the view, if there is one, to the newest version this handle knows.

        Opening and every commit do it. Where the database did not answer then, this, the next
        commit or the next opening catches up.
        """
        if self._view is not None:
            self._view.follow(self._manifest, self._providers)

    def _waiting_files(self) -> set[str]:
        return {path for provider in self._providers for path in provider.waiting_files()}

    def close(self) -> None:
        """End the background maintenance and let go of everything."""
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
            raise Closed(f"The store at {self.root} is closed; open it again.")

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
