"""Takes Spark's checkpoint back to the batch of an earlier version.

Spark continues after the newest batch in its logs. So the entries of later batches are moved aside,
into a folder of the checkpoint, and those of the batch to continue from are written where Spark has
removed them. Doing it again is harmless: a crash in between is finished by the next start of the
query, or by the next operation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.checkpoint import COMMITS, OFFSETS, SparkCheckpoint
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, IllegalState, VersionNotFound

UNDONE = "holdfast-undone"
"""The folder of a checkpoint that entries are moved into, one folder for each operation."""
_ENTRY = re.compile(r"\.?(?P<batch>\d{1,18})(\.crc)?")
"""An entry of a log, or its checksum on a local disk."""
_NO_WATERMARK = 'v1\n{"nextBatchWatermarkMs":0}'
"""Spark's own watermark: its query is stateless, and has none."""
_MOST_NAMES = 100


@dataclass(frozen=True, slots=True)
class Rewind:
    """What has to be done to a checkpoint. Nothing where both are empty."""

    moves: tuple[str, ...] = ()
    """Entries to move aside, those of the newest batch first: what is left is a valid log."""
    writes: tuple[tuple[str, str], ...] = ()
    """Entries to write, with their texts."""
    batches: tuple[int, ...] = ()
    """The batches that are taken back, in order."""


def plan_rewind(
    checkpoint: SparkCheckpoint, batch: Mapping[str, Any] | None, earlier: Callable[[], str | None]
) -> Rewind:
    """How a checkpoint gets back to where `batch` is the newest one, and is done.

    `batch` is None where no batch was done. `earlier` gives the offsets entry of the batch before
    it, where a version still has it: Spark asks for two.
    """
    upto = -1 if batch is None else int(batch["id"])
    later = _entries(checkpoint, upto + 1)
    moves = [path for _, path in sorted(later, reverse=True)]
    batches = tuple(sorted({number for number, _ in later}))
    if batch is None:
        return Rewind(tuple(moves), batches=batches)
    own = f"{OFFSETS}/{upto}"
    stored = checkpoint.files.read_text(own)
    is_other = stored is not None and stored.strip() != str(batch["offsets"]).strip()
    if is_other:
        # A batch of this number that was planned after another rollback, with other input.
        moves += [path for number, path in _entries(checkpoint, upto) if number == upto]
    texts: dict[str, Callable[[], str]] = {}
    if upto:
        # Spark reads the one before only to replace it by this one.
        texts[f"{OFFSETS}/{upto - 1}"] = lambda: earlier() or str(batch["offsets"])
    texts[own] = lambda: str(batch["offsets"])
    texts[f"{COMMITS}/{upto}"] = lambda: _NO_WATERMARK
    missing = [
        (path, text())
        for path, text in texts.items()
        if path in moves or checkpoint.files.read_text(path) is None
    ]
    return Rewind(tuple(moves), tuple(missing), batches)


def _entries(checkpoint: SparkCheckpoint, least: int) -> list[tuple[int, str]]:
    """The entries of both logs from a batch on, and their checksums, with their batches."""
    found = []
    for log in (OFFSETS, COMMITS):
        for name in checkpoint.files.names(log):
            match = _ENTRY.fullmatch(name)
            if match is not None and int(match["batch"]) >= least:
                found.append((int(match["batch"]), f"{log}/{name}"))
    return found


def rewind(checkpoint: SparkCheckpoint, plan: Rewind, name: str) -> None:
    """Carry a plan out; `name` is the folder for what is moved. Doing it again is harmless."""
    for path in plan.moves:
        _move_aside(checkpoint, path, name)
    for path, text in plan.writes:
        checkpoint.files.create_if_absent(path, text)


def _move_aside(checkpoint: SparkCheckpoint, path: str, name: str) -> None:
    files = checkpoint.files
    # A driver that has not noticed yet may write an entry once more, which gets a name of its own.
    for number in range(_MOST_NAMES):
        suffix = f"-{number}" if number else ""
        if files.move(path, f"{UNDONE}/{name}/{path}{suffix}"):
            return
        folder, _, last = path.rpartition("/")
        if last not in files.names(folder):
            return
    raise IllegalState(
        f"{checkpoint.location}/{path} could not be moved to {UNDONE}/{name}. Stop whoever writes "
        "to the checkpoint, then run the command again."
    )


def pending(versions: VersionLog, newest: Manifest) -> Manifest | None:
    """The version with which history went back last, if no batch has been committed since.

    As long as that is so, Spark's logs may still have to be taken back.
    """
    found: Manifest | None = newest
    while found is not None and found.operation is not None:
        if found.goes_back:
            return found
        found = _loaded(versions, found.version - 1)
    return None


def finish(versions: VersionLog, newest: Manifest, checkpoint: SparkCheckpoint) -> Sequence[int]:
    """Finish what an operation that went back has left to do; the batches that were taken back."""
    went_back = pending(versions, newest)
    if went_back is None or went_back.operation is None:
        return ()
    plan = plan_rewind(checkpoint, newest.batch, partial(earlier_offsets, versions, newest))
    rewind(checkpoint, plan, str(went_back.operation["id"]))
    return plan.batches


def earlier_offsets(versions: VersionLog, manifest: Manifest) -> str | None:
    """The offsets entry of the batch before that of a version, where a version still has it."""
    if manifest.batch is None:
        return None
    wanted = int(manifest.batch["id"]) - 1
    for version in reversed(versions.versions()):
        found = _loaded(versions, version)
        batch = None if found is None else found.batch
        if batch is None or batch["query_id"] != manifest.batch["query_id"]:
            continue
        if int(batch["id"]) == wanted:
            return str(batch["offsets"])
    return None


def _loaded(versions: VersionLog, version: int) -> Manifest | None:
    try:
        return versions.load(version)
    except (VersionNotFound, Corruption):
        return None
