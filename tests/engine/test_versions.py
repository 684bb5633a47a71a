"""Creating a version when replies are lost, others are faster or the writer slept."""

from __future__ import annotations

from dataclasses import replace

import pytest
from interrupting import Interrupting, no_answer
from made_up_manifests import attempt, manifest, ref

from holdfast.engine.files.filenames import manifest_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.files.manifest_codec import encode
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import RecentVersions, VersionLog
from holdfast.errors import Conflict, Corruption, InvalidArgument, Unavailable, VersionNotFound

GRACE = 1_000


class World:
    """A root, a clock and a way to have other writers commit."""

    def __init__(self, *versions: int) -> None:
        self.storage = Interrupting()
        self.now = 50_000
        numbers = iter(range(1, 1_000))
        runtime = Runtime(lambda: self.now, lambda: self.now, lambda: attempt(next(numbers)))
        self.log = VersionLog(self.storage, runtime)
        self.commit(*versions)

    def commit(self, *versions: int) -> None:
        for version in versions:
            self.storage.write(manifest_path(version), encode(manifest(version)))

    def remove(self, *versions: int) -> None:
        for version in versions:
            self.storage.delete(manifest_path(version))

    def publish(self, made: Manifest, based_at_ms: int | None = 50_000) -> Manifest:
        return self.log.publish(made, GRACE, based_at_ms)

    def sleep(self) -> None:
        self.now += 10 * GRACE


def mine(version: int) -> Manifest:
    """A version by the writer under test, on top of what `World.commit` makes."""
    return replace(manifest(version, [[ref(version)]]), commit_id="mine")


def built_on_mine(version: int) -> bytes:
    return encode(replace(manifest(version), parent_commit_id="mine"))


@pytest.fixture
def world() -> World:
    return World(1, 2)


def test_a_version_is_created_and_returned(world: World) -> None:
    assert world.publish(mine(3)) == mine(3)
    assert world.log.load(3) == mine(3)


def test_a_version_of_another_writer_is_a_conflict_and_stays(world: World) -> None:
    with pytest.raises(Conflict, match="Version 2 of memory:// was committed by another writer"):
        world.publish(mine(2))
    assert world.log.load(2) == manifest(2)


def test_a_lost_reply_is_no_failure(world: World) -> None:
    world.storage.after("create", "versions/3", no_answer)
    assert world.publish(mine(3)) == mine(3)


def test_a_create_that_failed_is_tried_again(world: World) -> None:
    world.storage.before("create", "versions/3", no_answer)
    assert world.publish(mine(3)) == mine(3)
    assert world.log.newest() == 3


def test_a_lost_race_behind_a_lost_reply_is_a_conflict(world: World) -> None:
    def another_writer_wins() -> None:
        world.commit(3)
        no_answer()

    world.storage.before("create", "versions/3", another_writer_wins)
    with pytest.raises(Conflict):
        world.publish(mine(3))
    assert world.log.load(3) == manifest(3)


def test_a_second_call_after_no_answer_returns_what_the_first_one_stored(world: World) -> None:
    first = mine(3)
    second = replace(first, committed_at_ms=99, operators=manifest(3).operators)
    world.storage.after("create", "versions/3", no_answer)
    world.storage.before("read", "versions/3", no_answer)
    with pytest.raises(Unavailable):
        world.publish(first)
    assert world.publish(second) == first
    assert world.log.load(3) == first


def test_a_storage_that_never_answers_is_unavailable(world: World) -> None:
    def never() -> None:
        world.storage.before("create", "versions/3", never)
        no_answer()

    world.storage.before("create", "versions/3", never)
    with pytest.raises(Unavailable, match="no answer"):
        world.publish(mine(3))
    assert world.log.newest() == 2


def test_a_quick_commit_lists_nothing(world: World) -> None:
    world.storage.before("list", "versions", no_answer)
    assert world.publish(mine(3)) == mine(3)


def test_a_writer_that_slept_through_nothing_has_committed(world: World) -> None:
    world.sleep()
    assert world.publish(mine(3)) == mine(3)


def test_a_version_re_created_after_a_sleep_is_taken_back(world: World) -> None:
    world.commit(3, 4, 5)
    world.sleep()
    world.remove(1, 2, 3)
    with pytest.raises(Conflict):
        world.publish(mine(3))
    assert world.log.versions() == [4, 5]


def test_where_the_next_version_is_gone_a_late_one_is_left_to_retention(world: World) -> None:
    world.commit(3, 4, 5, 6)
    world.sleep()
    world.remove(3, 4)
    with pytest.raises(Conflict):
        world.publish(mine(3))
    assert world.log.load(3) == mine(3)


