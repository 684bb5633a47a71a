"""What clean-up may remove, and when."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from interrupting import Interrupting
from made_up_manifests import attempt, manifest, ref

from holdfast.backends.local import TEMPORARY_PREFIX, LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import manifest_path, pack_path, retiring_path
from holdfast.engine.files.manifest import SegmentRef
from holdfast.engine.files.manifest_codec import encode
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.retention import (
    Cleaner,
    KeptVersion,
    dead_files,
    possible_merges,
    retired_versions,
)
from holdfast.errors import Corruption, VersionNotFound

GRACE = 100


def retired(
    times: dict[int, int], *, tagged: tuple[int, ...] = (), keep: int = 2, now: int = 10_000
) -> list[int]:
    return retired_versions(times, tagged, keep, now, GRACE)


def test_nothing_retires_while_there_are_few_versions() -> None:
    assert retired({}) == []
    assert retired({5: 0}) == []
    assert retired({4: 0, 5: 0}) == []


def test_versions_beyond_the_newest_ones_retire() -> None:
    assert retired({1: 0, 2: 0, 3: 0, 4: 0}) == [1, 2]
    assert retired({1: 0, 2: 0, 3: 0, 4: 0}, keep=3) == [1]


@pytest.mark.parametrize("keep", [-1, 0, 1, 2])
def test_two_versions_stay_whatever_is_asked(keep: int) -> None:
    assert retired({1: 0, 2: 0, 3: 0}, keep=keep) == [1]


def test_gaps_between_versions_do_not_count() -> None:
    assert retired({3: 0, 90: 0, 91: 0}) == [3]


def test_a_tagged_version_stays_and_still_counts() -> None:
    assert retired({1: 0, 2: 0, 3: 0, 4: 0}, tagged=(1,)) == [2]
    assert retired({1: 0, 2: 0, 3: 0}, tagged=(3,)) == [1]
    assert retired({1: 0, 2: 0, 3: 0}, tagged=(7,)) == [1]


@pytest.mark.parametrize(("now", "gone"), [(1_099, []), (1_100, [1]), (5_000, [1])])
def test_grace_counts_from_the_commit_that_pushed_a_version_out(now: int, gone: list[int]) -> None:
    times = {1: 0, 2: 500, 3: 1_000}
    assert retired(times, now=now) == gone


def test_each_version_has_its_own_grace() -> None:
    times = {1: 0, 2: 0, 3: 0, 4: 9_950}
    assert retired(times, now=10_000) == [1]


def test_a_clock_that_went_back_retires_nothing() -> None:
    assert retired({1: 500, 2: 500, 3: 500}, now=0) == []


@given(
    st.dictionaries(st.integers(0, 40), st.integers(0, 1_000), max_size=12),
    st.sets(st.integers(0, 40)),
    st.integers(0, 6),
    st.integers(0, 2_000),
)
def test_retiring_never_touches_the_newest_or_the_tagged(
    times: dict[int, int], tagged: set[int], keep: int, now: int
) -> None:
    gone = retired(times, tagged=tuple(tagged), keep=keep, now=now)
    newest = sorted(times)[-max(keep, 2) :]
    assert not set(gone) & {*newest, *tagged}
    assert set(gone) <= set(times)
    later = retired(times, tagged=tuple(tagged), keep=keep, now=now + 10_000)
    assert set(later) == set(times) - set(newest) - tagged


def path(version: int, number: int = 0, kind: str = "delta") -> str:
    return f"0/0/{version}-{attempt(number)}.{kind}"


def kept(**versions: tuple[int, list[str]]) -> dict[int, KeptVersion]:
    return {
        int(name[1:]): KeptVersion(committed, frozenset(files))
        for name, (committed, files) in versions.items()
    }


def dead(
    listed: list[str],
    by: dict[int, KeptVersion],
    *,
    spared: tuple[str, ...] = (),
    now: int = 10_000,
) -> list[str]:
    return dead_files(listed, by, spared, now, GRACE)


def test_without_any_version_nothing_is_removed() -> None:
    assert dead([path(1), path(2)], {}) == []


def test_needed_files_stay() -> None:
    listed = [path(1), path(2)]
    assert dead(listed, kept(v2=(0, listed))) == []


def test_what_a_commit_left_behind_goes() -> None:
    listed = [path(1), path(2), path(2, 7), path(2, 7, "pack")]
    assert dead(listed, kept(v2=(0, [path(1), path(2)]))) == [path(2, 7), path(2, 7, "pack")]


def test_files_above_the_newest_version_are_never_touched() -> None:
    listed = [path(3), path(4), path(900)]
    assert dead(listed, kept(v2=(0, [])), now=10**15) == []


@pytest.mark.parametrize(("now", "goes"), [(1_099, False), (1_100, True)])
def test_a_losers_grace_counts_from_the_commit_that_beat_it(now: int, goes: bool) -> None:
    by = kept(v2=(0, []), v3=(1_000, []), v4=(9_000, []))
    assert dead([path(3, 7)], by, now=now) == ([path(3, 7)] if goes else [])


def test_where_that_commit_is_gone_the_next_one_counts() -> None:
    by = kept(v1=(0, []), v6=(9_990, []))
    assert dead([path(3, 7)], by, now=10_000) == []
    assert dead([path(3, 7)], by, now=10_090) == [path(3, 7)]


def test_merges_that_wait_are_spared() -> None:
    listed = [path(2, 8, "merge"), path(2, 9, "snapshot")]
    by = kept(v2=(0, []))
    assert dead(listed, by, spared=(listed[0],)) == [listed[1]]


def test_what_others_may_be_merging_ends_where_a_segment_of_the_newest_version_does() -> None:
    tops = frozenset({("0/0", 7), ("0/1", 5)})
    by = {6: KeptVersion(0, frozenset()), 7: KeptVersion(0, frozenset(), tops=tops)}
    possible = [
        path(7, 1, "merge"),
        path(7, 2, "snapshot"),
        path(5, 1, "merge").replace("0/0", "0/1"),
    ]
    others = [
        path(7),
        path(7, 1, "pack"),
        path(5, 1, "merge"),
        path(6, 1, "snapshot"),
        "0/0/7.merge",
    ]
    assert possible_merges([*possible, *others], by) == set(possible)
    assert possible_merges(possible, {}) == set()


def test_an_outsider_leaves_the_merges_that_only_a_driver_knows(storage: MemoryStorage) -> None:
    """A driver removes them, once it does not wait for them itself."""
    write(storage, 1, [ref(1)])
    write(storage, 2, [ref(2), ref(1)])
    storage.write(path(2, 30, "snapshot"), b"finished")
    storage.write(path(1, 31, "merge"), b"finished")
    log = VersionLog(storage, runtime())
    outsider = Cleaner(log, runtime(), CONF, is_driver=False)
    assert outsider.survey().plan().spared_files == [path(1, 31, "merge"), path(2, 30, "snapshot")]
    assert outsider.clean().files == []
    done = Cleaner(log, runtime(), CONF).clean(lambda: {path(2, 30, "snapshot")})
    assert done.files == [path(1, 31, "merge")]


def test_a_version_that_another_clean_up_removes_meanwhile_is_left_out() -> None:
    storage = Interrupting()
    for version in range(1, 6):
        write(storage, version, [ref(version)])
    log = VersionLog(storage, runtime())
    storage.before("read", "versions/2", lambda: storage.delete("versions/2"))
    assert Cleaner(log, runtime(), CONF).clean().versions == [1, 3]
    assert {path(4), path(5)} <= names(storage)


def test_files_of_somebody_else_stay() -> None:
    assert dead(["0/0/notes.txt", "0/0/1.delta", "versions/1", "tags/x"], kept(v9=(0, []))) == []


def runtime(now: Callable[[], int] = lambda: 10_000) -> Runtime:
    numbers = iter(range(1, 10_000))
    return Runtime(now, lambda: 0, lambda: attempt(next(numbers)))


def write(
    storage: Storage, version: int, chain: list[SegmentRef], committed_at_ms: int = 0
) -> None:
    for part in chain:
        if storage.size(part.path("0/0")) is None:
            storage.write(part.path("0/0"), b"data")
    stored = manifest(version, [chain], committed_at_ms=committed_at_ms)
    storage.write(manifest_path(version), encode(stored))


def names(storage: Storage) -> set[str]:
    return {blob.path for blob in storage.list("")}


CONF = StateStoreConf(min_versions_to_retain=2, grace_period_ms=GRACE)


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def test_a_clean_leaves_what_the_kept_versions_need(storage: MemoryStorage) -> None:
    write(storage, 1, [ref(1)])
    write(storage, 2, [ref(2), ref(1)])
    merged = ref(2, 1, "snapshot", number=5, inputs=[ref(2), ref(1)])
    write(storage, 3, [ref(3), merged])
    write(storage, 4, [ref(4), ref(3), merged])
    storage.write(path(4, 66), b"of a loser")
    storage.write(pack_path(4, attempt(67)), b"of a loser")
    storage.write(path(5, 68), b"of a commit under way")
    done = Cleaner(VersionLog(storage, runtime()), runtime(), CONF).clean()
    assert done.versions == [1, 2]
    assert sorted(done.files) == [path(4, 66), pack_path(4, attempt(67))]
    assert names(storage) == {
        "versions/3", "versions/4", path(4), path(3), path(2), path(1),
        merged.path("0/0"), path(5, 68),
    }  # fmt: skip


def test_inputs_go_once_nothing_falls_back_on_them(storage: MemoryStorage) -> None:
    merged = ref(2, 1, "merge", number=5, inputs=[ref(2), ref(1)])
    again = ref(3, 1, "snapshot", number=6, inputs=[ref(3), merged.without_inputs()])
    write(storage, 2, [ref(2), ref(1)])
    write(storage, 3, [ref(3), merged])
    write(storage, 4, [ref(4), again])
    write(storage, 5, [ref(5), ref(4), again])
    Cleaner(VersionLog(storage, runtime()), runtime(), CONF).clean()
    assert path(1) not in names(storage)
    assert path(2) not in names(storage)
    assert {path(3), merged.path("0/0"), again.path("0/0")} <= names(storage)


def test_a_second_clean_finds_nothing(storage: MemoryStorage) -> None:
    for version in range(1, 6):
        write(storage, version, [ref(n) for n in range(version, 0, -1)])
    log = VersionLog(storage, runtime())
    assert Cleaner(log, runtime(), CONF).clean().versions == [1, 2, 3]
    again = Cleaner(log, runtime(), CONF).clean()
    assert (again.versions, again.files) == ([], [])


class Reading(MemoryStorage):
    """Notes which blobs are read or deleted."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def read(self, path: str) -> pa.Buffer:
        self.calls.append(path)
        return super().read(path)

    def delete(self, path: str) -> None:
        self.calls.append(path)
        super().delete(path)


