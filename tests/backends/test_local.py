"""Files on a local disk: names, modes, durability, and what happens when the disk says no."""

from __future__ import annotations

import errno
import gc
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast
from holdfast.backends import local
from holdfast.backends.local import TEMPORARY_PREFIX, LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import Storage, TooLarge
from holdfast.errors import Unavailable
from holdfast.testing import StorageConformance


class TestLocalStorage(StorageConformance):
    adopts = True

    @pytest.fixture
    def storage(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "root")

    @pytest.fixture
    def neighbour(self, tmp_path: Path) -> Storage:
        return LocalStorage(tmp_path / "another")


@pytest.fixture
def storage(tmp_path: Path) -> LocalStorage:
    return LocalStorage(tmp_path / "root")


def files_under(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.rglob("*") if path.is_file())


class Calls:
    """The order of the calls durability depends on, by file name."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        for name in ("fsync", "rename", "link", "mkdir"):
            monkeypatch.setattr(local.os, name, self._noting(name, getattr(os, name)))

    def _noting(self, name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{args[0]}") if name == "fsync" else args[-1]
            path = args[0] if name == "mkdir" else path
            base = os.path.basename(path)
            self.seen.append(f"{name} {'tmp' if base.startswith(TEMPORARY_PREFIX) else base}")
            return real(*args)

        return call


def test_blob_is_durable_before_its_name_and_its_name_before_close_returns(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write("d/first", b"1")
    calls = Calls(monkeypatch)
    storage.write("d/blob", b"1")
    assert calls.seen == ["fsync tmp", "rename blob", "fsync d"]


def test_created_file_is_durable_before_its_name_and_its_name_before_return(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write("versions/1", b"1")
    calls = Calls(monkeypatch)
    assert storage.create_if_absent("versions/2", b"1")
    assert calls.seen == ["fsync tmp", "link 2", "fsync versions"]


def test_new_directories_are_durable_before_what_lies_in_them(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = Calls(monkeypatch)
    storage.write("0/1/blob", b"1")
    assert calls.seen == [
        "mkdir root", f"fsync {tmp_path.name}", "mkdir 0", "fsync root", "mkdir 1", "fsync 0",
        "fsync tmp", "rename blob", "fsync 1",
    ]  # fmt: skip


def test_directories_are_0750_and_files_0640(storage: LocalStorage, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        storage.write("0/0/blob", b"1")
        storage.create_if_absent("versions/1", b"1")
    finally:
        os.umask(before)
    paths = [tmp_path / "root", *(tmp_path / "root").rglob("*")]
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths}
    assert modes == {"root": 0o750, "0": 0o750, "blob": 0o640, "versions": 0o750, "1": 0o640}


def test_temporary_files_are_not_listed_and_gone_after_a_sweep(
    storage: LocalStorage, tmp_path: Path
) -> None:
    storage.write("d/blob", b"1")
    left = tmp_path / "root" / "d" / f"{TEMPORARY_PREFIX}crashed"
    left.write_bytes(b"half")
    assert [blob.path for blob in storage.list("")] == ["d/blob"]
    assert storage.sweep(60) == 0
    old = time.time() - 120
    os.utime(left, (old, old))
    assert storage.sweep(60) == 1
    assert files_under(tmp_path) == ["blob"]


def test_lost_race_leaves_no_temporary_file(storage: LocalStorage, tmp_path: Path) -> None:
    storage.create_if_absent("versions/1", b"1")
    storage.create_if_absent("versions/1", b"2")
    assert files_under(tmp_path) == ["1"]


def fail(monkeypatch: pytest.MonkeyPatch, name: str, number: int, after: int = 0) -> None:
    """Let `os.name` fail with `number` once it was called `after` times."""
    real, left = getattr(os, name), [after]

    def call(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(number, os.strerror(number))
        return real(*args)

    monkeypatch.setattr(local.os, name, call)


@pytest.mark.parametrize("call", ["write", "fsync", "rename"])
def test_full_disk_is_unavailable_and_leaves_nothing(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    storage.write("d/blob", b"1")
    with monkeypatch.context() as patched:
        fail(patched, call, errno.ENOSPC)
        with pytest.raises(Unavailable, match="No space left on device") as caught:
            storage.write("d/other", b"1" * 100)
    assert isinstance(caught.value.__cause__, OSError)
    gc.collect()  # a file left open would warn here
    assert files_under(tmp_path) == ["blob"]


@pytest.mark.parametrize("call", ["write", "fsync", "link"])
def test_full_disk_at_create_is_unavailable_and_leaves_nothing(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, call: str
) -> None:
    storage.write("versions/1", b"1")
    with monkeypatch.context() as patched:
        fail(patched, call, errno.ENOSPC)
        with pytest.raises(Unavailable, match="No space left on device"):
            storage.create_if_absent("versions/2", b"1")
    assert files_under(tmp_path) == ["1"]


def test_create_whose_last_sync_fails_can_be_read_back(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage.write("versions/1", b"1")
    with monkeypatch.context() as patched:
        fail(patched, "fsync", errno.EIO, after=1)
        with pytest.raises(Unavailable, match="Input/output error"):
            storage.create_if_absent("versions/2", b"mine")
    assert bytes(storage.read("versions/2")) == b"mine"
    assert storage.create_if_absent("versions/2", b"again") is False


def test_short_writes_are_continued(storage: LocalStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(local.os, "write", lambda fd, data: real(fd, data[:3]))
    storage.write("a", b"0123456789")
    storage.create_if_absent("b", b"0123456789")
    assert bytes(storage.read("a")) == bytes(storage.read("b")) == b"0123456789"


def test_message_names_the_blob_and_not_its_content(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail(monkeypatch, "write", errno.EACCES)
    with pytest.raises(Unavailable, match=r"Could not write 'd/blob': Permission denied") as caught:
        storage.write("d/blob", b"secret")
    assert "secret" not in str(caught.value)
    assert caught.value.condition == "STATE_STORE_UNAVAILABLE"


def test_file_in_the_place_of_the_root_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Unavailable):
        LocalStorage(tmp_path / "file" / "root").write("a", b"1")


def test_mapped_blobs_take_no_file_descriptor(storage: LocalStorage) -> None:
    storage.write("a", b"x" * 100_000)
    before = len(os.listdir("/proc/self/fd"))
    buffers = [storage.read("a") for _ in range(50)]
    for number in range(50):
        storage.write(f"b/{number}", b"1")
        storage.open_writer(f"c/{number}").discard()
    assert len(os.listdir("/proc/self/fd")) == before
    assert all(buffer.size == 100_000 for buffer in buffers)


def test_blob_is_read_where_a_map_finds_no_room(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: str) -> Any:
        raise OSError(errno.ENOMEM, "Memory mapping file failed")

    storage.write("a", b"bytes")
    monkeypatch.setattr(pa, "memory_map", no_room)
    assert bytes(storage.read("a")) == b"bytes"


def test_large_blob_that_finds_no_room_is_read_in_ranges(
    storage: LocalStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(path: str) -> Any:
        raise OSError(errno.ENOMEM, "Memory mapping file failed")

    storage.write("a", b"bytes" * (1 << 20))
    monkeypatch.setattr(pa, "memory_map", no_room)
    with pytest.raises(TooLarge):
        storage.read("a")
    assert bytes(storage.read_range("a", 5 << 19, (5 << 19) + 5)) == b"bytes"


_UNDER_A_LIMIT = """
import resource, sys
import pyarrow as pa
import holdfast