def test_a_version_others_built_on_while_its_writer_slept_is_committed(world: World) -> None:
    def sleep_while_another_writer_goes_on() -> None:
        world.storage.write("versions/4", built_on_mine(4))
        world.commit(5)
        world.sleep()

    world.storage.after("create", "versions/3", sleep_while_another_writer_goes_on)
    assert world.publish(mine(3)) == mine(3)
    assert world.log.versions() == [1, 2, 3, 4, 5]


def test_a_base_that_was_merely_opened_is_checked_before_and_after() -> None:
    world = World(1, 8, 9)
    with pytest.raises(Conflict):
        world.publish(mine(2), based_at_ms=None)
    assert world.log.versions() == [1, 8, 9], "nothing is created"
    with pytest.raises(Conflict):
        world.publish(mine(9), based_at_ms=None)
    assert world.publish(mine(10), based_at_ms=None) == mine(10)


def test_a_manifest_under_another_name_is_damage(world: World) -> None:
    world.storage.write("versions/7", encode(manifest(2)))
    with pytest.raises(Corruption, match="is that of version 2: a file was moved or copied"):
        world.log.load(7)


def test_a_version_that_is_not_there_says_where_to_look(world: World) -> None:
    with pytest.raises(VersionNotFound, match=r"Version 7 does not exist in memory://.*history"):
        world.log.load(7)


def test_the_newest_intact_manifest_is_found_below_damaged_ones(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.storage.write("versions/3", b"HOLDFAST-MANIFEST 1 zstd")
    found = world.log.newest_intact()
    assert found is not None
    assert found.version == 2
    assert "versions/3 is damaged" in caplog.text


def test_a_root_of_damaged_manifests_is_not_taken_for_an_empty_one() -> None:
    world = World()
    assert world.log.newest_intact() is None
    world.storage.write("versions/3", b"damaged")
    with pytest.raises(Corruption):
        world.log.newest_intact()


def test_a_tag_names_one_version_for_good(world: World) -> None:
    world.log.tag("before", 1)
    world.log.tag("before", 1)
    with pytest.raises(InvalidArgument, match="'before' already names version 1"):
        world.log.tag("before", 2)
    with pytest.raises(VersionNotFound):
        world.log.tag("other", 7)
    assert world.log.tags() == {"before": 1}
    world.log.untag("before")
    with pytest.raises(InvalidArgument, match="There is no tag 'before'"):
        world.log.untag("before")


@pytest.mark.parametrize("form", [b"1x", b"x1", b"", b"\xff", b"-1"])
def test_a_tag_whose_format_is_no_number_is_damaged(world: World, form: bytes) -> None:
    world.log.tag("before", 1)
    magic, _, rest = bytes(world.storage.read("tags/before")).split(b" ", 2)
    world.storage.delete("tags/before")
    world.storage.write("tags/before", b" ".join([magic, form, rest]))
    with pytest.raises(Corruption, match="tags/before is damaged"):
        world.log.read_tag("before")


def test_what_a_sleeping_writer_left_cannot_be_tagged(world: World) -> None:
    world.commit(3, 4, 5, 6)
    world.sleep()
    world.remove(3, 4)
    with pytest.raises(Conflict):
        world.publish(mine(3))
    with pytest.raises(VersionNotFound, match="was not tagged"):
        world.log.tag("wrong", 3)
    assert world.log.tags() == {}


def test_a_tagged_version_whose_successor_is_gone_takes_a_second_tag(world: World) -> None:
    world.log.tag("first", 1)
    world.commit(3, 4)
    world.remove(2)
    world.log.tag("second", 1)
    assert world.log.tags() == {"first": 1, "second": 1}


def test_a_tagged_version_whose_successor_is_gone_takes_the_same_tag_again(world: World) -> None:
    world.log.tag("first", 1)
    world.commit(3, 4)
    world.remove(2)
    world.log.tag("first", 1)
    assert world.log.tags() == {"first": 1}


def test_recent_versions_read_a_manifest_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(1, 2, 3)
    reads: list[str] = []
    plain = world.storage.read
    monkeypatch.setattr(world.storage, "read", lambda path: reads.append(path) or plain(path))
    recent = RecentVersions(world.storage, Runtime.system())
    assert recent.load(1) is recent.load(1)
    assert [recent.load(version).version for version in (2, 1, 3, 3, 1)] == [2, 1, 3, 3, 1]
    assert reads == [manifest_path(version) for version in (1, 2, 3, 1)], "the two read last stay"
    with pytest.raises(VersionNotFound):
        recent.load(4)
