"""Crash a fork at every call, look at what is left, run it again; and crash that as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from copies import RUNTIME, assert_unfinished, blobs
from forks import Ends, Faults, SharingStorage, check_fork, found_at
from made_up_streams import made_up_stream

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import HoldfastError
from holdfast.testing.faults import CRASHES, Crash, Fault

KINDS = {"shared": SharingStorage, "copied": MemoryStorage}


@pytest.fixture(params=sorted(KINDS))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Ends]:
    made_up_stream(tmp_path / "cp", batches=3)
    return lambda: Ends.of(tmp_path / "cp", KINDS[request.param])


def calls_of(ends: Ends) -> Faults:
    watched = Faults()
    ends.plan(2, watched).run()
    return watched


def crash(ends: Ends, number: int, fault: Fault) -> None:
    with pytest.raises(Crash):
        ends.plan(2, Faults(number, fault)).run()


def finish(ends: Ends) -> str:
    """Check what a crash has left, and run the fork again where it is not whole."""
    there = found_at(ends)
    if there == "unfinished":
        assert_unfinished(ends.state)
    assert VersionLog(ends.source, RUNTIME).versions() == [0, 1, 2, 3]
    if there != "whole":
        ends.plan(2).run()
    check_fork(ends, 2)
    return there


def test_a_crash_at_any_call_leaves_nothing_unfinished_or_whole(make: Callable[[], Ends]) -> None:
    seen = set()
    for number in range(1, len(calls_of(make()).calls) + 1):
        for fault in CRASHES:
            ends = make()
            crash(ends, number, fault)
            seen.add(finish(ends))
    assert seen == {"nothing", "unfinished", "whole"}


def test_a_crash_while_a_fork_is_resumed_is_resumed_as_well(make: Callable[[], Ends]) -> None:
    calls = calls_of(make()).calls
    for number in range(len(calls) // 3, len(calls), 9):
        begun = make()
        crash(begun, number, Fault.CRASH_AFTER)
        if found_at(begun) != "unfinished":
            continue
        for second in range(1, len(calls_of(duplicate(begun)).calls) + 1, 2):
            ends = duplicate(begun)
            crash(ends, second, Fault.CRASH_TORN)
            finish(ends)


def duplicate(ends: Ends) -> Ends:
    made = [type(each)(each.location.removeprefix("memory://")) for each in vars(ends).values()]
    for old, new in zip(vars(ends).values(), made, strict=True):
        for path, data in blobs(old).items():
            new.create_if_absent(path, data)
    return Ends(*made)


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_REPLY, Fault.FULL])
def test_a_storage_that_fails_is_finished_by_a_second_run(
    make: Callable[[], Ends], fault: Fault
) -> None:
    for number in range(1, len(calls_of(make()).calls) + 1, 2):
        ends = make()
        try:
            ends.plan(2, Faults(number, fault)).run()
        except HoldfastError:
            finish(ends)
        else:
            check_fork(ends, 2)
