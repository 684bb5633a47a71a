"""What the tests of copying share: roots as their files, and copies that end halfway."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import sample_roots

from holdfast.admin import plan_copy
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.filenames import COPYING
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import IllegalState
from holdfast.standalone import open_on
from holdfast.testing.faults import Call, Crash, FaultyStorage, crash_at

RUNTIME = Runtime.system()
MAKERS = {
    "shop": sample_roots.shop,
    "merged": sample_roots.merged_shop,
    "query": sample_roots.query,
    "rolled back": sample_roots.rolled_back_shop,
}
Blobs = dict[str, bytes]


def blobs(storage: Storage) -> Blobs:
    return {blob.path: bytes(storage.read(blob.path)) for blob in storage.list("")}


def opened(storage: Storage) -> list[int]:
    """The versions of a root as everybody sees them; refused while a copy is unfinished."""
    return VersionLog(storage, RUNTIME).versions()


def assert_unfinished(storage: Storage) -> None:
    with pytest.raises(IllegalState, match="unfinished copy") as caught:
        opened(storage)
    assert caught.value.condition == "STATE_STORE_UNFINISHED_COPY"


def clone(storage: Storage) -> MemoryStorage:
    copy = MemoryStorage("clone")
    for path, data in blobs(storage).items():
        copy.create_if_absent(path, data)
    return copy


def what_is_there(target: Storage, expected: Blobs) -> str:
    """What anybody who opens a target finds, and that it is one of three."""
    found = blobs(target)
    if COPYING in found:
        assert_unfinished(target)
        with pytest.raises(IllegalState, match="unfinished copy"):
            open_on(target, RUNTIME, key="user string", value="total long")
        return "unfinished"
    assert found in ({}, expected)
    return "whole" if found else "nothing"


def half_copied(source: Storage, number: int) -> MemoryStorage:
    inner = MemoryStorage("target")
    with pytest.raises(Crash):
        plan_copy(source, FaultyStorage(inner, crash_at(number)), threads=1).run()
    return inner


def calls_of(
    work: Callable[[Storage], object], middle: int | None = None, source: Storage | None = None
) -> list[Call]:
    start = MemoryStorage("w") if source is None else half_copied(source, middle or 0)
    watched = FaultyStorage(start)
    work(watched)
    return watched.calls
