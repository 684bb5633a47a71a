"""Finished files get their names once, and keep them when the power fails."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import Unavailable
from holdfast.spark.interop import local_names
from holdfast.spark.interop.local_names import link_if_absent, sync_files


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that durability depends on, in order, with the name they are about."""
    seen: list[str] = []

    def noting(name: str) -> Any:
        real = getattr(os, name)

        def call(*given: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{given[0]}") if name == "fsync" else given[-1]
            seen.append(f"{name} {os.path.basename(path)}")
            return real(*given)

        return call

    for name in ("fsync", "link", "unlink"):
        monkeypatch.setattr(local_names.os, name, noting(name))
    return seen


def test_a_file_is_durable_before_its_name_and_its_name_before_it_leaves_the_old_one(
    tmp_path: Path, calls: list[str]
) -> None:
    source, target = tmp_path / "aside" / "part", tmp_path / "out" / "part-0"
    for folder in (source.parent, target.parent):
        folder.mkdir()
    source.write_text("rows")
    source.with_name(".part.crc").write_text("sum")
    assert link_if_absent(str(source), str(target)) is True
    assert calls == ["fsync part", "link part-0", "fsync out", "unlink part", "unlink .part.crc"]
    assert (target.read_text(), list(source.parent.iterdir())) == ("rows", [])


def test_files_written_aside_are_durable_with_the_folders_between(
    tmp_path: Path, calls: list[str]
) -> None:
    for name in ("part-0", "k=1/part-1", "k=2/j=3/part-2"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("rows")
    sync_files(str(tmp_path), ["part-0", "k=1/part-1", "k=2/j=3/part-2"])
    assert calls[:3] == ["fsync part-0", "fsync part-1", "fsync part-2"]
    assert sorted(calls[3:]) == sorted(
        [f"fsync {tmp_path.name}", "fsync k=1", "fsync k=2", "fsync j=3"]
    )


def test_a_name_that_is_taken_is_durable_when_that_is_said(
    tmp_path: Path, calls: list[str]
) -> None:
    source, target = tmp_path / "part", tmp_path / "part-0"
    source.write_text("ours")
    target.write_text("theirs")
    assert link_if_absent(str(source), str(target)) is False
    assert calls == ["fsync part", "link part-0", f"fsync {tmp_path.name}"]
    assert (source.read_text(), target.read_text()) == ("ours", "theirs")
    assert link_if_absent(str(tmp_path / "nothing"), str(tmp_path / "new")) is False


@pytest.mark.parametrize(
    ("failure", "expected"), [(errno.EINVAL, True), (errno.ENOTSUP, True), (errno.EIO, None)]
)
def test_a_disk_that_cannot_sync_is_used_and_one_that_fails_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: int, expected: bool | None
) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(failure, os.strerror(failure))

    source, target = tmp_path / "part", tmp_path / "part-0"
    source.write_text("rows")
    monkeypatch.setattr(local_names.os, "fsync", fail)
    if expected is not None:
        assert link_if_absent(str(source), str(target)) is expected
        return
    with pytest.raises(Unavailable, match="Could not move a finished file"):
        link_if_absent(str(source), str(target))
    assert not target.exists()
    with pytest.raises(Unavailable, match="to the disk for good"):
        sync_files(str(tmp_path), ["part"])