def test_of_versions_that_stay_each_is_read_once_but_the_newest() -> None:
    storage = Reading()
    three_versions(storage)
    cleaner = Cleaner(VersionLog(storage, runtime()), runtime(), CONF)
    cleaner.clean()
    write(storage, 4, [ref(4), ref(3)])
    storage.calls.clear()
    assert cleaner.clean().versions == [2]
    assert [path for path in storage.calls if path == "versions/2"] == ["versions/2"]  # deleted
    assert {"versions/3", "versions/4"} <= set(storage.calls)
    storage.calls.clear()
    done = cleaner.clean()
    assert (done.versions, done.files) == ([], [])
    assert "versions/3" not in storage.calls
    assert {path(4), path(3)} <= names(storage)


def test_nobody_waits_while_versions_are_read_and_files_deleted() -> None:
    storage = Reading()
    for version in range(1, 6):
        write(storage, version, [ref(version)])
    entered = []

    @contextmanager
    def quiet() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")
        assert storage.calls == []

    Cleaner(VersionLog(storage, runtime()), runtime(), CONF).clean(quiet=quiet())
    assert entered == ["in", "out"]
    assert {"versions/5", path(1)} <= set(storage.calls)


def test_an_empty_root_can_be_cleaned(storage: MemoryStorage) -> None:
    done = Cleaner(VersionLog(storage, runtime()), runtime(), CONF).clean()
    assert (done.versions, done.files) == ([], [])


