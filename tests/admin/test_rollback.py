"""A rollback brings back the state of a version and Spark's offsets, or changes nothing at all."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from command_line import fails, run, run_json
from made_up_streams import made_up_stream, offsets_text, state_of

import holdfast
from holdfast import admin
from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.rewind import finish
from holdfast.admin.rollback import plan_rollback
from holdfast.admin.site import Site
from holdfast.backends.local import LocalStorage
from holdfast.checkpoint import SparkCheckpoint
from holdfast.engine.files.manifest_codec import decode, encode
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.journal import Journal
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Conflict, Corruption, IllegalState, InvalidArgument, VersionNotFound
from holdfast.reading import Root
from holdfast.testing.faults import CRASHES, Call, Crash, Fault, FaultyStorage

KAFKA = '{"trades":{"0":BATCH0,"1":7}}'


def site_of(folder: Path, root: Storage | None = None, checkpoint: Storage | None = None) -> Site:
    """The root and the checkpoint of a stream, on storages that may fail."""
    files = StoredFiles(checkpoint or LocalStorage(folder))
    storage = root or LocalStorage(folder / "holdfast")
    return Site(Root(storage), Runtime.system(), SparkCheckpoint(files, str(folder)))


def logs_of(folder: Path) -> dict[str, list[str]]:
    return {
        log: sorted(path.name for path in (folder / log).iterdir())
        for log in ("offsets", "commits")
    }


def entries(upto: int) -> dict[str, list[str]]:
    """The logs where the newest batch is one."""
    names = [str(number) for number in range(upto + 1)]
    return {"offsets": sorted([*names, *(f".{name}.crc" for name in names)]), "commits": names}


# -- what it does --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "with a blank", "50% of größe #1"])
def test_state_and_offsets_go_back_and_nothing_is_deleted(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    states = made_up_stream(folder)
    plan = admin.rollback(folder, 3, reason="a bad deploy")
    assert (plan.to, plan.version, plan.batches) == (3, 7, (3, 4, 5))
    assert state_of(folder) == states[6]
    assert logs_of(folder) == entries(5)
    result = plan.run()
    assert state_of(folder) == states[3]
    assert [state_of(folder, version) for version in range(7)] == states
    assert logs_of(folder) == entries(2)
    [undone] = (folder / "holdfast-undone").iterdir()
    assert sorted(path.name for path in (undone / "commits").iterdir()) == ["3", "4", "5"]
    assert (undone / "offsets" / "5").read_text() == offsets_text(5)
    assert result.version == 7
    assert result.detail["batches"] == [3, 4, 5]


def test_batch_numbers_continue_from_the_highest_and_the_watermark_is_that_of_the_version(
    tmp_path: Path,
) -> None:
    made_up_stream(tmp_path)
    admin.rollback(tmp_path, 2).run()
    manifest = Root(LocalStorage(tmp_path / "holdfast")).manifest(7)
    assert manifest.numbering == {"first": 0, "last": 5}
    assert manifest.watermark is not None
    assert manifest.watermark["evict_ms"] == 1000
    assert manifest.batch is not None
    assert manifest.batch["id"] == 1
    assert (manifest.lineage, manifest.delivered_through) == (1, 7)


def test_a_rollback_of_a_rollback_brings_the_undone_versions_back(tmp_path: Path) -> None:
    states = made_up_stream(tmp_path)
    admin.rollback(tmp_path, 2).run()
    admin.rollback(tmp_path, 6, lose_input=True).run()
    assert state_of(tmp_path) == states[6]
    assert holdfast.read(tmp_path).version == 8
    # Spark's entries of the batches were moved: those that it needs are written again.
    assert (tmp_path / "offsets" / "5").read_text() == offsets_text(5)
    assert (tmp_path / "offsets" / "4").read_text() == offsets_text(4)
    assert (tmp_path / "commits" / "5").exists()
    kinds = [
        line.entry.kind
        for line in Journal(
            VersionLog(LocalStorage(tmp_path / "holdfast"), Runtime.system())
        ).lines()
    ]
    assert kinds == ["rollback", "rollback"]


def test_version_0_takes_every_batch_back(tmp_path: Path) -> None:
    made_up_stream(tmp_path)
    admin.rollback(tmp_path, 0).run()
    assert state_of(tmp_path) == {}
    assert logs_of(tmp_path) == {"offsets": [], "commits": []}


def test_a_store_without_spark_goes_back(tmp_path: Path) -> None:
    with holdfast.open(tmp_path, key="k string", value="v long") as db:
        for number in range(4):
            with db.update() as update:
                update.put(("a",), (number,))
                update.put((str(number),), (number,))
    admin.rollback(tmp_path, "2").run()
    with holdfast.open(tmp_path) as db:
        assert (db.version, db.get(("a",)), db.get(("3",))) == (5, (1,), None)
        with db.update() as update:
            update.put(("new",), (1,))
    assert holdfast.read(tmp_path).num_keys == 4


def test_it_goes_back_to_tags_and_times(tmp_path: Path) -> None:
    states = made_up_stream(tmp_path)
    admin.tag(tmp_path, "good", 4).run()
    assert admin.rollback(tmp_path, "good").to == 4
    found = Root(LocalStorage(tmp_path / "holdfast"))
    moment = datetime.fromtimestamp(found.manifest(3).committed_at_ms / 1000, UTC)
    expected = max(
        version
        for version in range(7)
        if found.manifest(version).committed_at_ms <= found.manifest(3).committed_at_ms
    )
    if expected < 6:
        assert admin.rollback(tmp_path, moment).to == expected
        assert admin.rollback(tmp_path, moment.isoformat()).to == expected
    with pytest.raises(VersionNotFound, match="no version from"):
        admin.rollback(tmp_path, "2001-01-01")
    admin.rollback(tmp_path, "good").run()
    assert state_of(tmp_path) == states[4]
    assert holdfast.reading.open_root(tmp_path).tags == {"good": 4}


def test_entries_that_spark_has_purged_are_written_from_the_versions(tmp_path: Path) -> None:
    made_up_stream(tmp_path)
    for batch in range(4):
        (tmp_path / "offsets" / str(batch)).unlink()
        (tmp_path / "commits" / str(batch)).unlink()
    admin.rollback(tmp_path, 3).run()
    assert (tmp_path / "offsets" / "2").read_text() == offsets_text(2)
    assert (tmp_path / "offsets" / "1").read_text() == offsets_text(1)
    assert (tmp_path / "commits" / "2").read_text().startswith("v1\n")


def test_a_batch_of_the_same_number_with_other_input_is_not_taken_for_that_of_the_version(
    tmp_path: Path,
) -> None:
    made_up_stream(tmp_path)
    other = offsets_text(2).replace('"logOffset": 2', '"logOffset": 5')
    (tmp_path / "offsets" / "2").write_text(other)  # as after a rollback to an earlier version
    admin.rollback(tmp_path, 3).run()
    assert (tmp_path / "offsets" / "2").read_text() == offsets_text(2)
    [undone] = (tmp_path / "holdfast-undone").iterdir()
    assert (undone / "offsets" / "2").read_text() == other
    assert (tmp_path / "commits" / "2").exists()


# -- input ---------------------------------------------------------------------------------------


def test_files_that_are_gone_are_named_and_have_to_be_allowed(tmp_path: Path) -> None:
    made_up_stream(tmp_path)
    (tmp_path / "in" / "4 %.json").unlink()
    plan = admin.rollback(tmp_path, 3)
    [source] = plan.inputs
    assert (source.files, len(source.gone), source.standing) == (3, 1, "gone")
    with pytest.raises(InvalidArgument, match=r"lacks 1 of the files.*4%20%25\.json"):
        plan.run()
    assert holdfast.read(tmp_path).version == 6
    admin.rollback(tmp_path, 3, lose_input=True).run()
    assert holdfast.read(tmp_path).version == 7


def test_files_in_a_merged_log_are_found(tmp_path: Path) -> None:
    made_up_stream(tmp_path, 12)
    folder = tmp_path / "sources" / "0"
    merged = "\n".join((folder / str(n)).read_text().split("\n")[1] for n in range(10))
    (folder / "9.compact").write_text(f"v1\n{merged}")
    for number in range(10):
        (folder / str(number)).unlink()
    [source] = admin.rollback(tmp_path, 5).inputs
    assert (source.files, source.standing) == (7, "there")


def test_many_files_that_come_in_one_batch_are_warned_of(tmp_path: Path) -> None:
    made_up_stream(tmp_path, 14)
    assert dict(admin.rollback(tmp_path, 1).lines())["source 0"].endswith("larger than usual")
    assert "usual" not in dict(admin.rollback(tmp_path, 10).lines())["source 0"]


def test_input_that_nobody_could_look_for_is_never_said_to_be_there(tmp_path: Path) -> None:
    made_up_stream(tmp_path, source=KAFKA)
    plan = admin.rollback(tmp_path, 3)
    [source] = plan.inputs
    assert (source.kind, source.standing) == ("kafka", "not checked")
    assert source.amount == "30 offsets come again"
    with pytest.raises(InvalidArgument, match="unchecked-input"):
        plan.run()
    admin.rollback(tmp_path, 3, unchecked_input=True).run()
    assert holdfast.read(tmp_path).version == 7


def test_a_source_that_gives_its_rows_once_is_refused_by_name(tmp_path: Path) -> None:
    made_up_stream(tmp_path, source="BATCH")
    manifests = tmp_path / "holdfast" / "versions"
    newest = decode((manifests / "6").read_bytes(), "6")
    named = replace(newest, scope={**newest.scope, "sources": ["socket"]})
    (manifests / "6").write_bytes(encode(named))
    with pytest.raises(InvalidArgument, match=r"\(socket\) gives its rows only once"):
        admin.rollback(tmp_path, 3).run()
    again = replace(newest, scope={**newest.scope, "sources": ["rate"]})
    (manifests / "6").write_bytes(encode(again))
    assert admin.rollback(tmp_path, 3).refusal() is None


# -- what it refuses -----------------------------------------------------------------------------


def test_what_cannot_be_rolled_back_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "stream"
    made_up_stream(folder)
    before = sorted(map(str, folder.rglob("*")))
    with pytest.raises(InvalidArgument, match="is the newest one"):
        admin.rollback(folder, 6)
    with pytest.raises(VersionNotFound):
        admin.rollback(folder, 60)
    with pytest.raises(VersionNotFound):
        admin.rollback(folder, "no such tag")
    shutil.copytree(folder / "holdfast", tmp_path / "elsewhere")
    with pytest.raises(InvalidArgument, match="--checkpoint"):
        admin.rollback(tmp_path / "elsewhere", 3)
    other = tmp_path / "other"
    made_up_stream(other)
    with pytest.raises(IllegalState, match="belongs to the state"):
        admin.rollback(folder / "holdfast", 3, checkpoint=other)
    assert sorted(map(str, folder.rglob("*"))) == before
    admin.rollback(tmp_path / "elsewhere", 3, checkpoint=folder).run()
    assert holdfast.read(tmp_path / "elsewhere").version == 7


class ReadOnly(LocalStorage):
    """A checkpoint that only Spark can write to."""

    read_only = True


def test_a_checkpoint_that_only_spark_can_write_is_refused_with_what_to_move_by_hand(
    tmp_path: Path,
) -> None:
    states = made_up_stream(tmp_path)
    for log in ("offsets", "commits"):
        for path in (tmp_path / log).glob(".*.crc"):
            path.unlink()
    site = site_of(tmp_path, checkpoint=ReadOnly(tmp_path))
    with pytest.raises(InvalidArgument, match="commits/4, offsets/4, commits/5, offsets/5;"):
        plan_rollback(site, 4)
    assert holdfast.read(tmp_path).version == 6
    for batch in (4, 5):
        (tmp_path / "offsets" / str(batch)).unlink()
        (tmp_path / "commits" / str(batch)).unlink()
    plan_rollback(site, 4, lose_input=True).run()
    assert state_of(tmp_path) == states[4]


def test_a_plan_that_is_out_of_date_changes_nothing(tmp_path: Path) -> None:
    made_up_stream(tmp_path)
    first, second = admin.rollback(tmp_path, 3), admin.rollback(tmp_path, 2)
    first.run()
    with pytest.raises(Conflict, match="was at version 6 when this was planned"):
        second.run()
    assert holdfast.read(tmp_path).version == 7


def test_an_update_under_way_ends_with_a_conflict(tmp_path: Path) -> None:
    with holdfast.open(tmp_path, key="k string", value="v long") as db:
        for number in range(3):
            with db.update() as update:
                update.put(("a",), (number,))
        plan = admin.rollback(tmp_path, 1)
        update = db.update()
        update.put(("a",), (100,))
        plan.run()
        with pytest.raises(Conflict):
            update.commit()
        assert db.refresh() == 4
        assert db.get(("a",)) == (0,)
        with db.update() as update:
            assert update.get(("a",)) == (0,)


# -- damage --------------------------------------------------------------------------------------


def test_damage_at_the_top_is_gone_back_past_with_one_command(tmp_path: Path) -> None:
    states = made_up_stream(tmp_path)
    for version in (5, 6):
        (tmp_path / "holdfast" / "versions" / str(version)).write_bytes(b"HOLDFAST-MANIFEST 1 x")
    plan = admin.rollback(tmp_path, "intact")
    assert (plan.to, plan.newest, plan.version, plan.damaged) == (4, 4, 7, (5, 6))
    plan.run()
    assert state_of(tmp_path) == states[4]
    root = Root(LocalStorage(tmp_path / "holdfast"))
    # Batch ids of versions that nobody can read may have been handed out.
    assert root.manifest(7).numbering == {"first": 0, "last": 5}
    assert logs_of(tmp_path) == entries(3)


def test_a_version_without_its_files_is_refused_and_the_intact_one_is_found(tmp_path: Path) -> None:
    states = made_up_stream(tmp_path)
    for path in (tmp_path / "holdfast" / "packs").iterdir():
        if path.name.startswith(("3-", "5-")):
            path.unlink()
    with pytest.raises(Corruption, match="--to intact"):
        admin.rollback(tmp_path, 3)
    plan = admin.rollback(tmp_path, "intact")
    assert plan.to == 2
    plan.run()
    assert state_of(tmp_path) == states[2]


# -- crashes -------------------------------------------------------------------------------------


class SharedPlan:
    """Counts the calls of several storages together, and fails at one of them."""

    def __init__(self, at: int | None = None, fault: Fault = Fault.CRASH_BEFORE) -> None:
        self.at, self.fault, self.count = at, fault, 0

    def __call__(self, call: Call) -> Fault | None:
        self.count += 1
        return self.fault if self.count == self.at else None


def faulty_site(folder: Path, plan: SharedPlan) -> Site:
    root = FaultyStorage(LocalStorage(folder / "holdfast"), plan)
    return site_of(folder, root, FaultyStorage(LocalStorage(folder), plan))


def original_entries(folder: Path) -> dict[str, str]:
    """Every entry of Spark's logs that is somewhere, by log and batch."""
    found = {}
    for log in ("offsets", "commits"):
        places = [folder / log, *(folder / "holdfast-undone").glob(f"*/{log}")]
        for place in places:
            for path in place.iterdir() if place.exists() else ():
                if path.name.isdecimal():
                    found[f"{log}/{path.name}"] = path.read_text()
    return found


