"""A stream on a storage that fails goes on, or stops with a clear error and goes on when started
again; its state verifies.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from drivers import Driver, World
from pyspark.sql import SparkSession

from holdfast.errors import HoldfastError
from holdfast.testing.faults import Call, Fault, random_faults

pytestmark = pytest.mark.spark
FAULTS = (Fault.ERROR, Fault.DELAY, Fault.LOST_REPLY, Fault.STALE, Fault.FULL)


@pytest.mark.parametrize(
    "batches", [pytest.param(4, id="4"), pytest.param(20, id="20", marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.lower())
def test_a_stream_recovers_from_a_storage_that_fails(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    fault: Fault,
    batches: int,
) -> None:
    seed = int(os.environ.get("HOLDFAST_SEED") or random.randrange(2**32))
    print(f"HOLDFAST_SEED={seed}")
    rng = random.Random(seed)
    world = World(spark, tmp_path, "function", monkeypatch)
    hits = restarts = 0
    is_enough = False

    def started() -> Driver:
        driver = world.driver()
        request.addfinalizer(driver.faulty.bury)
        plain = random_faults(rng, 0.05, (fault,))

        def plan(call: Call) -> Fault | None:
            nonlocal hits
            hit = None if is_enough else plain(call)
            hits += hit is not None
            return hit

        driver.faulty.plan = plan
        driver.open()
        if driver.next_batch:
            driver.run(driver.next_batch - 1)  # Spark brings again what it has not noted as done
        return driver

    driver: Driver | None = None
    # What failed attempts leave behind makes each clean-up longer: it has to end without faults.
    while driver is None or not is_enough:
        try:
            driver = driver or started()
            driver.run(driver.next_batch)
            is_enough = hits > 0 and driver.next_batch >= batches
            driver.loop.clean()
        except HoldfastError as error:
            print(f"stopped with {error}")
            restarts, driver = restarts + 1, None
        assert restarts < 200
    print(f"{fault.value}: {hits} times, {restarts} restarts")
    driver.faulty.plan = lambda call: None
    driver.run(driver.next_batch)
    driver.loop.clean()
    world.check(driver.next_batch)


def test_a_committed_version_is_delivered_although_older_output_cannot_be_removed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "function", monkeypatch)
    driver = world.driver()
    driver.open()
    driver.run(0)
    driver.faulty.plan = lambda call: Fault.ERROR if call.operation == "delete" else None
    driver.run(1)
    outboxes = tmp_path / "cp" / "holdfast" / "outbox"
    assert len(list(outboxes.iterdir())) == 2
    driver.faulty.plan = lambda call: None
    driver.loop.clean()
    assert len(list(outboxes.iterdir())) == 1
    world.check(2)
