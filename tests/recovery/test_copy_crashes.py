"""Crash a copy at every call, look at what is left, run it again."""

from __future__ import annotations

from pathlib import Path

import pytest
import sample_roots
from copies import MAKERS, blobs, calls_of, clone, half_copied, what_is_there

from holdfast.admin import plan_copy
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.errors import HoldfastError
from holdfast.testing.faults import CRASHES, Crash, Fault, FaultyStorage, crash_at


@pytest.fixture
def merged(tmp_path: Path) -> LocalStorage:
    """Versions 0 to 7, segments in files of their own, a snapshot with fallbacks."""
    return LocalStorage(sample_roots.merged_shop(tmp_path / "merged"))


@pytest.mark.parametrize("kind", sorted(MAKERS))
def test_a_crash_at_any_call_leaves_nothing_whole_ended_or_unfinished(
    tmp_path: Path, kind: str
) -> None:
    source = clone(LocalStorage(MAKERS[kind](tmp_path / "made")))
    expected = blobs(source)
    watched = FaultyStorage(MemoryStorage("watched"))
    plan_copy(source, watched, threads=1).run()
    seen = set()
    for call in watched.calls:
        for fault in CRASHES:
            inner = MemoryStorage("target")
            faulty = FaultyStorage(inner, crash_at(call.number, fault))
            with pytest.raises(Crash):
                plan_copy(source, faulty, threads=1).run()
            seen.add(what_is_there(inner, expected))
            plan_copy(source, inner, threads=1).run()
            assert blobs(inner) == expected, f"{fault} at {call}"
    assert seen == {"nothing", "unfinished", "whole"}


def test_going_on_survives_a_crash_at_any_of_its_own_calls(merged: LocalStorage) -> None:
    expected = blobs(merged)
    calls = calls_of(lambda target: plan_copy(merged, target, threads=1).run())
    middle = calls[len(calls) // 2].number
    for call in calls_of(lambda target: plan_copy(merged, target, threads=1).run(), middle, merged):
        inner = half_copied(merged, middle)
        with pytest.raises(Crash):
            plan_copy(
                merged, FaultyStorage(inner, crash_at(call.number, Fault.CRASH_TORN)), threads=1
            ).run()
        what_is_there(inner, expected)
        plan_copy(merged, inner).run()
        assert blobs(inner) == expected


@pytest.mark.parametrize("fault", [Fault.ERROR, Fault.LOST_REPLY, Fault.FULL])
def test_a_target_that_fails_is_finished_by_a_second_run(
    merged: LocalStorage, fault: Fault
) -> None:
    expected = blobs(merged)
    for call in calls_of(lambda target: plan_copy(merged, target, threads=1).run())[::3]:
        inner = MemoryStorage("target")
        faulty = FaultyStorage(inner, crash_at(call.number, fault))
        try:
            plan_copy(merged, faulty, threads=1).run()
        except HoldfastError:
            what_is_there(inner, expected)
        plan_copy(merged, inner).run()
        assert blobs(inner) == expected


def test_a_local_disk_is_gone_on_with_after_a_crash(merged: LocalStorage, tmp_path: Path) -> None:
    calls = calls_of(lambda target: plan_copy(merged, target, threads=1).run())
    for call in [call for call in calls if call.changes][::4]:
        inner = LocalStorage(tmp_path / str(call.number))
        faulty = FaultyStorage(inner, crash_at(call.number, Fault.CRASH_TORN))
        with pytest.raises(Crash):
            plan_copy(merged, faulty, threads=1).run()
        faulty.bury()
        plan_copy(merged, inner).run()
        assert blobs(inner) == blobs(merged)
