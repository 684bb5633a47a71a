"""Roots that fsspec reaches: readable, and never written to."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from fsspec.implementations.local import LocalFileSystem

import holdfast
from holdfast.backends.fsspec import FsspecStorage
from holdfast.backends.local import LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.engine.storage import BlobNotFound
from holdfast.errors import IllegalState, InvalidArgument, Unavailable


class FailingFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no annotations
    """A filesystem that does not answer."""

    protocol = "failing"

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        raise TimeoutError("no answer")

    cat_file = size = find = info = _fail


fsspec.register_implementation("failing", FailingFileSystem, clobber=True)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A root with a store of three versions."""
    with holdfast.open(tmp_path / "root", key="user string", value="total long") as db:
        for total in (1, 2, 3):
            with db.update() as store:
                store.put(("Sankar",), (total,))
        db.tag("first", 1)
    return tmp_path / "root"


def as_cached(root: Path) -> str:
    return f"simplecache::file://{root}"


def as_zip(root: Path) -> str:
    with zipfile.ZipFile(f"{root}.zip", "w") as archive:
        for path in root.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(root.parent))
    return f"zip://{root.name}::file://{root}.zip"


@pytest.mark.parametrize("location", [as_cached, as_zip])
def test_blobs_read_as_a_local_root_gives_them(
    written: Path, location: Callable[[Path], str]
) -> None:
    storage, local = open_storage(location(written)), LocalStorage(written)
    assert isinstance(storage, FsspecStorage)
    assert storage.list("") == local.list("")
    assert storage.list("versions") == local.list("versions")
    assert storage.list("absent") == []
    for blob in local.list(""):
        assert storage.read(blob.path).equals(local.read(blob.path))
        assert storage.size(blob.path) == blob.size


@pytest.mark.parametrize("location", [as_cached, as_zip])
def test_store_opens_and_reads_through_fsspec(
    written: Path, location: Callable[[Path], str]
) -> None:
    with holdfast.open(location(written)) as db:
        assert db.version == 3
        assert db.get(("Sankar",)) == (3,)
        assert db.at("first").scan().to_pydict() == {"user": ["Sankar"], "total": [1]}
        assert [info.version for info in db.history()] == [3, 2, 1, 0]


@pytest.mark.parametrize("location", [as_cached, as_zip])
def test_update_of_a_fsspec_root_is_refused_by_name(
    written: Path, location: Callable[[Path], str]
) -> None:
    before = LocalStorage(written).list("")
    with holdfast.open(location(written)) as db:
        with pytest.raises(IllegalState, match="can only be read") as caught:
            db.update()
        with pytest.raises(IllegalState, match="can only be read"):
            db.tag("second", 2)
    assert caught.value.condition == "STATE_STORE_READ_ONLY"
    assert LocalStorage(written).list("") == before


def test_new_store_on_a_fsspec_root_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(IllegalState, match="can only be read") as caught:
        holdfast.open(as_cached(tmp_path / "none"), key="k long", value="v long")
    assert caught.value.condition == "STATE_STORE_READ_ONLY"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "write",
    [
        lambda storage: storage.write("a", b"1"),
        lambda storage: storage.open_writer("a"),
        lambda storage: storage.create_if_absent("a", b"1"),
        lambda storage: storage.delete("versions/1"),
    ],
)
def test_every_way_to_write_is_refused(written: Path, write: Callable[[Any], Any]) -> None:
    storage = open_storage(as_cached(written))
    assert storage.read_only
    with pytest.raises(IllegalState) as caught:
        write(storage)
    assert caught.value.condition == "STATE_STORE_READ_ONLY"
    assert storage.size("versions/1") is not None


def test_missing_blob_is_not_found(written: Path) -> None:
    storage = open_storage(as_cached(written))
    with pytest.raises(BlobNotFound):
        storage.read("versions/99")
    assert storage.size("versions/99") is None


def test_directory_is_no_blob_and_nothing_lies_below_a_blob(written: Path) -> None:
    storage = open_storage(as_cached(written))
    assert storage.size("versions") is None
    with pytest.raises(BlobNotFound):
        storage.read("versions")
    assert storage.list("versions/1") == []


def test_temporary_files_are_not_listed(written: Path) -> None:
    (written / "packs" / ".tmp-crashed").write_bytes(b"half")
    listed = [blob.path for blob in open_storage(as_cached(written)).list("packs")]
    assert listed == [blob.path for blob in LocalStorage(written).list("packs")]


def test_unknown_scheme_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgument, match="'gopher'"):
        open_storage("gopher://host/root")


def test_storage_that_does_not_answer_is_unavailable(tmp_path: Path) -> None:
    storage = open_storage(f"failing://{tmp_path}")
    for call in (lambda: storage.read("a"), lambda: storage.size("a"), lambda: storage.list("")):
        with pytest.raises(Unavailable, match="TimeoutError") as caught:
            call()
        assert isinstance(caught.value.__cause__, TimeoutError)


def test_options_reach_the_filesystem(tmp_path: Path, written: Path) -> None:
    cache = tmp_path / "cache"
    options = {"cache_storage": str(cache)}
    storage = FsspecStorage(as_cached(written), {"simplecache": options})
    assert isinstance(storage.read("versions/1"), pa.Buffer)
    assert list(cache.iterdir())
