"""What opening and reading a store costs does not multiply with its partitions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files import manifest_codec as manifests
from holdfast.engine.storage import Runtime
from holdfast.standalone.opening import open_on
from holdfast.standalone.versioned_store import VersionedStore


class CountingStorage(MemoryStorage):
    """Counts what is asked of it."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.calls: Counter[str] = Counter()

    def read(self, path: str, *args: Any, **kwargs: Any) -> Any:
        self.calls["read"] += 1
        return super().read(path, *args, **kwargs)

    def list(self, prefix: str) -> Any:
        self.calls["list"] += 1
        return super().list(prefix)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many partitions were decoded out of manifests."""
    counted: Counter[str] = Counter()
    decode = manifests._partition_from_json

    def counting(body: Any) -> Any:
        counted["partitions"] += 1
        return decode(body)

    monkeypatch.setattr(manifests, "_partition_from_json", counting)
    return counted


def filled(name: str, partitions: int) -> CountingStorage:
    storage = CountingStorage(f"memory://{name}-{partitions}")
    with opened(storage, partitions) as db:
        for _ in range(2):
            with db.update() as store:
                store.put_many(pa.table({"k": list(range(2000)), "v": list(range(2000))}))
    return storage


def opened(storage: CountingStorage, partitions: int | None = None) -> VersionedStore:
    return open_on(storage, Runtime.system(), "k long", "v long", partitions=partitions)


def test_opening_and_looking_back_read_a_manifest_once_for_all_partitions(
    decoded: Counter[str],
) -> None:
    asked = {}
    for partitions in (2, 64):
        storage = filled("open", partitions)
        storage.calls.clear()
        decoded.clear()
        with opened(storage) as db:
            at_opening = dict(storage.calls)
            reader = db.at(1)
            asked[partitions] = (at_opening, dict(storage.calls))
            assert decoded["partitions"] == 2 * partitions
            assert reader.get((7,)) == (7,)
            assert reader.scan().num_rows == 2000
    assert asked[2] == asked[64]


def test_an_update_and_maintenance_decode_a_manifest_once_at_most(decoded: Counter[str]) -> None:
    storage = filled("update", 64)
    with opened(storage) as db:
        decoded.clear()
        with db.update() as store:
            store.put((1,), (2,))
        assert decoded["partitions"] <= 64
        decoded.clear()
        db.maintain(snapshot=True)
        assert decoded["partitions"] <= 5 * 64  # the clean-up reads each of the versions
        assert db.get((1,)) == (2,)
