"""Requests for merges: left in the root from outside, taken by whoever writes it.

A request is a file `requests/<id>` with the partitions to be merged into one segment each. The
process that writes the root finds it at its maintenance, merges them, and removes the file once
versions have all the merges. Until then, or the next start of such a process, it stays.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence

from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import REQUESTS, is_request, request_path
from holdfast.engine.files.manifest import Manifest, SegmentRef
from holdfast.engine.storage import BlobNotFound, Storage
from holdfast.engine.versions.commit import StorePartition, Swap
from holdfast.engine.versions.compaction import plan
from holdfast.errors import HoldfastError

log = logging.getLogger(__name__)
_FORMAT = 1


def leave_request(
    storage: Storage, request_id: str, places: Collection[StorePartition], at_ms: int
) -> None:
    """Ask whoever writes the root to merge these partitions."""
    body = {"format": _FORMAT, "at_ms": at_ms, "places": [list(place) for place in sorted(places)]}
    storage.create_if_absent(request_path(request_id), json.dumps(body).encode())


class MergeRequests:
    """The requests in one root, as the process sees them that writes it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._open: dict[str, set[StorePartition]] = {}
        """What is left to do of each request, by its path."""
        self._waiting: dict[StorePartition, str] = {}
        """Merges of whole partitions that a version has to take in, by their names."""

    def places(self, manifest: Manifest) -> set[StorePartition]:
        """Look for requests: the partitions to be merged now, of those in the newest version.

        A storage that does not answer is asked again the next time.
        """
        try:
            self._look()
            self._close(self._settled(manifest))
        except HoldfastError as error:
            log.warning("Could not look for requests in %s: %s", self._storage.location, error)
        return {place for left in self._open.values() for place in left} - set(self._waiting)

    def note_merged(
        self, place: StorePartition, segments: Sequence[SegmentRef], swaps: Collection[Swap]
    ) -> None:
        """Take note of merges of a partition with these segments that wait for a version."""
        whole = tuple(ref.name for ref in segments)
        for swap in swaps:
            if swap.inputs == whole:
                self._waiting[place] = swap.output.name

    def note_committed(self, manifest: Manifest) -> None:
        """Take note of a version. Requests that are fulfilled with it are removed."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        taken = {
            place
            for place, name in waiting.items()
            if any(ref.name == name for ref in _segments(manifest, place) or ())
        }
        try:
            self._close(taken)
        except HoldfastError as error:  # at the next look it is found to be fulfilled
            log.warning("Could not remove a request in %s: %s", self._storage.location, error)

    def _look(self) -> None:
        listed = {blob.path for blob in self._storage.list(REQUESTS) if is_request(blob.path)}
        self._open = {path: left for path, left in self._open.items() if path in listed}
        for path in sorted(listed.difference(self._open)):
            found = self._load(path)
            if found is not None:
                self._open[path] = found

    def _load(self, path: str) -> set[StorePartition] | None:
        try:
            body = json.loads(bytes(self._storage.read(path)))
            if body["format"] != _FORMAT:
                return None  # of a later release, for one
            return {(int(op), str(name), int(part)) for op, name, part in body["places"]}
        except BlobNotFound:
            return None
        except (ValueError, KeyError, TypeError):
            log.warning("%s/%s is damaged: it asks for nothing", self._storage.location, path)
            return set()

    def _settled(self, manifest: Manifest) -> set[StorePartition]:
        """The partitions that are asked for and are merged already, or are not there."""
        asked = {place for left in self._open.values() for place in left}
        return {place for place in asked if not is_mergeable(_segments(manifest, place) or ())}

    def _close(self, done: Collection[StorePartition]) -> None:
        for path, left in list(self._open.items()):
            left.difference_update(done)
            if not left:
                self._storage.delete(path)
                del self._open[path]


def is_mergeable(segments: Sequence[SegmentRef]) -> bool:
    """Whether a partition with these segments is anything but one snapshot, or empty."""
    return plan(segments, StateStoreConf.empty, force=True) is not None


def _segments(manifest: Manifest, place: StorePartition) -> Sequence[SegmentRef] | None:
    """The segments of a partition; None where a version does not have it."""
    try:
        return manifest.entry(*place).segments
    except KeyError:
        return None
