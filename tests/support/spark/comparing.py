"""Cases run by Holdfast, and compared with what Spark's own gives on them or once gave."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outcomes import Outcome
from pyspark.sql import SparkSession
from recordings import Recording


def new_seed() -> int:
    """A seed, printed so that what it led to can be repeated."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    return seed


def check_all(told: Iterable[tuple[str, str | None]]) -> None:
    """Print for each label whether its case agrees; fail with what is told of those that do not."""
    failures = []
    for label, said in told:
        print(f"{'agrees' if said is None else 'DIFFERS'} {label}")
        failures += [] if said is None else [said]
    assert not failures, "\n\n".join(failures)


def with_another_cell(outcome: Outcome, rnd: random.Random) -> Outcome:
    """A copy that differs in one cell, of an output or of the state."""
    changed = copy.deepcopy(outcome)
    rows = [
        row
        for start in changed
        for rows in (*start["outputs"], *start["state"])
        for row in rows
        if row
    ]
    row = rnd.choice(rows)
    row[rnd.randrange(len(row))] = "another"
    return changed


@dataclass(frozen=True)
class Comparison:
    """How cases of one sort are made, run, compared and kept."""

    plan: Callable[[int, int], list[Any]]
    coverage: Callable[[list[Any]], str]
    cells: str
    """What `coverage` counts cases by."""
    label: Callable[[Any], str]
    run_case: Callable[..., Outcome]
    difference: Callable[[Any, Outcome, Outcome], str | None]
    recording: type[Recording]
    folder: Path

    def recorded(self) -> list[Path]:
        """The files of all recordings."""
        return sorted(self.folder.glob("*.json"))

    def disagreement(self, spark: SparkSession, case: Any, folder: Path) -> str | None:
        """How Holdfast and the Spark of this session differ on a case; None where they agree."""
        native = self.run_case(spark, case, folder / "native", native=True)
        own = self.run_case(spark, case, folder / "own", native=False)
        said = self.difference(case, native, own)
        return None if said is None else f"{said}\nin the case {case}"

    def difference_to_recording(self, spark: SparkSession, path: Path, folder: Path) -> str | None:
        """How Holdfast and the Spark that was recorded differ; None where they agree."""
        recording = self.recording.load(path)
        found = self.run_case(spark, recording.case, folder, native=False)
        said = self.difference(recording.case, recording.outcome, found)
        return None if said is None else f"{path.name}: {said}\nin the case {recording.case}"

    def check_some_recorded(self, spark: SparkSession, folder: Path, count: int) -> None:
        """Replay so many recordings, chosen at random."""
        for path in random.Random(new_seed()).sample(self.recorded(), count):
            said = self.difference_to_recording(spark, path, folder / path.stem)
            assert said is None, said

    def check_some_live(self, spark: SparkSession, folder: Path, count: int) -> None:
        """Run so many random cases beside Spark's own."""
        for number, case in enumerate(self.plan(new_seed(), count)):
            said = self.disagreement(spark, case, folder / str(number))
            assert said is None, said

    def check_part(
        self, spark: SparkSession, folder: Path, seed: int, count: int, part: int, parts: int
    ) -> None:
        """Run one part of so many cases beside Spark's own; part 0 tells what cases there are."""
        cases = self.plan(seed, count)
        if part == 0:
            print(f"PySpark {spark.version}; cases by {self.cells}:")
            print(self.coverage(cases))
        print(f"seed {seed}, cases {part} and every {parts}th after it")
        check_all(
            (self.label(case), self.disagreement(spark, case, folder / str(number)))
            for number, case in list(enumerate(cases))[part::parts]
        )
