"""What the tests of streams may use."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module", autouse=True)
def forgotten_queries() -> Iterator[None]:
    """Let go of the queries of a module's tests: Python's cycles hold what they have in the JVM."""
    yield
    gc.collect()


@pytest.fixture(params=["recorded", pytest.param("live", marks=pytest.mark.soak)])
def native_runs(spark: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Spark's own side of the test: replayed in `make test`, run in `make soak`."""
    from native_recordings import RECORDED_NATIVE, NativeRuns

    node = request.node
    others = [str(v) for name, v in node.callspec.params.items() if name != request.fixturename]
    test = f"{node.originalname}[{', '.join(others)}]" if others else node.originalname
    path = RECORDED_NATIVE / f"{node.path.stem.removeprefix('test_')}.json"
    runs = NativeRuns(spark, path, test, live=request.param == "live")
    yield runs
    runs.save()
