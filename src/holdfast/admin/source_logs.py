"""Copies what Spark's sources keep in a checkpoint, while their query may still write to it.

The file source has a log of the files that each batch has: `sources/0/7`, and now and then
`sources/0/9.compact` with all of them so far, after which Spark removes old ones.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import Any

from holdfast.admin.sources import SOURCES
from holdfast.checkpoint import OffsetEntry
from holdfast.engine.storage import BlobNotFound, Storage
from holdfast.errors import Corruption, Unavailable

_LOGGED = re.compile(r"(?P<number>\d{1,18})(?P<compact>\.compact)?")
_PIECE_BYTES = 8 << 20
_MOST_PASSES = 20
_Files = dict[str, int]
"""The files of a checkpoint's sources with their sizes."""


def copy_source_logs(source: Storage, target: Storage, offsets: str | None) -> None:
    """Copy the sources' files, as they are at one moment, for a query that resumes at `offsets`.

    `offsets` is the text of an entry in the offset log, None for a query that begins. Raises
    Corruption where a log does not reach that far, and Unavailable where Spark rewrites it faster
    than it is copied.
    """
    listed = _settled(source, lambda listed: _bring(source, target, listed))
    _check_reach(listed, offsets, source.location)


def check_source_logs(source: Storage, offsets: str | None) -> None:
    """Raise what `copy_source_logs` would raise, as far as it is known before."""
    _check_reach(_settled(source, lambda listed: True), offsets, source.location)


def _settled(source: Storage, take: Callable[[_Files], bool]) -> _Files:
    """The sources' files at one moment. `take` gets them, and says whether all were still there."""
    for _ in range(_MOST_PASSES):
        listed = _listed(source)
        if take(listed) and _is_whole(listed, _listed(source)):
            return listed
    raise Unavailable(
        f"{source.location}/{SOURCES} was rewritten while it was read, {_MOST_PASSES} times. Run "
        "the same command again."
    )


def _listed(storage: Storage) -> _Files:
    """Without hidden files: checksums, and what is still being written."""
    return {
        blob.path: blob.size
        for blob in storage.list(SOURCES)
        if not any(part.startswith(".") for part in blob.path.split("/"))
    }


def _bring(source: Storage, target: Storage, listed: _Files) -> bool:
    """Make the target's files those that are listed; False where one has gone meanwhile."""
    there = _listed(target)
    for path in there:
        if there[path] != listed.get(path):
            target.delete(path)
    try:
        for path, size in listed.items():
            if there.get(path) != size:
                _copy(source, target, path, size)
    except BlobNotFound:
        return False
    return True


def _copy(source: Storage, target: Storage, path: str, size: int) -> None:
    with target.open_writer(path) as writer:
        for start in range(0, size, _PIECE_BYTES):
            stop = min(start + _PIECE_BYTES, size)
            piece = source.read_range(path, start, stop)
            if piece.size != stop - start:
                raise BlobNotFound(path)
            writer.write(piece)


def _is_whole(listed: _Files, again: _Files) -> bool:
    """Whether no entry is missing in what was listed, as a listing beside a clean-up may have it.

    Another source may remove the first entries of its log, and writes no `.compact`: of such a one
    everything that was listed has to be there still.
    """
    now = _logs(again)
    for folder, names in _logs(listed).items():
        if _reach(names) is not None:
            continue
        later = now.get(folder, set())
        if any(name.endswith(".compact") for name in later) or not names <= later:
            return False
    return True


def _logs(listed: _Files) -> dict[str, set[str]]:
    """The entries of each log, by its folder."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in listed:
        folder, _, name = path.rpartition("/")
        if _LOGGED.fullmatch(name):
            found[folder].add(name)
    return found


def _reach(names: Collection[str]) -> int | None:
    """The last entry of a log that has all of them, from the newest `.compact` on."""
    numbers: set[int] = set()
    first = 0
    for match in filter(None, map(_LOGGED.fullmatch, names)):
        numbers.add(int(match["number"]))
        if match["compact"]:
            first = max(first, int(match["number"]))
    last = max(numbers, default=-1)
    return last if numbers.issuperset(range(first, last + 1)) else None


def _check_reach(listed: _Files, offsets: str | None, location: str) -> None:
    """Raise Corruption where the log of a file source lacks what its offset refers to.

    Without it Spark would take every file for a new one.
    """
    entry = OffsetEntry.parse(offsets or "")
    logs = {folder: _reach(names) for folder, names in _logs(listed).items()}
    for name, text in entry.sources.items():
        needed = _file_offset(text)
        if needed is None:
            continue
        own = f"{SOURCES}/{name}"
        # A source with a name of its own may keep its log elsewhere than under that name.
        those = [logs[own]] if own in logs else [] if name.isdecimal() else list(logs.values())
        if max((each for each in those if each is not None), default=-1) < needed:
            raise Corruption(
                f"{location}/{own} has no entry {needed}, which the version was made up to: files "
                "of Spark's source log are missing. Restore them, or fork an earlier version."
            )


def _file_offset(text: str | None) -> int | None:
    """The entry of the source log that a file source's offset names; None for other sources."""
    try:
        body: Any = json.loads(text or "")
    except ValueError:
        return None
    found = body.get("logOffset") if isinstance(body, Mapping) else None
    return found if isinstance(found, int) and found >= 0 else None
