"""Who holds which store, inside one process."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from holdfast.coordinator import LocalCoordinator
from holdfast.ids import StateStoreId, StateStoreProviderId


def provider_id(partition: int = 0, run: int = 1) -> StateStoreProviderId:
    return StateStoreProviderId(StateStoreId("/r", 0, partition), UUID(int=run))


def test_unknown_instance_is_inactive_and_nowhere() -> None:
    coordinator = LocalCoordinator()
    assert not coordinator.verify_if_instance_active(provider_id(), "1")
    assert coordinator.get_location(provider_id()) is None


def test_reported_instance_is_active_where_it_was_reported() -> None:
    coordinator = LocalCoordinator()
    coordinator.report_active_instance(provider_id(), "host", "1")
    assert coordinator.verify_if_instance_active(provider_id(), "1")
    assert not coordinator.verify_if_instance_active(provider_id(), "2")
    assert coordinator.get_location(provider_id()) == "executor_host_1"


def test_last_report_takes_the_instance_over() -> None:
    coordinator = LocalCoordinator()
    coordinator.report_active_instance(provider_id(), "host-1", "1")
    coordinator.report_active_instance(provider_id(), "host-2", "2")
    assert not coordinator.verify_if_instance_active(provider_id(), "1")
    assert coordinator.verify_if_instance_active(provider_id(), "2")
    assert coordinator.get_location(provider_id()) == "executor_host-2_2"


def test_deactivating_a_run_forgets_its_instances_and_no_others() -> None:
    coordinator = LocalCoordinator()
    for partition in (0, 1):
        for run in (1, 2):
            coordinator.report_active_instance(provider_id(partition, run), "host", "1")
    coordinator.deactivate_instances(UUID(int=1))
    active = {
        (partition, run): coordinator.verify_if_instance_active(provider_id(partition, run), "1")
        for partition in (0, 1)
        for run in (1, 2)
    }
    assert active == {(0, 1): False, (0, 2): True, (1, 1): False, (1, 2): True}
    coordinator.deactivate_instances(UUID(int=9))


def test_threads_may_report_at_once() -> None:
    coordinator = LocalCoordinator()
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda n: coordinator.report_active_instance(provider_id(n), "host", str(n)),
                range(200),
            )
        )
    assert all(coordinator.verify_if_instance_active(provider_id(n), str(n)) for n in range(200))
