"""Copies of state and checkpoint, to be put back later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from simulation.journal import Version
from simulation.world import CHECKPOINT, World


@dataclass(frozen=True)
class Copy:
    """State and checkpoint as they were at one moment, and what was known of them."""

    blobs: Mapping[str, bytes]
    texts: Mapping[str, str]
    chunks: int
    head: Version | None

    @classmethod
    def of(cls, world: World) -> Copy:
        blobs = {each.path: bytes(world.blobs.read(each.path)) for each in world.blobs.list("")}
        texts = {path: text for path, text in world.files.texts.items() if _is_checkpoint(path)}
        return cls(blobs, texts, len(world.source), world.journal.head)

    def put_back(self, world: World) -> None:
        """Bring it all back; what the source had since is gone, and something else will come."""
        for each in world.blobs.list(""):
            world.blobs.delete(each.path)
        for path, data in self.blobs.items():
            world.blobs.create_if_absent(path, data)
        for path in [path for path in world.files.texts if _is_checkpoint(path)]:
            del world.files.texts[path]
        world.files.texts.update(self.texts)
        del world.source[self.chunks :]
        world.journal.put_back(self.head)


def _is_checkpoint(path: str) -> bool:
    return path.startswith(f"{CHECKPOINT}/")
