"""What a task checks before it works."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.backends.local import LocalStorage
from holdfast.engine.files.filenames import PLACE
from holdfast.errors import IllegalState
from holdfast.streams.tasks.task import check_place


def test_a_task_goes_on_only_in_the_drivers_folder(tmp_path: Path) -> None:
    drivers, theirs, empty = (LocalStorage(tmp_path / name) for name in ("a", "b", "c"))
    drivers.write(PLACE, b"0" * 32)
    theirs.write(PLACE, b"1" * 32)
    check_place(drivers, "0" * 32)
    for other in (theirs, empty):
        with pytest.raises(IllegalState, match="all hosts share, or on hdfs://"):
            check_place(other, "0" * 32)