reader = holdfast.open(sys.argv[1]).at(1)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (160 << 20), resource.RLIM_INFINITY))
for number in range(0, 25_000, 2_507):
    assert reader.get((number,)) == (f"{number:08d}" * 2048,)
found = reader.get_many(pa.table({"k": range(-50, 25_000, 250)}))
assert found.column("_found").to_pylist() == [False] + [True] * 100
assert sum(len(pair.value[0]) for pair in reader.iterator()) == (25_000 << 14)
print(reader.metrics.memory_used_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address-space limits are Linux's")
def test_state_that_the_address_space_has_no_room_for_is_read(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "root", key="k long", value="v string") as db:
        with db.update() as store:
            for start in range(0, 25_000, 5_000):
                numbers = range(start, start + 5_000)
                texts = [f"{number:08d}" * 2048 for number in numbers]
                store.put_many(pa.table({"k": numbers, "v": texts}))
        (delta,) = (tmp_path / "root" / "0" / "0").glob("*.delta")
        assert delta.stat().st_size > 390 << 20
    script = [sys.executable, "-c", _UNDER_A_LIMIT, str(tmp_path / "root")]
    # One arena instead of 64 MiB of address space for each thread: the limit is about our own use.
    quiet = {**os.environ, "MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(script, capture_output=True, text=True, timeout=120, env=quiet)
    assert (done.stderr, done.returncode) == ("", 0)
    assert 0 < int(done.stdout) < 100 << 20


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_local_root_opens_by_path_and_by_uri(tmp_path: Path, form: str) -> None:
    LocalStorage(tmp_path / "with space").write("a", b"1")
    path = str(tmp_path / "with space")
    location = form.format(path if form == "{}" else path.replace(" ", "%20"))
    assert bytes(open_storage(location).read("a")) == b"1"


def test_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert open_storage("~/state").location == str(tmp_path / "state")


def test_links_out_of_the_root_are_not_followed(storage: LocalStorage, tmp_path: Path) -> None:
    storage.write("a", b"1")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b").write_bytes(b"2")
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    assert [blob.path for blob in storage.list("")] == ["a"]


def test_adopted_file_is_a_durable_link(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LocalStorage(tmp_path / "other")
    other.write("0/blob", b"1")
    storage.write("0/neighbour", b"1")
    calls = Calls(monkeypatch)
    assert storage.adopt(other, "0/blob")
    assert calls.seen == ["link blob", "fsync 0"]
    assert (tmp_path / "root/0/blob").samefile(tmp_path / "other/0/blob")
    assert storage.adopt(other, "0/blob"), "after a crash it is made durable again"
    assert calls.seen[2:] == ["link blob", "fsync 0"]


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP])
def test_file_that_cannot_be_linked_is_left_to_the_caller(
    storage: LocalStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refused(there: str, here: str) -> None:
        raise OSError(number, os.strerror(number))

    other = LocalStorage(tmp_path / "other")
    other.write("blob", b"1")
    monkeypatch.setattr(local.os, "link", refused)
    assert not storage.adopt(other, "blob")
    assert storage.list("") == []


def test_neither_another_file_nor_a_symbolic_link_is_adopted(
    storage: LocalStorage, tmp_path: Path
) -> None:
    other = LocalStorage(tmp_path / "other")
    other.write("blob", b"theirs")
    storage.write("blob", b"ours")
    assert not storage.adopt(other, "blob")
    assert bytes(storage.read("blob")) == b"ours"
    (tmp_path / "other/link").symlink_to("blob")
    assert not storage.adopt(other, "link")
    assert not storage.adopt(MemoryStorage(), "blob")
    assert [blob.path for blob in storage.list("")] == ["blob"]
