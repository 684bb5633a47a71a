"""The numbers that a query's versions have for sinks: what Spark's batch id would be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.engine.files.manifest import Manifest


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
