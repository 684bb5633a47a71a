"""Tags are set and removed by plans, beside a writer, and the journal says by whom and why."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import fails, run, run_json

import holdfast
from holdfast import admin
from holdfast.engine.versions.journal import Journal
from holdfast.errors import InvalidArgument, VersionNotFound


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "a store"
    with holdfast.open(root, key="k string", value="v long") as db:
        for number in range(3):
            with db.update() as update:
                update.put(("a",), (number,))
    return root


def test_a_plan_changes_nothing_and_its_run_tags_the_version(store: Path) -> None:
    plan = admin.tag(store, "before-release", 2, reason="the deploy of Tuesday")
    assert (plan.kind, plan.name, plan.version) == ("tag", "before-release", 2)
    assert holdfast.reading.open_root(store).tags == {}
    assert plan.run().version is None
    root = holdfast.reading.open_root(store)
    assert root.tags == {"before-release": 2}
    [line] = Journal(root.log).lines()
    assert line.is_done
    assert line.entry.kind == "tag"
    assert line.entry.reason == "the deploy of Tuesday"
    assert line.entry.detail == {"name": "before-release", "tagged": 2}


def test_untag_removes_a_tag_and_says_so_in_the_journal(store: Path) -> None:
    admin.tag(store, "mine").run()
    admin.untag(store, "mine").run()
    root = holdfast.reading.open_root(store)
    assert root.tags == {}
    assert [line.entry.kind for line in Journal(root.log).lines()] == ["untag", "tag"]


def test_what_cannot_be_tagged_is_refused_before_anything_is_written(store: Path) -> None:
    admin.tag(store, "mine", 1).run()
    with pytest.raises(InvalidArgument, match="already names version 1"):
        admin.tag(store, "mine", 2)
    with pytest.raises(InvalidArgument, match="cannot be used"):
        admin.tag(store, "a/b")
    with pytest.raises(VersionNotFound):
        admin.tag(store, "other", 17)
    with pytest.raises(InvalidArgument, match="There is no tag 'other'"):
        admin.untag(store, "other")


def test_the_command_line_tags_and_lists_the_journal(store: Path) -> None:
    assert "mine names version 2" in run("tag", store, "mine", "--at", "2", "--dry-run")
    assert holdfast.reading.open_root(store).tags == {}
    assert "Add --yes" in fails("tag", store, "mine", code=2)
    run("tag", store, "mine", "--at", "2", "--yes", "--reason", "why not")
    assert holdfast.reading.open_root(store).tags == {"mine": 2}
    assert "why not" in run("history", store, "--operations")
    assert run_json("untag", store, "mine", "--yes")["kind"] == "untag"
    assert [line["kind"] for line in run_json("history", store, "--operations")["operations"]] == [
        "untag", "tag",
    ]  # fmt: skip
