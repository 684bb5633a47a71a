"""Operations from a command line, in a process of its own beside the drivers of a world."""

from __future__ import annotations

from holdfast.admin.rollback import plan_rollback
from holdfast.admin.site import Site
from holdfast.checkpoint import SparkCheckpoint
from holdfast.reading import Root
from simulation.storage import SimulatedFiles
from simulation.world import CHECKPOINT, Application, World


class CheckpointFiles:
    """The files of the checkpoint, as a command without Spark reaches them."""

    def __init__(self, files: SimulatedFiles) -> None:
        self._files = files

    def read_text(self, path: str) -> str | None:
        return self._files.read_text(f"{CHECKPOINT}/{path}")

    def names(self, path: str) -> list[str]:
        return self._files.list_names(f"{CHECKPOINT}/{path}")

    def create_if_absent(self, path: str, text: str) -> bool:
        return self._files.make(f"{CHECKPOINT}/{path}", text)

    def move(self, path: str, target: str) -> bool:
        return self._files.rename_if_absent(f"{CHECKPOINT}/{path}", f"{CHECKPOINT}/{target}")


def roll_back(world: World, application: Application, steps: int) -> None:
    """Go some versions back, as far as retention has left them."""
    checkpoint = SparkCheckpoint(CheckpointFiles(world.files), CHECKPOINT)
    site = Site(Root(application.storage), world.runtime, checkpoint)
    versions = site.versions.versions()
    if len(versions) > 1:
        target = versions[max(0, len(versions) - 1 - steps)]
        plan_rollback(site, target, unchecked_input=True).run()
