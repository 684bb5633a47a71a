"""However long a stream commits, the number of its versions stays the same."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

import pytest

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import VersionLog
from holdfast.standalone.opening import open_on

KEEP = 10


@dataclass
class Clock:
    now_ms: int = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.mark.parametrize(("grace_ms", "most"), [(0, 2 * KEEP), (30_000, KEEP + 30 + KEEP)])
def test_ticks_by_the_clock_leave_a_bounded_number_of_versions_and_files(
    grace_ms: int, most: int
) -> None:
    """A version a second, a clean-up every ten, for as long as it takes to see that it is flat."""
    clock, ids = Clock(), count()
    runtime = Runtime(clock_ms=clock, monotonic_ms=clock, new_id=lambda: f"{next(ids):032x}")
    storage = MemoryStorage(f"ticks-{grace_ms}")
    conf = {
        "min_versions_to_retain": KEEP, "grace_period_ms": grace_ms,
        "maintenance_interval_ms": 10**9,
    }  # fmt: skip
    versions, files = [], []
    with open_on(storage, runtime, "k long", "v long", conf=conf) as db:
        for second in range(200):
            clock.now_ms += 1000
            with db.update() as store:
                store.put((second % 3,), (second,))
            if second % 10 == 9:
                db.maintain()
            versions.append(len(VersionLog(storage, runtime).versions()))
            files.append(len(storage.list("")))
    assert max(versions) <= most
    assert max(files[100:]) <= max(files[:100])
