"""The numbers that a query's versions have for sinks: what Spark's batch id would be."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from holdfast.engine.files.filenames import DELIVERED, VERSIONS, jump_of, jump_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Storage

_GIVEN_UP = re.compile(
    rf"({VERSIONS}/(?P<moved>\d{{1,18}})[.\-].+)|({DELIVERED}/(?P<noted>\d{{1,18}})(-.*)?)"
)
"""A manifest that was moved away, to `versions/7.damaged` say, and a note on delivery."""


@dataclass(frozen=True)
class Numbering:
    """The numbers a query's versions have had so far.

    `last` is that of the newest delivered version. Each version that delivers takes the next one;
    what only fills or rewrites the state takes none. `first` is 0 as in Spark, or 1 where the
    checkpoint was made before numbers were kept: its versions were the numbers, and it continues.
    """

    first: int
    last: int

    @classmethod
    def of(cls, manifest: Manifest) -> Numbering:
        """The numbers up to a version."""
        kept = manifest.numbering
        if kept is not None:
            return cls(kept["first"], kept["last"])
        return cls.new() if manifest.version == 0 else cls(first=1, last=manifest.version)

    @classmethod
    def new(cls) -> Numbering:
        """That of a query which has delivered nothing."""
        return cls(first=0, last=-1)

    def following(self, skipped: int = 0) -> Numbering:
        """With one more number, after `skipped` ones."""
        return replace(self, last=self.last + 1 + skipped)

    def skipping(self, skipped: int) -> Numbering:
        """The same, with `skipped` numbers that nobody gets any more."""
        return replace(self, last=self.last + skipped)

    @property
    def epoch(self) -> int:
        """The newest number counted from 0."""
        return self.last - self.first

    def json(self) -> dict[str, int]:
        """As the manifest keeps it."""
        return {"first": self.first, "last": self.last}


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
