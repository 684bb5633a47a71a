"""Ordinary pipelines deliver every closed window once, whatever stands before and after the state.

The cases hold every pair of what real pipelines vary: the plan before the first operator, the
trigger, the failure in the first run, settings of the session, the sink, and odd paths.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from covering import Case, covering
from pipelines import DIMENSIONS, Pipeline, expected, finish
from pyspark.sql import SparkSession

from holdfast.spark.versions.computation import Computation
from holdfast.spark.versions.delivery import Delivery

pytestmark = pytest.mark.spark
SEED = 20261118
PATIENCE_S = 240


class Interruption:
    """Fails or stops the query once, in the first version it makes."""

    def __init__(self, failure: str, patch: pytest.MonkeyPatch) -> None:
        self.query: Any = None
        self._ready = threading.Event()
        self._left = 0 if failure == "none" else 1
        self._failure = failure
        if failure == "stop while computing":
            self._before(patch, Computation, "_run_stage")
        elif failure != "none":
            self._before(patch, Delivery, "deliver")

    def of(self, query: Any) -> None:
        self.query = query
        self._ready.set()

    def _before(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        method = getattr(owner, name)

        def interrupted(*args: Any, **kwargs: Any) -> Any:
            if self._left:
                self._left -= 1
                self._interrupt()
            return method(*args, **kwargs)

        patch.setattr(owner, name, interrupted)

    def _interrupt(self) -> None:
        if self._failure == "sink raises":
            raise OSError("the sink is full")
        assert self._ready.wait(PATIENCE_S)
        threading.Thread(target=self.query.stop, daemon=True).start()
        while not self.query._run.outcome.is_stopping:
            threading.Event().wait(0.01)


def first_run(query: Any, failure: str, trigger: str) -> None:
    if failure == "none":
        finish(query, trigger)
    elif failure == "sink raises":
        with pytest.raises(Exception, match="the sink is full"):
            query.awaitTermination(PATIENCE_S)
    else:
        assert query.awaitTermination(PATIENCE_S)


def run(spark: SparkSession, folder: Path, case: Case, patch: pytest.MonkeyPatch) -> None:
    """A run that the case's failure ends, more input, and one that takes the rest."""
    pipeline, failure = Pipeline(spark, folder, case), case[2]
    interruption = Interruption(failure, patch)
    try:
        pipeline.write(0, 1)
        query = pipeline.start()
        interruption.of(query)
        first_run(query, failure, pipeline.trigger)
        pipeline.write(2, 3)
        pipeline.finish()
        assert pipeline.delivered() == expected(spark, pipeline)
    finally:
        pipeline.close()


@pytest.mark.parametrize("case", covering(DIMENSIONS, SEED), ids="-".join)
def test_every_closed_window_is_delivered_once(
    spark: SparkSession, tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(spark, tmp_path, case, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 4))
def test_three_cases_of_every_pair_deliver_every_closed_window_once(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = covering(DIMENSIONS, seed)
    print(f"seed {seed}: {len(cases)} cases")
    for number, case in enumerate(cases):
        print("-".join(case))
        with monkeypatch.context() as patch:
            run(spark, tmp_path / str(number), case, patch)


def test_the_cases_hold_every_pair() -> None:
    cases = covering(DIMENSIONS, SEED)
    assert cases == covering(DIMENSIONS, SEED)
    assert len(cases) < 50
    values = list(DIMENSIONS.values())
    for left in range(len(values)):
        for right in range(left + 1, len(values)):
            seen = {(case[left], case[right]) for case in cases}
            assert seen == {(a, b) for a in values[left] for b in values[right]}
