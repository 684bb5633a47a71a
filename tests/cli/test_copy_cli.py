"""holdfast copy: what it says, what it asks, and that it writes nothing unasked."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sample_roots
from copies import blobs
from typer.testing import CliRunner

from holdfast.admin import plan_copy
from holdfast.backends.local import LocalStorage
from holdfast.cli import app
from holdfast.cli.texts import size_text
from holdfast.testing.faults import Crash, FaultyStorage, crash_at


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return sample_roots.shop(tmp_path / "shop")


def invoke(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, ["copy", *map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == code, f"{done.stdout}\n{done.stderr}\n{done.exception!r}"
    return done


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def test_a_dry_run_says_what_would_be_copied_and_writes_nothing(shop: Path, tmp_path: Path) -> None:
    size = size_text(sum(blob.size for blob in LocalStorage(shop).list("")))
    assert lines(invoke(shop, tmp_path / "new", "--dry-run").stdout) == [
        f"from {shop}",
        f"to {tmp_path / 'new'}",
        "versions 0–4",
        "tags two-users = 2",
        f"to copy 10 files, {size}",
        "there –",
    ]
    plan = json.loads(invoke(shop, tmp_path / "new", "--dry-run", "--json").stdout)
    assert (plan["versions"], plan["tags"]) == ([0, 1, 2, 3, 4], {"two-users": 2})
    assert (plan["files"], plan["present_files"], plan["is_done"]) == (10, 0, False)
    assert not (tmp_path / "new").exists()


def test_a_copy_says_what_it_did_and_that_it_was_done_before(shop: Path, tmp_path: Path) -> None:
    done = invoke(shop, tmp_path / "new", "--yes")
    size = size_text(sum(blob.size for blob in LocalStorage(shop).list("")))
    assert lines(done.stdout) == [f"versions 0–4 copied and checked: 10 files written, {size}"]
    assert done.stderr == "", "no progress where there is no terminal"
    assert blobs(LocalStorage(tmp_path / "new")) == blobs(LocalStorage(shop))
    assert lines(invoke(shop, tmp_path / "new").stdout) == ["all of it was there already"]
    assert "nothing to do" in invoke(shop, tmp_path / "new", "--dry-run").stdout


def test_json_tells_versions_files_and_bytes(shop: Path, tmp_path: Path) -> None:
    done = invoke(shop, tmp_path / "new", "--versions", "1..2,newest", "-y", "--json")
    assert json.loads(done.stdout) == {
        "source": str(shop),
        "target": str(tmp_path / "new"),
        "versions": [1, 2, 4],
        "vanished": [],
        "tags": {"two-users": 2},
        "written_files": 8,
        "written_bytes": sum(blob.size for blob in LocalStorage(tmp_path / "new").list("")),
        "kept_files": 0,
        "kept_bytes": 0,
    }


def test_versions_may_be_given_several_times(shop: Path, tmp_path: Path) -> None:
    done = invoke(shop, tmp_path / "new", "--versions", "two-users", "--versions", "0", "--yes")
    assert "versions 0, 2 copied" in done.stdout
    done = invoke(shop, tmp_path / "other", "--versions", "9", "--yes", code=3)
    assert "has no version '9'" in done.stderr


def test_nothing_is_written_where_nobody_can_be_asked(shop: Path, tmp_path: Path) -> None:
    done = invoke(shop, tmp_path / "new", code=2)
    assert "Add --yes to allow it, or --dry-run" in done.stderr
    done = invoke(shop, tmp_path / "new", "--json", code=2)
    assert json.loads(done.stderr)["error"]["condition"] == "STATE_STORE_INVALID_ARGUMENT"
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", 0), (b"n\n", 130)])
def test_on_a_terminal_it_asks_and_shows_how_far_it_is(
    shop: Path, tmp_path: Path, answer: bytes, code: int
) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", "from holdfast.cli import main; main()"]
    command += ["copy", str(shop), str(tmp_path / "new")]
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as child:
        os.close(theirs)
        os.write(ours, answer)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:
            pass  # Linux ends a terminal that way once the child has gone.
        finally:
            os.close(ours)
        assert child.wait() == code
    assert b"to copy" in shown
    assert b"Copy? [y/N]" in shown
    assert (b"100%" in shown) == (code == 0)
    assert (tmp_path / "new").exists() == (code == 0)


def test_a_checkpoint_means_the_state_in_it(tmp_path: Path) -> None:
    sample_roots.query(tmp_path / "cp" / "holdfast")
    invoke(tmp_path / "cp", tmp_path / "new", "--yes")
    assert (tmp_path / "new" / "versions" / "2").exists()
    done = invoke(tmp_path / "cp", tmp_path / "cp" / "holdfast", "--yes", code=2)
    assert "is the root to copy from" in done.stderr


def test_several_roots_and_a_target_in_memory_are_refused(shop: Path, tmp_path: Path) -> None:
    sample_roots.providers(tmp_path / "alone")
    done = invoke(tmp_path / "alone", tmp_path / "new", "--yes", code=2)
    assert "name one of the folders" in " ".join(done.stderr.split())
    assert "end with it" in invoke(shop, "memory://new", "--yes", code=2).stderr


def test_an_unfinished_copy_is_refused_by_others_and_finished_by_a_second_run(
    shop: Path, tmp_path: Path
) -> None:
    faulty = FaultyStorage(LocalStorage(tmp_path / "new"), crash_at(20))
    with pytest.raises(Crash):
        plan_copy(LocalStorage(shop), faulty, threads=1).run()
    faulty.bury()
    for command in ("ls", "history", "verify"):
        done = CliRunner().invoke(app, [command, str(tmp_path / "new")])
        assert done.exit_code == 4
        assert "STATE_STORE_UNFINISHED_COPY" in done.stderr
    shown = lines(invoke(shop, tmp_path / "new", "--dry-run").stdout)
    assert shown[1] == f"to {tmp_path / 'new'}, an unfinished copy"
    assert shown[-1].endswith("to be checked")
    assert " there before, " in invoke(shop, tmp_path / "new", "--yes").stdout


def test_damage_is_named_and_ends_with_its_code(shop: Path, tmp_path: Path) -> None:
    pack = sorted((shop / "packs").iterdir())[0]
    sample_roots.flip_byte(pack)
    done = invoke(shop, tmp_path / "new", "--yes", code=4)
    assert pack.name in done.stderr
    assert "choose among them by --versions" in done.stderr
