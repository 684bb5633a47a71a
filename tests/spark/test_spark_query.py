"""Spark's query is started again where an older driver won an entry of its logs, and only then."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

from holdfast.spark.running.spark_query import SparkQuery

LOST = "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log."


class Run:
    """A run of a query of Spark's; `end` is what it raises, None where it ends well."""

    id, name = "q", None

    def __init__(self, number: int, end: str | None) -> None:
        self.runId, self.end, self.is_stopped = str(number), end, False

    @property
    def isActive(self) -> bool:
        return self.end is None and not self.is_stopped

    def exception(self) -> StreamingQueryException | None:
        return None if self.end is None else StreamingQueryException(message=self.end)

    def awaitTermination(self, timeout: int | None = None) -> bool:
        if (error := self.exception()) is not None:
            raise error
        return self.is_stopped

    def processAllAvailable(self) -> None:
        self.awaitTermination()

    def stop(self) -> None:
        self.is_stopped = True


class Runs:
    """What a query comes to, run after run."""

    def __init__(self, *ends: str | None) -> None:
        self._ends, self.begun = list(ends), list[Run]()

    def __call__(self) -> Any:
        self.begun.append(Run(len(self.begun), self._ends[len(self.begun)]))
        return self.begun[-1]


def query_of(runs: Runs) -> SparkQuery:
    return SparkQuery(runs, lambda error: "CONCURRENT" in str(error))


@pytest.mark.parametrize("asked", ["awaitTermination", "processAllAvailable", "exception"])
def test_a_query_that_lost_an_entry_of_sparks_log_is_started_again(asked: str) -> None:
    runs = Runs(LOST, LOST, None)
    query = query_of(runs)
    for _ in range(2):
        getattr(query, asked)()
    assert query.isActive
    assert query.exception() is None
    assert [run.runId for run in runs.begun] == ["0", "1", "2"]
    assert query.runId == "2"


def test_a_wait_with_a_deadline_goes_on_with_the_run_that_follows() -> None:
    query = query_of(Runs(LOST, None))
    assert query.awaitTermination(60) is False
    query.stop()
    assert query.awaitTermination(60) is True


def test_what_else_ends_a_query_is_its_end() -> None:
    runs = Runs("the sink is full", None)
    query = query_of(runs)
    assert not query.isActive
    for wait in (query.awaitTermination, query.processAllAvailable):
        with pytest.raises(StreamingQueryException, match="the sink is full"):
            wait()
    assert "the sink is full" in str(query.exception())
    assert len(runs.begun) == 1


def test_a_query_that_was_stopped_is_not_started_again() -> None:
    runs = Runs(LOST, None)
    query = query_of(runs)
    query.stop()
    with pytest.raises(StreamingQueryException):
        query.awaitTermination()
    assert len(runs.begun) == 1


def test_a_query_that_loses_again_and_again_ends() -> None:
    runs = Runs(*[LOST] * 100)
    query = query_of(runs)
    with pytest.raises(StreamingQueryException, match="CONCURRENT"):
        query.awaitTermination()
    assert len(runs.begun) < 20
