"""What a worker process holds, tells and lets go."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.coordinator import CoordinatorAddress, StateStoreCoordinator, connection, ref
from holdfast.engine.files.manifest import SegmentRef
from holdfast.engine.files.segment import SegmentInfo, Zone
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.commit import PreparedPartition, Swap
from holdfast.engine.versions.log import VersionLog
from holdfast.ids import StateStoreId, StateStoreProviderId
from holdfast.store import StateStoreProvider
from holdfast.streams.stores import open_providers
from holdfast.streams.stores.open_providers import (
    UNUSED_S,
    VERIFY_EVERY_S,
    Executor,
    OpenProviders,
    ProviderKey,
)
from holdfast.streams.tasks.task import StoreSpec, TaskResult, run_task
from holdfast.types import parse_schema

OLD, NEW = str(UUID(int=1)), str(UUID(int=2))


class NotingProvider(HDFSBackedStateStoreProvider):
    """Knows whether it was closed."""

    is_closed = False

    def close(self) -> None:
        self.is_closed = True


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def endpoint() -> Iterator[StateStoreCoordinator]:
    coordinator = StateStoreCoordinator()
    yield coordinator
    connection.connection_to(coordinator.address).close()
    coordinator.stop()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def held(clock: Clock) -> OpenProviders:
    found = OpenProviders(clock)
    found.arrive(Executor("host", "1"))
    return found


def place(partition: int, run: str = NEW) -> ProviderKey:
    return run, StateStoreId("/r", 0, partition)


def identity(partition: int, run: str = NEW) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId("/r", 0, partition), UUID(run))


def opened(
    held: OpenProviders,
    endpoint: StateStoreCoordinator | None,
    partition: int,
    run: str = NEW,
    version: int = 0,
) -> NotingProvider:
    address = None if endpoint is None else endpoint.address
    provider = held.provider(place(partition, run), address, NotingProvider)
    held.report(place(partition, run), address, version)
    assert isinstance(provider, NotingProvider)
    return provider


def settle(endpoint: StateStoreCoordinator) -> None:
    """Wait until the endpoint has heard everything this process told it."""
    ref.StateStoreCoordinatorRef.for_executor(endpoint.address).get_location(identity(0))


def test_a_provider_is_made_once_and_reported_when_somebody_else_may_have_had_it(
    held: OpenProviders, endpoint: StateStoreCoordinator
) -> None:
    first = opened(held, endpoint, 0)
    settle(endpoint)
    assert endpoint.instances.get_location(identity(0)) == "executor_host_1"
    endpoint.instances.report_active_instance(identity(0), "other", "2")
    assert opened(held, endpoint, 0, version=1) is first
    settle(endpoint)
    assert endpoint.instances.get_location(identity(0)) == "executor_other_2", "nothing was said"
    assert opened(held, endpoint, 0, version=3) is first
    settle(endpoint)
    assert endpoint.instances.get_location(identity(0)) == "executor_host_1"


def test_what_moved_on_is_closed_and_the_rest_stays(
    held: OpenProviders, endpoint: StateStoreCoordinator, clock: Clock
) -> None:
    moved, stays = opened(held, endpoint, 0), opened(held, endpoint, 1)
    settle(endpoint)
    endpoint.instances.report_active_instance(identity(0), "other", "2")
    held.tidy(NEW, endpoint.address)
    assert not moved.is_closed, "it is not time to ask yet"
    clock.now += VERIFY_EVERY_S
    held.tidy(NEW, endpoint.address)
    assert (moved.is_closed, stays.is_closed) == (True, False)
    again = opened(held, endpoint, 0)
    settle(endpoint)
    assert again is not moved
    assert endpoint.instances.get_location(identity(0)) == "executor_host_1"


def test_queries_side_by_side_keep_their_providers_until_one_stops(
    held: OpenProviders, endpoint: StateStoreCoordinator, clock: Clock
) -> None:
    old, new = opened(held, endpoint, 0, OLD), opened(held, endpoint, 0, NEW)
    settle(endpoint)
    clock.now += VERIFY_EVERY_S
    held.tidy(NEW, endpoint.address)
    assert (old.is_closed, new.is_closed) == (False, False)
    endpoint.instances.deactivate_instances(UUID(OLD))
    clock.now += VERIFY_EVERY_S
    held.tidy(NEW, endpoint.address)
    assert (old.is_closed, new.is_closed) == (True, False)


def test_providers_of_a_run_share_a_history_that_goes_with_the_last(
    held: OpenProviders, clock: Clock
) -> None:
    histories = {run: VersionLog(MemoryStorage(), Runtime.system()) for run in (OLD, NEW)}
    for run in (OLD, NEW):
        opened(held, None, 0, run)
        assert held.history(run, lambda run=run: histories[run]) is histories[run]
        opened(held, None, 1, run)
        assert held.history(run, lambda: pytest.fail("it is there")) is histories[run]
        clock.now += UNUSED_S
    made = VersionLog(MemoryStorage(), Runtime.system())
    assert held.history(OLD, lambda: made) is made, "the other run closed its providers"
    assert held.history(NEW, lambda: made) is histories[NEW]


def test_without_a_coordinator_another_run_closes_what_the_last_one_left(
    held: OpenProviders, clock: Clock
) -> None:
    old = opened(held, None, 0, OLD)
    clock.now += UNUSED_S
    new = opened(held, None, 0, NEW)
    assert (old.is_closed, new.is_closed) == (True, False)


def test_without_a_coordinator_queries_that_take_turns_keep_their_providers(
    held: OpenProviders, clock: Clock
) -> None:
    one, two = opened(held, None, 0, OLD), opened(held, None, 0, NEW)
    for _ in range(3):
        clock.now += UNUSED_S / 2
        assert opened(held, None, 0, OLD) is one
        assert opened(held, None, 0, NEW) is two
    opened(held, None, 1, NEW)
    assert [each.is_closed for each in (one, two)] == [False, False]


def test_an_unreachable_coordinator_costs_one_warning_and_what_other_runs_left(
    held: OpenProviders, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    gone = StateStoreCoordinator()
    gone.stop()
    old, new = opened(held, gone, 0, OLD), opened(held, gone, 0, NEW)
    clock.now += UNUSED_S
    held.tidy(NEW, gone.address)
    assert (old.is_closed, new.is_closed) == (True, False)
    (warning,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "cannot be reached" in warning.message


def test_tasks_that_do_not_know_their_executor_report_nothing(
    endpoint: StateStoreCoordinator, clock: Clock
) -> None:
    lost = OpenProviders(clock)
    provider = opened(lost, endpoint, 0)
    clock.now += VERIFY_EVERY_S
    lost.tidy(NEW, endpoint.address)
    settle(endpoint)
    assert endpoint.instances.get_location(identity(0)) is None
    assert not provider.is_closed


@pytest.fixture
def _here(monkeypatch: pytest.MonkeyPatch, held: OpenProviders) -> None:
    monkeypatch.setattr(open_providers, "here", held)


def spec(root: Path, address: CoordinatorAddress) -> StoreSpec:
    key, value = parse_schema("k long"), parse_schema("v long")
    conf = StateStoreConf(min_deltas_for_snapshot=1)
    return StoreSpec(str(root), 0, key, value, None, 0, 1, conf, NEW, coordinator=address)


@pytest.mark.usefixtures("_here")
def test_a_store_opened_for_update_is_reported_one_opened_for_reading_is_not(
    tmp_path: Path, endpoint: StateStoreCoordinator
) -> None:
    store = spec(tmp_path, endpoint.address)
    own = StateStoreProviderId(StateStoreId(str(tmp_path), 0, 0), UUID(NEW))
    provider: StateStoreProvider = store.engine(0)
    settle(endpoint)
    assert endpoint.instances.get_location(own) is None
    store.open(0, 0).abort()
    settle(endpoint)
    assert endpoint.instances.get_location(own) == "executor_host_1"
    provider.close()
    assert endpoint.address.secret.mac(b"").hex() not in repr(store)
    assert "secret" not in repr(store).lower()


@dataclass(frozen=True)
class MergingTask:
    """A task that has merged all segments up to version 7 into one of a kind."""

    store: StoreSpec
    kind: str
    base_version: int = 8

    def run(self, partition: int, schema: bytes, batches: Iterable[bytes]) -> TaskResult:
        info = SegmentInfo(1, 0, 100, 50, "0123456789abcdef", Zone())
        swap = Swap((), SegmentRef(self.kind, 1, 7, "0" * 32, info))
        return TaskResult(
            (PreparedPartition(0, "default", partition, 8, "", None, 1, swaps=(swap,)),)
        )


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize(("kind", "lags"), [("snapshot", False), ("merge", True)])
def test_a_snapshot_is_reported_by_the_task_that_wrote_it(
    tmp_path: Path, endpoint: StateStoreCoordinator, kind: str, lags: bool
) -> None:
    own = StateStoreProviderId(StateStoreId(str(tmp_path), 0, 0), UUID(NEW))
    endpoint.instances.report_active_instance(own, "host", "1")
    run_task(MergingTask(spec(tmp_path, endpoint.address), kind), 0, b"", ())
    settle(endpoint)
    assert endpoint.instances.get_lagging_stores(UUID(NEW), 9, 5) == ([own] if lags else [])
