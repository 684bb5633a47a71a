"""The two ends of a copy: what a root holds, which versions to copy, and the copy's mark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.engine.files.filenames import (
    COPYING,
    VERSIONS,
    manifest_path,
    manifest_version,
)
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.files.manifest_codec import decode
from holdfast.engine.storage import BlobNotFound, Storage
from holdfast.errors import Corruption, InvalidArgument, VersionNotFound
from holdfast.reading.root import NEWEST
from holdfast.schemes import Scheme, scheme_of

RANGE = ".."
_MARK_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Mark:
    """The mark of an unfinished copy: its id, and the commit ids of the versions it began with.

    An unfinished fork has one as well, with the version that the fork makes.
    """

    copy_id: str
    versions: Mapping[int, str]
    fork: Mapping[str, Any] | None = None
    """For a fork, what it was begun with; None for a copy."""


@dataclass
class End:
    """The manifests of a root, as bytes and decoded, and the sizes of all its files."""

    manifests: dict[int, Manifest] = field(default_factory=dict)
    raw: dict[int, bytes] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, storage: Storage, versions: Iterable[int] | None = None) -> End:
        """Read the given versions (None: all) except those removed meanwhile; then list files."""
        end = cls()
        end.load(storage, versions_in(storage) if versions is None else versions)
        end.sizes = {blob.path: blob.size for blob in storage.list("")}
        return end

    def load(self, storage: Storage, versions: Iterable[int]) -> None:
        """Read manifests, leaving out those that were removed."""
        for version in versions:
            path = manifest_path(version)
            try:
                self.raw[version] = bytes(storage.read(path))
            except BlobNotFound:
                continue
            self.manifests[version] = decode(self.raw[version], f"{storage.location}/{path}")


def versions_in(storage: Storage) -> list[int]:
    """The versions of a root, ascending; also those of an unfinished copy."""
    found = (manifest_version(blob.path) for blob in storage.list(VERSIONS))
    return sorted(version for version in found if version is not None)


def is_same_history(ours: Mapping[int, Manifest], theirs: Mapping[int, Manifest]) -> bool:
    """Whether versions that both have are the same, and adjacent versions follow each other."""
    same = all(theirs[v].commit_id == ours[v].commit_id for v in ours.keys() & theirs.keys())
    return same and _follow(ours, theirs) and _follow(theirs, ours)


def _follow(before: Mapping[int, Manifest], after: Mapping[int, Manifest]) -> bool:
    return all(
        after[version + 1].parent_commit_id == manifest.commit_id
        for version, manifest in before.items()
        if version + 1 in after
    )


def write_mark(storage: Storage, source: str, mark: Mark) -> bool:
    """Mark a root as being copied to; False if it is marked already."""
    versions = {str(version): commit_id for version, commit_id in mark.versions.items()}
    body = {"format": _MARK_FORMAT, "id": mark.copy_id, "source": source, "versions": versions}
    if mark.fork is not None:
        body["fork"] = dict(mark.fork)
    return storage.create_if_absent(COPYING, json.dumps(body).encode())


def read_mark(storage: Storage) -> Mark | None:
    """The mark of an unfinished copy; None if there is none."""
    try:
        body = json.loads(bytes(storage.read(COPYING)))
        versions = {int(version): str(commit_id) for version, commit_id in body["versions"].items()}
        return Mark(str(body["id"]), versions, body.get("fork"))
    except BlobNotFound:
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corruption(
            f"{storage.location}/{COPYING} is damaged, so the copy cannot be resumed. "
            f"{way_out(storage.location)}"
        ) from error


def way_out(location: str) -> str:
    """Advice on a place with a copy that cannot be finished."""
    scheme = scheme_of(location)
    if scheme is None:
        return Scheme.remains
    path = location.partition("://")[2].partition("/")[2]
    name, _, folder = path.partition("/")
    text = (folder and scheme.remains_below) or scheme.remains
    return text.format(name=name)


def choose_versions(
    listed: Sequence[int], tags: Mapping[str, int], wanted: Sequence[str], location: str
) -> list[int]:
    """The listed versions that `wanted` names, ascending.

    Raises VersionNotFound for a text that names none.
    """
    if not wanted:
        return list(listed)
    found: set[int] = set()
    for text in wanted:
        chosen = _chosen(listed, tags, text.strip())
        if not chosen:
            raise VersionNotFound(
                f"{location} has no version {text!r}. It has versions from {listed[0]} to "
                f"{listed[-1]}, and the tags: {', '.join(sorted(tags)) or 'none'}. Name a version, "
                "a tag, newest, or a range such as 3..7."
            )
        found |= chosen
    return sorted(found)


def _chosen(listed: Sequence[int], tags: Mapping[str, int], text: str) -> set[int]:
    if text == NEWEST:
        return {listed[-1]}
    if text in tags:
        return {tags[text]}
    low, is_range, high = text.partition(RANGE)
    first = int(low) if low.isdecimal() else None
    last = int(high) if high.isdecimal() else None
    if not is_range:
        return {version for version in listed if version == first}
    if (low and first is None) or (high and last is None) or not (low or high):
        return set()
    return {v for v in listed if (first or 0) <= v <= (listed[-1] if last is None else last)}


def overlap(location: str, other: str) -> bool:
    """Whether two places are one, or one of them is inside the other."""
    here, there = _plain(location), _plain(other)
    return here == there or here.startswith(f"{there}/") or there.startswith(f"{here}/")


def check_places(source: Storage, target: Storage) -> None:
    """Reject copying a root to itself, into itself, or to where nothing can be written."""
    if _plain(source.location) == _plain(target.location):
        raise InvalidArgument(f"{target.location} is the root to copy from. Name another place.")
    if overlap(source.location, target.location):
        raise InvalidArgument(
            f"{source.location} and {target.location} are one inside the other. Name another place."
        )
    if target.read_only:
        raise InvalidArgument(
            f"{target.location} can only be read: its scheme has no proven way to create a file "
            "once. Copy to a local folder, or to a root that can be written.",
            condition="STATE_STORE_READ_ONLY",
        )


def _plain(location: str) -> str:
    """A location in a normal form, in which each place has one name."""
    written, separator, rest = location.partition("://")
    if not separator:
        return os.path.realpath(location)
    scheme = scheme_of(location)
    if scheme is not None and scheme.port:
        netloc, _, path = rest.partition("/")
        rest = f"{_plain_hosts(netloc, str(scheme.port))}/{path}"
    return f"{written if scheme is None else scheme.name}://{rest.rstrip('/')}"


def _plain_hosts(netloc: str, default: str) -> str:
    """The hosts of a cluster, sorted, with the default port where none is given."""
    hosts, _, port = netloc.rpartition(":")
    if not port.isdigit():
        hosts, port = netloc, default
    return f"{','.join(sorted(hosts.lower().split(',')))}:{port}"