def test_a_tagged_version_keeps_its_files_until_it_is_untagged(storage: MemoryStorage) -> None:
    write(storage, 1, [ref(1)])
    log = VersionLog(storage, runtime())
    log.tag("first", 1)
    for version in (2, 3, 4):
        write(storage, version, [ref(version)])
    assert Cleaner(log, runtime(), CONF).clean().versions == [2]
    assert path(1) in names(storage)
    log.untag("first")
    assert Cleaner(log, runtime(), CONF).clean().versions == [1]
    assert path(1) not in names(storage)


def test_a_damaged_tag_stops_the_clean_before_anything_is_removed(storage: MemoryStorage) -> None:
    for version in (1, 2, 3):
        write(storage, version, [ref(version)])
    storage.write("tags/first", b"HOLDFAST-TAG 1 0000 {}\n")
    before = names(storage)
    with pytest.raises(Corruption, match="nothing is cleaned up"):
        Cleaner(VersionLog(storage, runtime()), runtime(), CONF).clean()
    assert names(storage) == before


def three_versions(storage: Storage) -> VersionLog:
    for version in (1, 2, 3):
        write(storage, version, [ref(version)])
    return VersionLog(storage, runtime())


def test_a_tag_made_while_versions_retire_is_refused_or_kept() -> None:
    told = []
    for call, where in [("list", "tags"), ("list", "versions"), ("delete", "versions/1")]:
        storage = Interrupting()
        log = three_versions(storage)

        def tag(log: VersionLog = log) -> None:
            try:
                log.tag("mine", 1)
            except VersionNotFound:
                told.append("refused")
            else:
                told.append("tagged")

        storage.before(call, where, tag)
        Cleaner(log, runtime(), CONF).clean()
        assert (storage.size("versions/1") is not None) == (told[-1] == "tagged")
        assert (log.read_tag("mine") == 1) == (told[-1] == "tagged")
        assert storage.list("retiring") == []
    assert told == ["tagged", "tagged", "refused"]


