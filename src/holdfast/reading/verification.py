"""Checking every byte of every version of a root."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import xxhash

from holdfast.engine.files.blocks import BadSegment
from holdfast.engine.files.filenames import OUTBOX, TAGS, copy_path, is_own_file, manifest_path
from holdfast.engine.files.manifest import Manifest, SegmentRef
from holdfast.engine.partition.chain import SegmentCache
from holdfast.engine.storage import BlobNotFound
from holdfast.errors import Corruption, InvalidArgument, Unavailable
from holdfast.reading.model import FileCheck, Verification
from holdfast.reading.root import Root

_SMALL = ("manifest", "tag", OUTBOX)
"""Kinds of files that the progress does not count."""
Progress = Callable[[int, int, str], None]
"""Called with the bytes checked so far, all there are to check, and the file at hand."""


@dataclass
class _Segment:
    """A segment with the versions that need it, listed once however many those are."""

    ref: SegmentRef
    path: str
    cache: SegmentCache
    versions: list[int] = field(default_factory=list)
    problem: str | None = None
    is_copy: bool = False


def verify(root: Root, progress: Progress | None = None) -> Verification:
    """Read everything and say for each file whether it is what was written.

    Segments to fall back on and second copies are checked too. Damage is reported, never raised.
    What is checked lies at the root itself: no copy of it that this host keeps.
    """
    root = Root(root.storage.source)  # one that has not read round anything yet
    manifests, checks = _check_manifests(root)
    checks += _check_tags(root)
    listed = [blob.path for blob in root.storage.list("")]
    segments = _segments(root, manifests, set(listed))
    total = sum(segment.ref.info.size for segment in segments.values())
    done = 0
    for segment in segments.values():
        segment.problem = _problem_of(segment, _from(progress, done, total, segment.path))
        done += segment.ref.info.size
        checks.append(_segment_check(segment))
    if progress is not None:
        progress(total, total, "")
    checks += _check_outbox(root, manifests, set(listed))
    known = {check.path for check in checks}
    good = [v for v, manifest in manifests.items() if _readable(manifest, segments)]
    return Verification(
        location=root.location,
        files=tuple(checks),
        checked_bytes=done + sum(c.size_bytes for c in checks if c.kind in _SMALL),
        readable=tuple(good),
        broken=tuple(v for v in root.versions if v not in set(good)),
        other_files=sum(is_own_file(path) and path not in known for path in listed),
    )


def _check_manifests(root: Root) -> tuple[dict[int, Manifest], list[FileCheck]]:
    manifests: dict[int, Manifest] = {}
    checks = []
    for version in root.versions:
        problem = None
        try:
            manifests[version] = root.manifest(version)
        except (Corruption, InvalidArgument, Unavailable) as error:
            problem = error.message
        path = manifest_path(version)
        size = root.storage.size(path) or 0
        checks.append(FileCheck(path, "manifest", size, (version,), problem=problem))
    return manifests, checks


def _check_tags(root: Root) -> list[FileCheck]:
    checks = []
    for blob in root.storage.list(TAGS):
        version, problem = None, None
        try:
            version = root.log.read_tag(blob.path.rpartition("/")[2])
        except (Corruption, InvalidArgument) as error:
            problem = error.message
        if version is not None and version not in root.versions:
            problem = f"it names version {version}, which is not there"
        named = () if version is None else (version,)
        checks.append(FileCheck(blob.path, "tag", blob.size, named, problem=problem))
    return checks


def _check_outbox(
    root: Root, manifests: Mapping[int, Manifest], there: Collection[str]
) -> list[FileCheck]:
    """The output of the newest version, as far as it is still there to be delivered."""
    newest = manifests.get(root.versions[-1])
    checks = []
    for part in () if newest is None else newest.outbox:
        path, start, size = part["path"], part["offset"], part["size"]
        if path not in there:
            continue
        problem = None
        try:
            data = root.storage.read_range(path, start, start + size)
            if xxhash.xxh3_64_hexdigest(data) != part["checksum"]:
                problem = "it does not have the checksum the manifest says"
        except (BlobNotFound, Unavailable) as error:
            problem = str(error)
        checks.append(FileCheck(path, OUTBOX, size, (root.versions[-1],), start, problem))
    return checks


def _segments(
    root: Root, manifests: Mapping[int, Manifest], there: Collection[str]
) -> dict[tuple[str, str], _Segment]:
    """Every segment some version needs, by directory and name, in the order of their age."""
    found: dict[tuple[str, str], _Segment] = {}
    for version, manifest in manifests.items():
        for operator, store, entry in manifest.partitions():
            shape = root.shape(manifest.operators[operator][store])
            cache = root.cache(operator, store, entry.index, shape)
            directory = manifest.directory(operator, store, entry.index)
            for ref in _with_inputs(entry.segments):
                segment = found.setdefault(
                    (directory, ref.name), _Segment(ref, ref.path(directory), cache)
                )
                segment.versions.append(version)
    copied = [(place, each) for place, each in found.items() if copy_path(each.path) in there]
    for (directory, name), each in copied:
        path = copy_path(each.path)
        found[directory, copy_path(name)] = replace(each, path=path, is_copy=True)
    return found


def _with_inputs(refs: tuple[SegmentRef, ...]) -> Iterator[SegmentRef]:
    for ref in reversed(refs):
        yield from reversed(ref.inputs)
        yield ref


def _from(progress: Progress | None, done: int, total: int, path: str) -> Callable[[int], None]:
    """`progress` for one segment of many; called once before its first byte."""

    def report(checked: int) -> None:
        if progress is not None:
            progress(done + checked, total, path)

    report(0)
    return report


def _problem_of(segment: _Segment, report: Callable[[int], None]) -> str | None:
    try:
        opened = segment.cache.open_copy if segment.is_copy else segment.cache.open
        opened(segment.ref).verify(report)
    except BadSegment as bad:
        return bad.why
    except (InvalidArgument, Unavailable) as error:
        return error.message
    return None


def _segment_check(segment: _Segment) -> FileCheck:
    ref = segment.ref
    return FileCheck(
        path=segment.path,
        kind="copy" if segment.is_copy else ref.kind,
        size_bytes=ref.info.size,
        versions=tuple(segment.versions),
        offset=None if ref.pack is None else ref.pack.offset,
        problem=segment.problem,
    )


def _readable(manifest: Manifest, segments: Mapping[tuple[str, str], _Segment]) -> bool:
    """Whether each segment of a version is intact, or its copy, or all those it was made of."""
    for operator, store, entry in manifest.partitions():
        directory = manifest.directory(operator, store, entry.index)

        def intact(ref: SegmentRef, directory: str = directory) -> bool:
            copy = segments.get((directory, copy_path(ref.name)))
            is_copied = copy is not None and copy.problem is None
            return is_copied or segments[directory, ref.name].problem is None

        for ref in entry.segments:
            if not intact(ref) and not (ref.inputs and all(map(intact, ref.inputs))):
                return False
    return True
