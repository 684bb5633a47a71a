"""Blobs in memory."""

from __future__ import annotations

import pytest

from holdfast.backends.locations import open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import Storage
from holdfast.testing import StorageConformance


class TestMemoryStorage(StorageConformance):
    @pytest.fixture
    def storage(self) -> Storage:
        return MemoryStorage()


def test_memory_roots_of_one_name_share_their_blobs() -> None:
    open_storage("memory://shared/here").write("a", b"1")
    assert bytes(open_storage("memory://shared/here/").read("a")) == b"1"
    assert open_storage("memory://shared").size("here/a") is None


def test_memory_location_reads_as_it_was_written() -> None:
    assert open_storage("memory://shared/here").location == "memory://shared/here"
