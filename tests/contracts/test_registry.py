"""The registry: one provider for each id, maintained in the background, unloaded when elsewhere."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest

from holdfast import registry as registry_module
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.coordinator import LocalCoordinator
from holdfast.errors import InvalidArgument, VersionNotFound
from holdfast.ids import StateStoreId, StateStoreProviderId
from holdfast.registry import StateStores

HOST = socket.gethostname()
RUN = UUID(int=1)


class NotingProvider(HDFSBackedStateStoreProvider):
    """Notes what happens to it; its maintenance fails in the partitions of `failing`."""

    events: ClassVar[list[tuple[str, int]]] = []
    failing: ClassVar[set[int]] = set()

    def init(self, state_store_id: StateStoreId, *args: Any, **kwargs: Any) -> None:
        super().init(state_store_id, *args, **kwargs)
        self._note("init")

    def do_maintenance(self) -> None:
        self._note("maintenance")
        if self.state_store_id.partition_id in self.failing:
            raise OSError("the disk is on fire")
        super().do_maintenance()

    def close(self) -> None:
        self._note("close")
        super().close()

    def _note(self, what: str) -> None:
        self.events.append((what, self.state_store_id.partition_id))


NOTING = StateStoreConf(provider_class=f"{__name__}.NotingProvider")


@pytest.fixture(autouse=True)
def _fresh_notes() -> None:
    NotingProvider.events, NotingProvider.failing = [], set()


@pytest.fixture
def coordinator() -> LocalCoordinator:
    return LocalCoordinator()


@pytest.fixture
def stores(coordinator: LocalCoordinator) -> Iterator[StateStores]:
    registry = StateStores(coordinator, "1")
    yield registry
    registry.stop()


Get = Callable[..., Any]


@pytest.fixture
def get(stores: StateStores, tmp_path: Path) -> Get:
    """Opens a version of a partition through the registry."""

    def open_store(
        partition: int = 0, version: int = 0, run: UUID = RUN, conf: Any = NOTING
    ) -> Any:
        return stores.get(
            provider_id(tmp_path, partition, run), "user string", "total long", None, version, conf
        )

    return open_store


def provider_id(root: Path, partition: int = 0, run: UUID = RUN) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId(str(root), 0, partition), run)


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited for a minute"
        time.sleep(0.005)


def test_store_is_made_on_first_use_and_then_found(
    stores: StateStores, get: Get, tmp_path: Path
) -> None:
    assert not stores.is_loaded(provider_id(tmp_path))
    store = get()
    store.put(("a",), (1,))
    store.commit()
    assert stores.is_loaded(provider_id(tmp_path))
    assert get(version=1).get(("a",)) == (1,)
    assert NotingProvider.events == [("init", 0)]


def test_read_only_store_comes_from_the_same_provider(
    stores: StateStores, get: Get, tmp_path: Path
) -> None:
    get().commit()
    reader = stores.get_read_only(
        provider_id(tmp_path), "user string", "total long", None, 1, NOTING
    )
    assert (reader.version, reader.get(("a",))) == (1, None)
    assert NotingProvider.events == [("init", 0)]


def test_negative_version_is_refused_before_anything_is_made(
    stores: StateStores, get: Get, tmp_path: Path
) -> None:
    with pytest.raises(InvalidArgument, match="-1"):
        get(version=-1)
    assert not stores.is_loaded(provider_id(tmp_path))
    assert not stores.is_maintenance_running


def test_missing_version_is_not_found(get: Get) -> None:
    with pytest.raises(VersionNotFound):
        get(version=3)


def test_there_is_one_provider_for_each_id_under_many_threads(get: Get) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: get(partition=n % 2), range(40)))
    assert sorted(NotingProvider.events) == [("init", 0), ("init", 1)]


def test_restarted_run_gets_a_new_provider(stores: StateStores, get: Get, tmp_path: Path) -> None:
    store = get()
    store.put(("a",), (1,))
    store.commit()
    again = uuid4()
    assert get(version=1, run=again).get(("a",)) == (1,)
    assert NotingProvider.events == [("init", 0), ("init", 0)]
    assert stores.is_loaded(provider_id(tmp_path))
    assert stores.is_loaded(provider_id(tmp_path, run=again))


def test_maintenance_starts_once(stores: StateStores, get: Get) -> None:
    def threads() -> list[threading.Thread]:
        return [t for t in threading.enumerate() if t.name == "holdfast-maintenance"]

    before = len(threads())
    assert not stores.is_maintenance_running
    for partition in range(3):
        get(partition=partition)
    assert stores.is_maintenance_running
    assert len(threads()) == before + 1
    stores.stop()
    assert not stores.is_maintenance_running
    assert len(threads()) == before


def test_active_instance_is_reported(
    get: Get, coordinator: LocalCoordinator, tmp_path: Path
) -> None:
    get()
    assert coordinator.verify_if_instance_active(provider_id(tmp_path), "1")
    assert coordinator.get_location(provider_id(tmp_path)) == f"executor_{HOST}_1"


def test_every_use_reports_again(
    stores: StateStores, get: Get, coordinator: LocalCoordinator, tmp_path: Path
) -> None:
    get()
    coordinator.report_active_instance(provider_id(tmp_path), "elsewhere", "2")
    get()
    assert coordinator.verify_if_instance_active(provider_id(tmp_path), "1")


def test_inactive_provider_is_maintained_once_more_and_unloaded(
    stores: StateStores, get: Get, coordinator: LocalCoordinator, tmp_path: Path
) -> None:
    get(partition=0)
    get(partition=1)
    coordinator.report_active_instance(provider_id(tmp_path, 0), "elsewhere", "2")
    stores.do_maintenance()
    assert not stores.is_loaded(provider_id(tmp_path, 0))
    assert stores.is_loaded(provider_id(tmp_path, 1))
    of_first = [what for what, partition in NotingProvider.events if partition == 0]
    assert of_first == ["init", "maintenance", "close"]


def test_providers_of_a_stopped_run_are_unloaded(
    stores: StateStores, get: Get, coordinator: LocalCoordinator, tmp_path: Path
) -> None:
    get(partition=0)
    get(partition=1)
    coordinator.deactivate_instances(RUN)
    stores.do_maintenance()
    assert not stores.is_loaded(provider_id(tmp_path, 0))
    assert not stores.is_loaded(provider_id(tmp_path, 1))


def test_failing_maintenance_unloads_only_itself(
    stores: StateStores, get: Get, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for partition in range(3):
        get(partition=partition)
    NotingProvider.failing = {1}
    stores.do_maintenance()
    loaded = [stores.is_loaded(provider_id(tmp_path, n)) for n in range(3)]
    assert loaded == [True, False, True]
    assert ("close", 1) in NotingProvider.events
    assert ("maintenance", 2) in NotingProvider.events
    (record,) = [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert str(provider_id(tmp_path, 1)) in record.getMessage()
    NotingProvider.failing = set()
    get(partition=1)
    assert stores.is_loaded(provider_id(tmp_path, 1))


def test_failing_maintenance_spares_a_provider_loaded_again_meanwhile(
    stores: StateStores, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replaced_while_failing(self: Any) -> None:
        stores.unload(provider_id(tmp_path))
        get()
        raise OSError("the disk is on fire")

    get()
    monkeypatch.setattr(NotingProvider, "do_maintenance", replaced_while_failing)
    stores.do_maintenance()
    assert stores.is_loaded(provider_id(tmp_path))
    assert NotingProvider.events.count(("close", 0)) == 1


def test_coordinator_without_an_answer_unloads_the_provider_it_was_asked_about(
    tmp_path: Path,
) -> None:
    class Silent(LocalCoordinator):
        def verify_if_instance_active(
            self, provider_id: StateStoreProviderId, executor_id: str
        ) -> bool:
            raise ConnectionError("the driver is gone")

    stores = StateStores(Silent(), "1")
    stores.get(provider_id(tmp_path), "user string", "total long", None, 0, NOTING)
    stores.do_maintenance()
    assert not stores.is_loaded(provider_id(tmp_path))
    stores.stop()


def test_maintenance_runs_by_itself_each_interval(get: Get) -> None:
    get(conf=StateStoreConf(provider_class=NOTING.provider_class, maintenance_interval_ms=5))
    wait_for(lambda: NotingProvider.events.count(("maintenance", 0)) >= 3)


def test_unload_closes_the_provider_and_forgets_it(
    stores: StateStores, get: Get, tmp_path: Path
) -> None:
    get()
    stores.unload(provider_id(tmp_path))
    stores.unload(provider_id(tmp_path))
    assert not stores.is_loaded(provider_id(tmp_path))
    assert NotingProvider.events == [("init", 0), ("close", 0)]
    get()
    assert NotingProvider.events[-1] == ("init", 0)


def test_stop_unloads_everything_and_ends_maintenance(
    stores: StateStores, get: Get, tmp_path: Path
) -> None:
    get(partition=0)
    get(partition=1)
    stores.stop()
    stores.stop()
    assert not stores.is_maintenance_running
    assert [stores.is_loaded(provider_id(tmp_path, n)) for n in (0, 1)] == [False, False]
    assert sorted(NotingProvider.events)[:2] == [("close", 0), ("close", 1)]
    get()
    assert stores.is_maintenance_running


def test_provider_whose_init_fails_is_not_loaded(stores: StateStores, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        stores.get(provider_id(tmp_path), "m map<int,int>", "total long", None, 0, NOTING)
    assert not stores.is_loaded(provider_id(tmp_path))


def test_storage_options_reach_the_provider(stores: StateStores, tmp_path: Path) -> None:
    seen: list[Mapping[str, str]] = []

    class Asking(NotingProvider):
        def _open_storage(self, location: str, options: Mapping[str, str]) -> Any:
            seen.append(options)
            return super()._open_storage(location, options)

    globals()["Asking"] = Asking
    conf = StateStoreConf(provider_class=f"{__name__}.Asking")
    stores.get(provider_id(tmp_path), "k int", "v int", None, 0, conf, {"token": "t"})
    assert seen == [{"token": "t"}]


def test_there_is_one_registry_for_the_process() -> None:
    assert isinstance(registry_module.default, StateStores)
    assert not registry_module.default.is_maintenance_running
