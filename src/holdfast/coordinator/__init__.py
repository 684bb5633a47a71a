"""Knows which executor holds which store: the driver's endpoint, and how workers reach it.

`StateStoreCoordinator` listens on the driver; everybody else uses a `StateStoreCoordinatorRef`.
Inside one process `LocalCoordinator` is enough.
"""

from holdfast.coordinator.endpoint import StateStoreCoordinator
from holdfast.coordinator.instances import Coordinator, LocalCoordinator
from holdfast.coordinator.ref import StateStoreCoordinatorRef
from holdfast.coordinator.wire import CoordinatorAddress, Secret

__all__ = [
    "Coordinator",
    "CoordinatorAddress",
    "LocalCoordinator",
    "Secret",
    "StateStoreCoordinator",
    "StateStoreCoordinatorRef",
]
