"""The journal: which operations changed a root from outside of its writer, when and why.

An operation that makes a version writes its entry before the manifest, whose `operation` has the
same id, and a note that it was done after that. So an entry tells what became of it also where a
crash came in between, and it stays when retention has removed the version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import xxhash

from holdfast.engine.files.filenames import (
    OPERATIONS,
    VERSIONS,
    done_path,
    is_operation,
    manifest_path,
    manifest_version,
    operation_path,
)
from holdfast.engine.storage import BlobNotFound
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, InvalidArgument, VersionNotFound

_MAGIC, _FORMAT = "HOLDFAST-OPERATION", "1"


@dataclass(frozen=True, slots=True)
class OperationEntry:
    """What the journal says of one operation."""

    id: str
    kind: str
    """What was done, such as "rollback"."""
    version: int
    """The version that it made, or the newest one at the time where it makes none."""
    at_ms: int
    by: str
    """The user, and the host it was done on."""
    makes_version: bool
    goes_back: bool = False
    """Whether history goes back with its version."""
    reason: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    """What depends on the kind, such as the version that a rollback goes back to."""
    is_attempt: bool = False
    """Whether it may end halfway although it makes no version here: it is done once that is
    noted."""

    def json(self) -> dict[str, Any]:
        """As a manifest and the journal keep it."""
        return asdict(self)

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> OperationEntry:
        """The entry that `json` gave. Fields of later releases are left out."""
        known = {name: body[name] for name in cls.__slots__ if name in body}
        return cls(**known)


@dataclass(frozen=True, slots=True)
class JournalLine:
    """An entry, and what became of the operation."""

    entry: OperationEntry
    is_done: bool
    """False for an attempt that was given up or crashed before its version was made."""


class Journal:
    """The journal of one root."""

    def __init__(self, versions: VersionLog) -> None:
        self._versions, self._storage = versions, versions.storage

    def begin(self, entry: OperationEntry) -> None:
        """Write an entry, which is an attempt until `done` where that is to be noted."""
        body = json.dumps(entry.json(), sort_keys=True)
        line = f"{_MAGIC} {_FORMAT} {_checksum(body)} {body}\n"
        self._storage.create_if_absent(operation_path(entry.version, entry.id), line.encode())

    def done(self, entry: OperationEntry) -> None:
        """Note that the version of an operation was made, or that the attempt has succeeded."""
        self._storage.create_if_absent(done_path(entry.version, entry.id), b"")

    def give_up(self, entry: OperationEntry) -> None:
        """Remove an attempt that made no version, and cannot make one any more."""
        self._storage.delete(operation_path(entry.version, entry.id))

    def lines(self) -> list[JournalLine]:
        """Every entry, newest first. Raises Corruption where one is damaged."""
        listed = {blob.path for blob in self._storage.list(OPERATIONS)}
        entries = [self._load(path) for path in listed if is_operation(path)]
        lines = [
            JournalLine(entry, self._is_done(entry, listed))
            for entry in entries
            if entry is not None
        ]
        return sorted(lines, key=lambda line: (line.entry.at_ms, line.entry.version), reverse=True)

    def ended_attempts(self, before_ms: int) -> list[OperationEntry]:
        """The attempts from before a time that made no version, and can make none any more.

        Another version has the number that each wanted. Requires: whoever removes a version that an
        operation made has noted before that the operation was done, as clean-up does.
        """
        open_lines = [
            line for line in self.lines() if line.entry.makes_version and not line.is_done
        ]
        listed = [blob.path for blob in self._storage.list(VERSIONS)]
        newest = max(filter(None, map(manifest_version, listed)), default=0)
        # Of a manifest that was moved away nobody can tell whose it is.
        moved = {path.partition(".")[0] for path in listed if manifest_version(path) is None}
        return [
            line.entry
            for line in open_lines
            if line.entry.at_ms <= before_ms
            and line.entry.version <= newest
            and manifest_path(line.entry.version) not in moved
            and self._is_another_s(line.entry)
        ]

    def _is_another_s(self, entry: OperationEntry) -> bool:
        """Whether the version that an operation wanted is certainly not its own."""
        if self._storage.size(done_path(entry.version, entry.id)) is not None:
            return False
        try:
            made = self._versions.load(entry.version).operation
        except VersionNotFound:
            # Removed. Its note would have been left before that, and so would be there by now.
            return self._storage.size(done_path(entry.version, entry.id)) is None
        except Corruption:
            return False
        return made is None or made.get("id") != entry.id

    def _is_done(self, entry: OperationEntry, listed: set[str]) -> bool:
        if done_path(entry.version, entry.id) in listed:
            return True
        if not entry.makes_version:
            return not entry.is_attempt
        return self.has_version(entry)

    def has_version(self, entry: OperationEntry) -> bool:
        """Whether the version that an operation makes is there, and is its own."""
        try:
            made = self._versions.load(entry.version).operation
        except (VersionNotFound, Corruption):
            return False
        return made is not None and made.get("id") == entry.id

    def _load(self, path: str) -> OperationEntry | None:
        try:
            raw = bytes(self._storage.read(path)).decode(errors="replace")
        except BlobNotFound:
            return None  # given up meanwhile
        magic, form, checksum, body = [*raw.removesuffix("\n").split(" ", 3), *[""] * 3][:4]
        if magic == _MAGIC and form.isdigit() and form != _FORMAT:
            raise InvalidArgument(
                f"The journal entry {self._storage.location}/{path} is in format {form}; this "
                f"release reads format {_FORMAT}. Upgrade holdfast to a release that reads it.",
                condition="STATE_STORE_UNSUPPORTED_FORMAT",
            )
        if magic != _MAGIC or checksum != _checksum(body):
            raise Corruption(
                f"The journal entry {self._storage.location}/{path} is damaged. The state is not "
                "affected. Move the file away to read the other entries."
            )
        return OperationEntry.of(json.loads(body))


def _checksum(body: str) -> str:
    return xxhash.xxh3_64_hexdigest(body.encode())