def test_a_tag_of_a_version_that_vanishes_meanwhile_is_refused() -> None:
    storage = Interrupting()
    log = three_versions(storage)
    storage.before("list", "retiring", lambda: storage.delete("versions/1"))
    with pytest.raises(VersionNotFound, match="is being removed"):
        log.tag("mine", 1)
    assert log.tags() == {}


def test_what_a_crashed_clean_marked_is_forgotten_once_it_is_gone(storage: MemoryStorage) -> None:
    log = three_versions(storage)
    storage.write(retiring_path(attempt(50)), b'{"versions": [1]}')
    with pytest.raises(VersionNotFound):
        log.tag("mine", 1)
    Cleaner(log, runtime(), CONF).clean()
    assert storage.list("retiring") == []
    storage.write(retiring_path(attempt(51)), b'{"versions": [1]}')
    Cleaner(log, runtime(), CONF).clean()
    assert storage.list("retiring") == []


def test_a_tag_that_was_there_survives_a_refused_second_time(storage: MemoryStorage) -> None:
    log = three_versions(storage)
    log.tag("mine", 1)
    storage.write(retiring_path(attempt(50)), b'{"versions": [1]}')
    with pytest.raises(VersionNotFound):
        log.tag("mine", 1)
    assert log.tags() == {"mine": 1}


def test_merges_are_asked_for_after_the_files_were_listed() -> None:
    storage = Interrupting()
    log = three_versions(storage)
    waiting: set[str] = set()

    def merge_becomes_visible() -> None:
        waiting.add(path(3, 8, "merge"))
        storage.write(path(3, 8, "merge"), b"data")

    storage.before("list", "", merge_becomes_visible)
    Cleaner(log, runtime(), CONF).clean(lambda: set(waiting))
    assert path(3, 8, "merge") in names(storage)


def test_only_old_temporary_files_are_swept(tmp_path: Path) -> None:
    storage = LocalStorage(tmp_path)
    three_versions(storage)
    old, young = (tmp_path / "0/0" / f"{TEMPORARY_PREFIX}{name}" for name in ("old", "young"))
    for file in (old, young):
        file.write_bytes(b"unfinished")
    an_hour_ago = time.time() - 3_600
    os.utime(old, (an_hour_ago, an_hour_ago))
    Cleaner(VersionLog(storage, runtime()), runtime(), CONF).clean()
    assert not old.exists()
    assert young.exists(), "a minute is the least, however short the grace period"


def test_what_only_changes_state_from_outside_pushes_out_no_version_of_a_batch() -> None:
    committed = {version: version for version in range(1, 10)}
    repairs = {7, 8, 9}
    assert retired_versions(committed, (), 3, 1000, 0) == [1, 2, 3, 4, 5, 6]
    assert retired_versions(committed, (), 3, 1000, 0, repairs) == [1, 2, 3]


def test_versions_that_do_not_count_are_kept_up_to_as_many_as_those_that_do() -> None:
    committed = {version: version for version in range(1, 21)}
    repairs = set(range(3, 21))
    assert retired_versions(committed, (), 3, 1000, 0, repairs) == list(range(1, 15))
