"""Roots in memory that operations work on, with a clock that tests move."""

from __future__ import annotations

from typing import Any
from unittest import mock

from oracle import FakeTime

from holdfast.admin.site import Site
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage
from holdfast.reading import Root
from holdfast.standalone import VersionedStore, open_on

KEEP, GRACE_MS = 3, 60_000
CONF = StateStoreConf(
    min_versions_to_retain=KEEP,
    grace_period_ms=GRACE_MS,
    pack_threshold_bytes=0,
    maintenance_interval_ms=3_600_000,
)
Rows = dict[tuple[Any, ...], tuple[Any, ...]]


def site_of(storage: Storage, time: FakeTime) -> Site:
    """A standalone root, opened for operations."""
    return Site(Root(storage), time.runtime(), None)


def planned(operation: Any, storage: Storage, time: FakeTime, **arguments: Any) -> Any:
    """What an operation of `holdfast.admin` plans for a root in a storage."""
    target = f"{operation.__module__}.open_site"
    with mock.patch(target, return_value=site_of(storage, time)):
        return operation("", **arguments)


def opened(storage: Storage, time: FakeTime, conf: StateStoreConf = CONF) -> VersionedStore:
    """A store with two partitions at a root, made there if there is none."""
    return open_on(storage, time.runtime(), "k string", "v long", partitions=2, conf=conf)


def write(db: VersionedStore, number: int) -> Rows:
    """Commit one version; what it holds then."""
    with db.update() as update:
        update.put(("always",), (number,))
        update.put((f"key {number % 5}",), (number,))
    return rows(db, db.version)


def rows(db: VersionedStore, version: int) -> Rows:
    return dict(db.at(version).iterator())


def blobs(storage: Storage) -> dict[str, bytes]:
    return {blob.path: bytes(storage.read(blob.path)) for blob in storage.list("")}


def clone(storage: Storage) -> MemoryStorage:
    copy = MemoryStorage("clone")
    for path, data in blobs(storage).items():
        copy.create_if_absent(path, data)
    return copy
