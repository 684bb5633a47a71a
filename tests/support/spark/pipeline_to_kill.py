"""A pipeline in a process of its own that says where it is, and waits there to be killed.

    python pipeline_to_kill.py FOLDER PHASE CASE…

Runs the pipeline of a case of `pipelines.py` in FOLDER. In the first version that reaches PHASE it
prints `phase PHASE` and waits for ever.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

from pipelines import Pipeline, finish
from quiet_spark import builder

from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.spark.versions.computation import Computation
from holdfast.spark.versions.delivery import Delivery
from holdfast.spark.versions.loop import VersionLoop

PHASES: dict[str, tuple[type, str, bool]] = {
    "planned": (VersionLoop, "run", True),
    "computed": (Computation, "_run_stage", False),
    "packed": (Committer, "_pack", False),
    "committed": (VersionLog, "publish", False),
    "delivered": (Delivery, "deliver", False),
}
"""For each phase a method, and whether the phase is before it or after it."""


def wait_in(phase: str) -> None:
    owner, name, is_before = PHASES[phase]
    method = getattr(owner, name)

    def waits(*args: Any, **kwargs: Any) -> Any:
        made = None if is_before else method(*args, **kwargs)
        # Version 0 is published when the state is made.
        if name != "publish" or args[1].version > 0:
            print(f"phase {phase}", flush=True)
            threading.Event().wait()
        return made

    setattr(owner, name, waits)


def main() -> None:
    folder, phase, *case = sys.argv[1:]
    session = builder("pipeline to kill").getOrCreate()
    pipeline = Pipeline(session, Path(folder), tuple(case))
    wait_in(phase)
    finish(pipeline.start(), pipeline.trigger)


if __name__ == "__main__":
    main()
