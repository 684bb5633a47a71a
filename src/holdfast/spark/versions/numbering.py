"""What sinks are told of a version: its number, which none of another version may have."""

from __future__ import annotations

import re
from collections.abc import Callable

import xxhash

from holdfast.engine.files.filenames import DELIVERED, VERSIONS, jump_of, jump_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, VersionNotFound
from holdfast.spark.sinks.sink import OutputBatch
from holdfast.streams.numbering import Numbering

_GIVEN_UP = re.compile(
    rf"({VERSIONS}/(?P<moved>\d{{1,18}})[.\-].+)|({DELIVERED}/(?P<noted>\d{{1,18}})(-.*)?)"
)
"""A manifest that was moved away, to `versions/7.damaged` say, and a note on delivery."""


def lost_numbers(storage: Storage, newest: Manifest) -> int:
    """How many numbers after that of the newest version may have been handed out.

    Versions after it were given up, their manifests moved away. Their numbers may have reached a
    sink, with other rows than those that come now. A version takes one number at the most; where
    one was made in place of another that was given up, `note_jump` has kept how far it jumped: the
    same version may be given up again, and its name alone tells of one number only.
    """
    paths = [blob.path for folder in (VERSIONS, DELIVERED) for blob in storage.list(folder)]
    found = [match["moved"] or match["noted"] for match in map(_GIVEN_UP.fullmatch, paths) if match]
    furthest = max([newest.version, *map(int, found)])
    last = Numbering.of(newest).last
    jumps = [jump for jump in map(jump_of, paths) if jump and newest.version < jump[0]]
    used = [number + furthest - version for version, number in jumps]
    return max([furthest - newest.version, *(each - last for each in used)])


def note_jump(storage: Storage, version: int, number: int) -> None:
    """Keep the number of a version that is about to take the place of one that was given up."""
    storage.create_if_absent(jump_path(version, number), b"")


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
