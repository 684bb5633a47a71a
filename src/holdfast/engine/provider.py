"""The columnar provider, which keeps the versions of one store as chains of segments."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.conf import StateStoreConf
from holdfast.engine.counters import SUPPORTED, Counters
from holdfast.engine.files import copies
from holdfast.engine.files.filenames import manifest_path, segment_path
from holdfast.engine.files.manifest import Manifest, PartitionEntry, SegmentRef, fingerprint
from holdfast.engine.files.segment import SegmentInfo
from holdfast.engine.files.segment_writer import SegmentWriter
from holdfast.engine.hashing.samples import check_samples
from holdfast.engine.partition.chain import Chain, SegmentCache
from holdfast.engine.partition.reader import PartitionReader
from holdfast.engine.partition.rows import Rows
from holdfast.engine.partition.shape import StoreShape, check_same_store, check_shape
from holdfast.engine.partition.writer import PartitionWriter
from holdfast.engine.statestore import EngineReadStateStore, EngineStateStore
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.commit import PreparedPartition, Swap
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.first import first_version, new_store_entry
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.merge_queue import MergeQueue
from holdfast.engine.versions.retention import Cleaner
from holdfast.errors import Closed, InvalidArgument, VersionNotFound
from holdfast.ids import StateStoreId
from holdfast.store import (
    StateStoreCustomMetric,
    StateStoreMetrics,
    StateStoreProvider,
)
from holdfast.types import Schema

log = logging.getLogger(__name__)


@dataclass
class OpenVersion:
    """A version that the provider keeps open.

    `based_at_ms` is a time by the monotonic clock at which it was known to be the newest, or None.
    """

    manifest: Manifest
    chain: Chain
    based_at_ms: int | None


@dataclass
class Attempt:
    """An attempt to commit a version; kept so that a second commit recognises the first."""

    commit_id: str
    prepared: PreparedPartition
    files: list[str] = field(default_factory=list)
    published: bool = False
    """Whether a manifest may name the files; from then on only a clean-up may remove them."""
    entry: PartitionEntry | None = None
    """The partition as it was committed; None in a query, where the driver commits."""

    def segments(self, base: PartitionEntry) -> tuple[SegmentRef, ...]:
        """The segments of the new version, as far as this store knows them."""
        if self.entry is not None:
            return self.entry.segments
        delta = self.prepared.delta
        return base.segments if delta is None else (delta, *base.segments)


class EngineProvider(StateStoreProvider):
    """All versions of one store under one root.

    Used alone, a commit writes a manifest for this store, in its own directory. As part of a
    query (`prepares_only`) a commit only prepares: it writes the files of an attempt and reports
    them in `prepared`, and the version exists once the driver's manifest names them.

    Subclasses open the storage at a location, unless the caller passes a `storage`, or `versions`
    with one. A `shape` is one that the caller has already checked against what is stored; the
    providers of a store share it. `runtime` has the clocks and random ids.
    """

    def __init__(
        self,
        *,
        prepares_only: bool = False,
        runtime: Runtime | None = None,
        storage: Storage | None = None,
        versions: VersionLog | None = None,
        shape: StoreShape | None = None,
    ) -> None:
        self._prepares_only = prepares_only
        self._given_versions = versions
        self._given_shape = shape
        self._given_storage = storage if versions is None else versions.storage
        self._runtime = runtime or Runtime.system()
        self._counters = Counters()
        self._open: OrderedDict[int, OpenVersion] = OrderedDict()
        self._lock = threading.RLock()
        self._commits = threading.Lock()
        """Held to commit, and while a clean-up asks which merges a commit may use."""
        self._closed = False

    @abstractmethod
    def _open_storage(self, location: str, options: Mapping[str, str]) -> Storage:
        """The storage at a location."""

    def init(
        self,
        state_store_id: StateStoreId,
        key_schema: Schema,
        value_schema: Schema,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        store_confs: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
    ) -> None:
        self._id = state_store_id
        self._conf = store_confs
        if self._given_shape is None:
            check_shape(key_schema, value_schema, key_index_ordinal, num_cols_prefix_key)
        self.shape = self._given_shape or StoreShape.of(
            key_schema, value_schema, key_index_ordinal, num_cols_prefix_key
        )
        location = (
            state_store_id.checkpoint_root_location
            if self._prepares_only
            else state_store_id.store_checkpoint_location()
        )
        self._directory = state_store_id.relative_location() if self._prepares_only else ""
        self._storage = self._given_storage or self._open_storage(location, hadoop_conf or {})
        self._versions = self._given_versions or VersionLog(self._storage, self._runtime)
        if not self._prepares_only:
            self._committer = Committer(self._versions, self._runtime, store_confs)
            self._cleaner = Cleaner(self._versions, self._runtime, store_confs)
        self._cache = self._new_cache()
        self._merges = MergeQueue(
            self._storage, self._directory, self.shape, store_confs, self._runtime, self._counters
        )
        if self._given_shape is None:
            self._check_stored()

    def _new_cache(self) -> SegmentCache:
        return SegmentCache(self._storage, self._directory, self.shape.layout)

    def _check_stored(self) -> None:
        manifest = self._versions.newest_intact()
        if manifest is None:
            return
        stored = manifest.operators.get(self._id.operator_id, {}).get(self._id.store_name)
        if stored is not None:
            check_same_store(stored, self.shape, str(self._id))
            check_samples(self.shape, manifest.hash_name, stored.hash_samples)

    @property
    def state_store_id(self) -> StateStoreId:
        return self._id

    @property
    def base_dir(self) -> str:
        """The directory of this store."""
        return self._id.store_checkpoint_location()

    def get_store(
        self, version: int, load: Callable[[int], Manifest] | None = None
    ) -> EngineStateStore:
        """Open a version for update. `load` returns its manifest if it was not open yet."""
        opened = self._opened(version, load)
        return EngineStateStore(self, version, PartitionWriter(self.shape, opened.chain), opened)

    def get_read_store(
        self, version: int, load: Callable[[int], Manifest] | None = None
    ) -> EngineReadStateStore:
        """Open a version for reading. `load` returns its manifest if it was not open yet."""
        opened = self._opened(version, load)
        return EngineReadStateStore(self, version, PartitionReader(self.shape, opened.chain))

    def _opened(self, version: int, load: Callable[[int], Manifest] | None) -> OpenVersion:
        if self._closed:
            raise Closed(f"The provider of {self._id} is closed; create a new one.")
        if version < 0:
            raise InvalidArgument(f"A version is 0 or above, not {version}.")
        with self._lock:
            opened = self._open.get(version)
            if opened is not None:
                self._counters.hits += 1
                self._open.move_to_end(version)
                return opened
            self._counters.misses += 1
            opened = self._load(version, load or self._versions.load)
            self._keep(version, opened)
            return opened

    def _load(self, version: int, load: Callable[[int], Manifest]) -> OpenVersion:
        try:
            manifest = load(version)
        except VersionNotFound:
            if version != 0:
                raise
            manifest = self._empty_manifest()
        if self._conf.max_versions_to_retain_in_memory == 0:
            self._cache = self._new_cache()
        entry = self._entry(manifest)
        return OpenVersion(manifest, Chain(entry, version, self._cache), based_at_ms=None)

    def _entry(self, manifest: Manifest) -> PartitionEntry:
        try:
            return manifest.entry(self._id.operator_id, self._id.store_name, self._id.partition_id)
        except KeyError:
            raise VersionNotFound(
                f"Version {manifest.version} has no store {self._id}: it was added later, or the "
                "id is wrong. `holdfast show` lists the stores."
            ) from None

    def _empty_manifest(self) -> Manifest:
        store = new_store_entry(self.shape, [(self._id.partition_id, self._id.partition_id + 1)])
        scope = {"kind": "store", "partition": self._id.partition_id}
        return first_version(
            {self._id.operator_id: {self._id.store_name: store}},
            runtime=None,
            scope={} if self._prepares_only else scope,
        )

    def _keep(self, version: int, opened: OpenVersion) -> None:
        limit = self._conf.max_versions_to_retain_in_memory
        if limit:
            self._open[version] = opened
        while len(self._open) > limit:
            self._open.popitem(last=False)

    def prepare(self, opened: OpenVersion, writer: PartitionWriter) -> Attempt:
        """Write the files of an attempt at the version after `opened`. Nothing is visible yet."""
        sealed = writer.seal()
        version = opened.manifest.version + 1
        delta: SegmentRef | None = None
        inline: bytes | None = None
        files: list[str] = []
        if sealed.pieces:
            delta, inline = self._write_delta(sealed.pieces, version)
            if inline is None:
                path = delta.path(self._directory)
                files = copies.copy_files(self._storage, path, self._conf)
        self._merge_inside_batch(opened.chain)
        prepared = PreparedPartition(
            operator=self._id.operator_id,
            store=self._id.store_name,
            partition=self._id.partition_id,
            base_version=opened.manifest.version,
            schemas=fingerprint(self.shape.key_schema, self.shape.value_schema),
            delta=delta,
            num_keys=sealed.num_keys,
            num_removed=sealed.num_removed,
            evict=sealed.bounds.evict,
            expire=sealed.bounds.expire,
            inline=inline,
            swaps=self._merges.finished,
        )
        return Attempt(self._runtime.new_id(), prepared, files)

    def publish(self, opened: OpenVersion, attempt: Attempt) -> str:
        """Commit a prepared attempt and return the file with its delta. Not used in a query."""
        attempt.published = True
        with self._commits:
            newest_at_ms = self._runtime.monotonic_ms()
            manifest = self._committer.commit(
                opened.manifest, opened.based_at_ms, [attempt.prepared], attempt.commit_id
            )
            self.note_committed(manifest, newest_at_ms)
        attempt.entry = self._entry(manifest)
        if attempt.prepared.delta is None:
            return f"{self._storage.location}/{manifest_path(manifest.version)}"
        return f"{self._storage.location}/{attempt.entry.segments[0].path(self._directory)}"

    def note_committed(self, manifest: Manifest, newest_at_ms: int | None = None) -> None:
        """Keep open a version that was committed with an attempt of this provider.

        `newest_at_ms` is a time by the monotonic clock at which it was certainly the newest.
        """
        with self._lock:
            entry = self._entry(manifest)
            self._merges.keep_fitting(entry)
            chain = Chain(entry, manifest.version, self._cache)
            self._keep(manifest.version, OpenVersion(manifest, chain, newest_at_ms))

    def discard(self, attempt: Attempt) -> None:
        """Remove the files of an attempt, unless a manifest may name them."""
        if attempt.published:
            return
        for path in attempt.files:
            self._storage.delete(path)

    def _write_delta(self, pieces: list[Rows], version: int) -> tuple[SegmentRef, bytes | None]:
        attempt = self._runtime.new_id()
        threshold = self._conf.pack_threshold_bytes
        inline: bytes | None = None
        if sum(rows.nbytes for rows in pieces) <= threshold:
            sink = pa.BufferOutputStream()
            info = self._write_segment(sink, pieces)
            if info.size <= threshold:
                inline = sink.getvalue().to_pybytes()
        if inline is None:
            path = segment_path(self._directory, version, attempt, "delta")
            with copies.open_writer(self._storage, path, self._conf) as blob:
                info = self._write_segment(blob, pieces)
        self._counters.bytes_written += info.size
        ref = SegmentRef("delta", version, version, attempt, info)
        if inline is not None and self._prepares_only:  # the next version is likely to be made here
            self._storage.keep(ref.own_path(self._directory), inline)
        self._cache.trust(ref.name)
        return ref, inline

    def _write_segment(self, sink: object, pieces: list[Rows]) -> SegmentInfo:
        writer = SegmentWriter(
            sink,  # type: ignore[arg-type]  # BufferOutputStream has write, but no annotations
            self.shape.layout,
            expires=any(rows.expires is not None for rows in pieces),
            compression=self._conf.compression,
        )
        for rows in pieces:
            writer.add(rows)
        return writer.finish()

    def _merge_inside_batch(self, chain: Chain) -> None:
        """Merge a chain that is at its limit before the batch continues: reads must stay fast."""
        if self._prepares_only:  # in a query nothing else reports which merges a version includes
            self._merges.keep_fitting(chain.entry)
        if len(chain.entry.segments) >= self._conf.max_segments and not self._merges.finished:
            self._merge(chain)

    def _merge(self, chain: Chain, *, force: bool = False) -> bool:
        output = self._merges.merge(chain, force=force)
        if output is not None:
            self._cache.trust(output.name)
        return output is not None

    def do_maintenance(self) -> None:
        """Snapshot or merge what is due, then clean up. Failures are logged, not raised."""
        try:
            self.do_snapshot()
            self.cleanup()
        except Exception:
            log.warning("Error performing snapshot and cleaning up %s", self, exc_info=True)

    def do_snapshot(
        self, *, force: bool = False, load: Callable[[int], Manifest] | None = None
    ) -> bool:
        """Merge what is due at the newest version; the next commit swaps the result in.

        With `force` everything is merged into a snapshot, due or not. `load` returns manifests.
        Returns whether it merged something.
        """
        newest = self._versions.newest()
        with self._lock:
            if newest is None:
                return False
            entry = self._entry((load or self._versions.load)(newest))
            self._merges.keep_fitting(entry, check_files=True)
            if self._merges.finished:
                return False
            chain = Chain(entry, newest, self._cache)
        return self._merge(chain, force=force)

    def cleanup(self) -> None:
        """Remove versions beyond retention and unneeded files. In a query the driver does that."""
        if not self._prepares_only:
            self._cleaner.clean(self.waiting_files, self._commits)

    @property
    def finished_merges(self) -> tuple[Swap, ...]:
        """Merges that wait for the next commit."""
        return self._merges.finished

    def waiting_files(self) -> set[str]:
        """Files of merges that wait for the next commit, or are under way."""
        return self._merges.files()

    @property
    def supported_custom_metrics(self) -> tuple[StateStoreCustomMetric, ...]:
        return SUPPORTED

    def metrics_of(
        self, segments: Sequence[SegmentRef], num_keys: int, private_bytes: int
    ) -> StateStoreMetrics:
        """Metrics of a version with these segments."""
        return self._counters.metrics_of(segments, num_keys, private_bytes)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._open.clear()

    @property
    def prepares_only(self) -> bool:
        """Whether commits only prepare."""
        return self._prepares_only

    def __repr__(self) -> str:
        return f"{type(self).__name__}[id={self._id},dir={self.base_dir}]"
