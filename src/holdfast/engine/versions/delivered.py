"""What can be known of a version's delivery without the query: by its notes and Spark's logs."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.checkpoint import SparkCheckpoint
from holdfast.engine.files.manifest import Manifest, delivered_notes
from holdfast.engine.storage import Storage

PreviousVersion = Callable[[], Manifest | None]
"""Gives the version before one; None where it is not there."""


def is_noted(storage: Storage, manifest: Manifest) -> bool:
    """Whether a note says that a version was delivered, or it says itself that nothing was due."""
    if (manifest.delivered_through or 0) >= manifest.version:
        return True
    return any(storage.size(path) is not None for path in delivered_notes(manifest))


def is_fill(manifest: Manifest) -> bool:
    """Whether a version only holds what operators start with.

    A tick may follow on it before the first batch; that one is delivered as any other.
    """
    return manifest.version == 1 and manifest.batch is None


def is_tick(manifest: Manifest, before: PreviousVersion) -> bool:
    """Whether Spark does not bring a version's batch again: there is none, or none is known of.

    So it is where the version before is not there to tell one from the other.
    """
    if manifest.version < 2:
        return False
    earlier = before()
    return earlier is None or earlier.batch == manifest.batch


def is_known_delivered(
    storage: Storage,
    manifest: Manifest,
    before: PreviousVersion,
    checkpoint: SparkCheckpoint | None,
) -> bool:
    """Whether a version of a query has surely reached the sink.

    Without Spark's checkpoint only notes tell.
    """
    if manifest.version == 0 or is_fill(manifest) or is_noted(storage, manifest):
        return True
    if checkpoint is None or manifest.batch is None or is_tick(manifest, before):
        return False
    return checkpoint.is_committed(manifest.batch["id"])