def test_a_crash_at_any_call_is_finished_by_the_next_start_or_the_same_command(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    states = made_up_stream(made, 4)
    before = original_entries(made)
    watched = SharedPlan()
    shutil.copytree(made, tmp_path / "watched")
    plan_rollback(faulty_site(tmp_path / "watched", watched), 2).run()
    assert watched.count > 20
    outcomes = set()
    for number in range(1, watched.count + 1):
        for fault in CRASHES:
            folder = tmp_path / f"{number} {fault.name}"
            shutil.copytree(made, folder)
            with pytest.raises(Crash):
                plan_rollback(faulty_site(folder, SharedPlan(number, fault)), 2).run()
            site = site_of(folder)
            newest = site.newest()
            outcomes.add(newest.version)
            assert state_of(folder) == states[2 if newest.version == 5 else 4]
            if number % 2:
                assert site.checkpoint is not None
                finish(site.versions, newest, site.checkpoint)
            else:
                plan_rollback(site, 2).run()
                assert state_of(folder) == states[2]
                newest = site.newest()
            went_back = newest.version > 4
            assert logs_of(folder) == entries(1 if went_back else 3), f"{fault} at {number}"
            assert original_entries(folder) == before, f"{fault} at {number}"
            shutil.rmtree(folder)
    assert outcomes == {4, 5}


def test_a_driver_that_writes_an_entry_once_more_is_gone_back_past_again(tmp_path: Path) -> None:
    made_up_stream(tmp_path)
    admin.rollback(tmp_path, 3).run()
    (tmp_path / "offsets" / "3").write_text("planned by a driver that had not noticed")
    site = site_of(tmp_path)
    assert site.checkpoint is not None
    assert finish(site.versions, site.newest(), site.checkpoint) == (3,)
    assert logs_of(tmp_path) == entries(2)
    [undone] = (tmp_path / "holdfast-undone").iterdir()
    assert "had not noticed" in (undone / "offsets" / "3-1").read_text()


# -- the command line ----------------------------------------------------------------------------


def test_the_command_line_shows_a_plan_and_carries_it_out(tmp_path: Path) -> None:
    states = made_up_stream(tmp_path)
    shown = run("rollback", tmp_path, "--to", 3, "--dry-run")
    assert "version 3 of" in shown
    assert "becomes version 7" in shown
    assert "batches 3–5 taken back" in shown
    assert "stops with Conflict" in shown
    assert "nothing was changed" in shown
    assert state_of(tmp_path) == states[6]
    assert "Add --yes" in fails("rollback", tmp_path, "--to", 3, code=2)
    told = run_json("rollback", tmp_path, "--to", 3, "--dry-run")
    assert told["batches"] == [3, 4, 5]
    assert json.dumps(told)
    run("rollback", tmp_path, "--to", 3, "--yes", "--reason", "oops")
    assert state_of(tmp_path) == states[3]
    assert "oops" in run("history", tmp_path, "--operations")
