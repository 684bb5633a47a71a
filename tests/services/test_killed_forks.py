"""A fork killed at any moment, while its stream goes on, is finished by the same command."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run
from copies import assert_unfinished
from fork_to_kill import PHASES
from made_up_streams import made_up_stream, offsets_text, state_of

import holdfast
from holdfast import reading
from holdfast.backends.local import LocalStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import COPYING
from holdfast.engine.versions.journal import Journal

SCRIPT = Path(__file__).parents[1] / "support" / "services" / "fork_to_kill.py"
CALLS = {"journal": 8, "mark": 2, "tag": 2, "files": 16, "sources": 12, "offsets": 4, "query": 2,
         "manifest": 4, "end": 4}  # fmt: skip
"""How many moments of each phase there are at the least."""
AT_ONCE = StateStoreConf(min_versions_to_retain=2, grace_period_ms=0)


def kill_in(phase: str, number: int, source: Path, new: Path, version: int) -> str | None:
    """Run the command and kill it at a moment; the moment, None where it went through."""
    command = [sys.executable, str(SCRIPT), phase, str(number), str(source), str(new), str(version)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None
    with process.stdout as lines:
        said = next((line.strip() for line in lines if line.startswith("phase ")), None)
        if said is not None:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return said


def go_on(source: Path, number: int) -> None:
    """The stream commits, and its retention removes what it may."""
    with holdfast.open(source / "holdfast", conf=AT_ONCE) as db:
        for count in range(3):
            with db.update() as update:
                update.put((f"later {number}",), (count,))
            db.maintain()


def kill_and_finish(folder: Path, phase: str, rnd: random.Random) -> None:
    source, new = folder / "cp", folder / "fork of it"
    version = rnd.randrange(4, 9)
    expected = made_up_stream(source, batches=10)[version]
    said = kill_in(phase, rnd.randrange(CALLS[phase]), source, new, version)
    assert said is not None, f"there is no such moment in {phase}"
    print(f"killed in {said}")
    tags = reading.open_root(source).tags
    go_on(source, 1)
    state = LocalStorage(new / "holdfast")
    if state.size(COPYING) is not None:
        assert_unfinished(state)
    if tags:
        assert version in reading.open_root(source).versions
    if not can_be_finished(source, state, version):
        # Killed before it had kept the version; by then the source was told of nothing but an
        # attempt, and the place has a mark at the most.
        assert {blob.path for blob in state.list("")} <= {COPYING}
        return
    again = rnd.choice(sorted(PHASES))
    print(f"killed again in {kill_in(again, rnd.randrange(4), source, new, version)}")
    go_on(source, 2)
    if state.size(COPYING) is not None or state.list("") == []:
        run("fork", source, new, "--at", version, "--yes")
    check(source, new, version, expected)


def can_be_finished(source: Path, state: LocalStorage, version: int) -> bool:
    """Whether the version is still there, or the fork of it is made but for its mark."""
    is_made = state.size(f"versions/{version + 1}") is not None
    return is_made or version in reading.open_root(source).versions


def check(source: Path, new: Path, version: int, expected: dict[str, int]) -> None:
    assert state_of(new) == expected
    root = reading.open_root(new)
    assert root.versions == (version + 1,)
    assert reading.verify(root).intact
    assert reading.verify(reading.open_root(source)).intact
    assert (new / "offsets" / str(version - 1)).read_text() == offsets_text(version - 1)
    assert (new / "commits" / str(version - 1)).exists()
    logged = {path.name for path in (new / "sources" / "0").iterdir()}
    assert {name for name in logged if not name.startswith(".")} == set(map(str, range(10)))
    assert reading.open_root(source).tags == {}
    done = [line for line in Journal(reading.open_root(source).log).lines() if line.is_done]
    assert [line.entry.kind for line in done] == ["fork"]


@pytest.mark.services
@pytest.mark.parametrize("number", range(4))
def test_a_killed_fork_is_finished_by_the_same_command(tmp_path: Path, number: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    rnd = random.Random(seed)
    # Each round has its own share of the phases, so that four of them fall in four places.
    kill_and_finish(tmp_path, rnd.choice(sorted(PHASES)[number::4]), rnd)


@pytest.mark.soak
@pytest.mark.parametrize("number", range(100))
def test_a_hundred_killed_forks_are_finished(tmp_path: Path, number: int) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    kill_and_finish(tmp_path, sorted(PHASES)[number % len(PHASES)], random.Random(seed))
