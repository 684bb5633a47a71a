"""What sinks are told of a version: its number, which none of another version may have."""

from __future__ import annotations

from collections.abc import Callable

import xxhash

from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.numbering import Numbering
from holdfast.errors import Corruption, VersionNotFound
from holdfast.spark.sinks.sink import OutputBatch


def output_batch(
    manifest: Manifest,
    before: Callable[[], Manifest | None],
    storage: Storage,
    *,
    is_new: bool,
) -> OutputBatch:
    """What a sink is told of a version; `is_new` where nobody can have delivered its rows."""
    numbers = Numbering.of(manifest)
    return OutputBatch(
        version=manifest.version,
        batch_id=numbers.last,
        commit_id=manifest.commit_id,
        epoch=numbers.epoch,
        made_from=_made_from(manifest, before),
        has_commit_id=manifest.numbering is not None,
        is_new=is_new,
        parent_commit_id=manifest.parent_commit_id,
        is_newest=lambda: _is_newest(VersionLog(storage, Runtime.system()), manifest),
    )


def _made_from(manifest: Manifest, before: Callable[[], Manifest | None]) -> str | None:
    """What makes the same rows again: the version before, and Spark's batch as it was planned.

    None for a tick, which may depend on the clock, and where that version cannot be read.
    """
    batch = manifest.batch
    try:
        earlier = before()
    except Corruption:
        return None
    if batch is None or earlier is None or earlier.batch == batch:
        return None
    text = f"{manifest.parent_commit_id}\n{batch['id']}\n{batch['offsets']}"
    return xxhash.xxh3_128_hexdigest(text.encode())


def _is_newest(versions: VersionLog, manifest: Manifest) -> bool:
    if versions.newest() != manifest.version:
        return False
    try:
        return versions.load(manifest.version).commit_id == manifest.commit_id
    except VersionNotFound:
        return False
