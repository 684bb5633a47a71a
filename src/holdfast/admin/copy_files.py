"""Which files a copy of some versions needs, and whether a file is intact."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import xxhash

from holdfast.engine.files.blocks import BadSegment, read_part
from holdfast.engine.files.extent import BlobExtent, BufferExtent, Extent
from holdfast.engine.files.filenames import OUTBOX, PACK, copy_path, data_file
from holdfast.engine.files.manifest import Manifest, SegmentRef
from holdfast.engine.files.segment import Layout, Segment, SegmentInfo
from holdfast.engine.storage import BlobNotFound, Storage, TooLarge


@dataclass
class NeededFile:
    """A data file, the versions that need it, and what they record of its bytes.

    `segments` are keyed by their place in the file; `parts` are rows in it not delivered yet.
    """

    path: str
    versions: set[int] = field(default_factory=set)
    segments: dict[int, tuple[SegmentInfo, Layout]] = field(default_factory=dict)
    parts: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def is_copy(self) -> bool:
        """Whether it is a second copy, which is needed only if the first one is damaged."""
        name = data_file(self.path)
        return name is not None and name.is_copy

    @property
    def is_shared(self) -> bool:
        """Whether it is a pack or an outbox, which holds several parts."""
        name = data_file(self.path)
        return name is not None and name.kind in (PACK, OUTBOX)

    @property
    def least_bytes(self) -> int:
        """The least size it must have; a pack may hold more than is needed."""
        segments = [offset + info.size for offset, (info, _) in self.segments.items()]
        return max([*segments, *(part["offset"] + part["size"] for part in self.parts)], default=0)


def needed_files(
    manifests: Mapping[int, Manifest], undelivered: int | None, there: Collection[str] = ()
) -> list[NeededFile]:
    """Every file that the versions need, by path, and the output of the version `undelivered`.

    Second copies are included if they are among the files that are `there`.
    """
    found: dict[str, NeededFile] = {}
    for version, manifest in manifests.items():
        for path, ref, layout in _segments(manifest):
            file = found.setdefault(path, NeededFile(path))
            file.versions.add(version)
            file.segments[0 if ref.pack is None else ref.pack.offset] = (ref.info, layout)
        for part in manifest.outbox if version == undelivered else ():
            file = found.setdefault(part["path"], NeededFile(part["path"]))
            file.versions.add(version)
            file.parts.append(part)
    for path in [path for path in found if copy_path(path) in there]:
        found[copy_path(path)] = replace(found[path], path=copy_path(path))
    return [found[path] for path in sorted(found)]


def _segments(manifest: Manifest) -> Iterator[tuple[str, SegmentRef, Layout]]:
    for operator, name, entry in manifest.partitions():
        store = manifest.operators[operator][name]
        layout = Layout(store.key_schema.arrow, store.value_schema.arrow, store.key_index)
        directory = manifest.directory(operator, name, entry.index)
        for ref in entry.segments:
            for part in (ref, *ref.inputs):
                yield part.path(directory), part, layout


def problem_of(storage: Storage, file: NeededFile) -> str | None:
    """What is wrong with a file; None if every needed byte of it is as written."""
    try:
        extent = _extent(storage, file.path)
        if extent.size < file.least_bytes:
            return f"it has {extent.size} bytes, not {file.least_bytes}"
        for offset, (info, layout) in file.segments.items():
            run = extent.cut(offset, info.size) if file.is_shared else extent
            Segment(file.path, run, info, layout).verify()
        for part in file.parts:
            start = part["offset"]
            data = read_part(file.path, extent, start, start + part["size"])
            if xxhash.xxh3_64_hexdigest(data) != part["checksum"]:
                return "its output does not have the checksum the manifest says"
    except BadSegment as bad:
        return bad.why
    except BlobNotFound:
        return "the file is missing"
    return None


def _extent(storage: Storage, path: str) -> Extent:
    try:
        return BufferExtent(storage.read(path))
    except TooLarge:
        size = storage.size(path)
        if size is None:
            raise BlobNotFound(path) from None
        return BlobExtent(storage, path, 0, size)
