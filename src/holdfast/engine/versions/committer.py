"""Commits prepared changes as a version: checks them, packs small deltas, publishes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from holdfast.conf import StateStoreConf
from holdfast.engine.files import copies
from holdfast.engine.files.filenames import pack_path
from holdfast.engine.files.manifest import Manifest, PackSlice, fingerprint
from holdfast.engine.hashing.spark_hash import HASH_NAME
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.commit import PreparedPartition, check_prepared, next_operators
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.retention import USUAL_RETENTION, retention_of
from holdfast.errors import Conflict, HoldfastError

_PACK_ALIGNMENT = 64
_AT_ONCE = 16


class Committer:
    """Creates the versions of a root. Requires: calls come one at a time."""

    def __init__(self, versions: VersionLog, runtime: Runtime, conf: StateStoreConf) -> None:
        self._versions = versions
        self._runtime = runtime
        self._conf = conf
        self._writer_id = runtime.new_id()
        self._epoch: int | None = None

    def commit(
        self,
        base: Manifest,
        based_at_ms: int | None,
        prepared: Sequence[PreparedPartition],
        commit_id: str,
        **facts: Any,
    ) -> Manifest:
        """Commit the version after `base` and return its manifest as it is stored.

        `based_at_ms` is explained in `VersionLog.publish`. `facts` are further fields of the
        manifest, such as batch and watermark. After a failure that leaves the outcome open, call
        again with the same `commit_id`: an earlier call that got through is recognised by it, and
        its manifest is returned. A new id would take that commit for another writer's.

        Raises IllegalState when `prepared` does not fit `base` or a file is missing, and Conflict
        when another writer has committed.
        """
        schemas = {
            (operator, name): fingerprint(store.key_schema, store.value_schema)
            for operator, stores in base.operators.items()
            for name, store in stores.items()
        }
        check_prepared(base, prepared, schemas)
        self._check_files(base, prepared)
        packed = self._pack(base.version + 1, prepared)
        manifest = self._next(base, packed, commit_id, facts)
        return self._versions.publish(manifest, self._conf.grace_period_ms, based_at_ms)

    def conflict_after(self, base: Manifest) -> Conflict | None:
        """The conflict with another writer that has committed a version after `base`.

        None where there is none, or where the storage does not answer.
        """
        try:
            newest = self._versions.newest_intact()
        except HoldfastError:
            return None
        if newest is None or newest.version <= base.version:
            return None
        is_own = newest.writer_id == self._writer_id
        return None if is_own else self._versions.conflict(base.version + 1)

    def _next(
        self,
        base: Manifest,
        prepared: Sequence[PreparedPartition],
        commit_id: str,
        facts: Mapping[str, Any],
    ) -> Manifest:
        if self._epoch is None:
            self._epoch = base.epoch + 1
        kept = retention_of(self._conf)
        return replace(
            base,
            version=base.version + 1,
            parent=base.version,
            parent_commit_id=base.commit_id,
            commit_id=commit_id,
            writer_id=self._writer_id,
            epoch=self._epoch,
            committed_at_ms=self._runtime.clock_ms(),
            hash_name=HASH_NAME,
            operators=next_operators(base, prepared, self._present(base, prepared)),
            tags=self._versions.intact_tags(),
            **{"retention": None if kept == USUAL_RETENTION else kept, "operation": None, **facts},
        )

    def _check_files(self, base: Manifest, prepared: Sequence[PreparedPartition]) -> None:
        """Raise IllegalState for a delta whose file is gone: it was cleaned up as a loser's."""
        wanted = [
            row.delta.path(base.directory(row.operator, row.store, row.partition))
            for row in prepared
            if row.delta is not None and row.inline is None
        ]
        if missing := sorted(set(wanted) - self._there(wanted)):
            raise copies.missing_file(self._versions.storage, missing[0])

    def _present(self, base: Manifest, prepared: Sequence[PreparedPartition]) -> set[str]:
        return self._there(
            swap.output.path(base.directory(row.operator, row.store, row.partition))
            for row in prepared
            for swap in row.swaps
        )

    def _there(self, paths: Iterable[str]) -> set[str]:
        """Which of these files exist; a remote storage is asked for several at a time."""
        wanted, storage = list(dict.fromkeys(paths)), self._versions.storage
        if len(wanted) < 2 or not storage.source.is_remote:
            return {path for path in wanted if storage.size(path) is not None}
        with ThreadPoolExecutor(min(len(wanted), _AT_ONCE), "holdfast-commit") as pool:
            sizes = pool.map(storage.size, wanted)
            return {path for path, size in zip(wanted, sizes, strict=True) if size is not None}

    def _pack(self, version: int, prepared: Sequence[PreparedPartition]) -> list[PreparedPartition]:
        """Write all inline deltas to one new pack; return the results with their positions there.

        A small batch then costs two files, pack and manifest, for any number of partitions.
        """
        if not any(row.inline for row in prepared):
            return list(prepared)
        attempt = self._runtime.new_id()
        placed = []
        offset = 0
        path = pack_path(version, attempt)
        with copies.open_writer(self._versions.storage, path, self._conf) as blob:
            for row in prepared:
                if row.inline is None or row.delta is None:
                    placed.append(row)
                    continue
                blob.write(row.inline)
                padding = -len(row.inline) % _PACK_ALIGNMENT
                blob.write(b"\0" * padding)
                delta = replace(row.delta, pack=PackSlice(version, attempt, offset))
                placed.append(replace(row, delta=delta, inline=None))
                offset += len(row.inline) + padding
        return placed
