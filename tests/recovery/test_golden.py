"""What earlier builds wrote reads back as it was. dev/make_golden.py writes the files."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import xxhash

import holdfast
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.local import LocalStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files import segment_writer
from holdfast.engine.files.filenames import manifest_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.files.manifest_codec import LINEAGE_FORMAT, encode
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.journal import Journal
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import InvalidArgument
from holdfast.ids import StateStoreId
from holdfast.reading import open_root, verify
from holdfast.reading.cells import row_json
from holdfast.types import parse_schema

PROJECT = Path(__file__).resolve().parents[2]
FORMATS = sorted((Path(__file__).parent / "golden").glob("format-*"))
EXPECTED = {folder: json.loads((folder / "expected.json").read_text("utf-8")) for folder in FORMATS}
ROOTS = [(folder, name) for folder in FORMATS for name in sorted(EXPECTED[folder]["roots"])]
MOST_BYTES = 300_000
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")
QUIET = StateStoreConf(maintenance_interval_ms=3_600_000)
roots = pytest.mark.parametrize(
    ("folder", "name"), ROOTS, ids=[f"{folder.name}-{name}" for folder, name in ROOTS]
)


@contextmanager
def reading(root: Path, about: dict[str, Any]) -> Iterator[Callable[[int], Any]]:
    """How to open the versions of a root, whatever wrote it."""
    if about["partitions"] is not None:
        with holdfast.open(root, conf=QUIET) as db:
            assert db.partitions == about["partitions"]
            assert db.tags == about["tags"]
            yield db.at
        return
    provider = HDFSBackedStateStoreProvider(storage=LocalStorage(root))
    provider.init(
        StateStoreId(str(root), 0, 0),
        parse_schema(about["key"]),
        parse_schema(about["value"]),
        about["index"],
        about["prefix"],
        QUIET,
    )
    yield provider.get_read_store
    provider.close()


def copied(folder: Path, name: str, target: Path) -> Path:
    return Path(shutil.copytree(folder / name, target / name))


@roots
def test_every_version_reads_back_as_it_was_written(
    folder: Path, name: str, tmp_path: Path
) -> None:
    about = EXPECTED[folder]["roots"][name]
    expected = EXPECTED[folder]["lives"][about["life"]]
    key, value = parse_schema(about["key"]), parse_schema(about["value"])
    root = copied(folder, name, tmp_path)
    log = VersionLog(LocalStorage(root), Runtime.system())
    assert log.versions() == about["versions"]
    assert log.tags() == about["tags"]
    with reading(root, about) as at:
        for version in about["versions"]:
            store = at(version)
            pairs = list(store.iterator())
            found = sorted(
                json.dumps([*row_json(key, k).values(), *row_json(value, v).values()])
                for k, v in pairs
            )
            assert found == expected[str(version)]
            assert store.metrics.num_keys == len(found)
            assert store.scan().num_rows == len(found)
            for k, v in pairs:
                assert repr(store.get(k)) == repr(v)
                if about["prefix"]:
                    behind = [repr(pair.key) for pair in store.prefix_scan(k[: about["prefix"]])]
                    assert repr(k) in behind
            if about["index"] is not None:
                numbers = [k[about["index"]] for k, _ in pairs]
                low, high = 100, 300
                inside = [k[about["index"]] for k, _ in store.get_range(low, high)]
                assert sorted(inside) == sorted(n for n in numbers if low <= n <= high)


@roots
def test_a_golden_root_verifies_and_goes_on(folder: Path, name: str, tmp_path: Path) -> None:
    about = EXPECTED[folder]["roots"][name]
    root = copied(folder, name, tmp_path)
    checked = verify(open_root(root))
    assert checked.intact
    assert list(checked.readable) == about["versions"]
    if about["partitions"] is None:
        return
    newest = about["versions"][-1]
    with holdfast.open(root, conf=QUIET) as db:
        rows = db.scan()
        with db.update() as store:
            store.put_many(rows)
        db.maintain(snapshot=True)
        with db.update() as store:
            assert store.version == newest + 1
        assert db.scan().num_rows == rows.num_rows
    assert verify(open_root(root)).intact


def test_golden_files_cover_every_kind_of_file_and_compression() -> None:
    for folder in FORMATS:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert sum(path.stat().st_size for path in files) < MOST_BYTES
        for path in files:
            data = path.read_bytes()
            assert str(PROJECT).encode() not in data
            assert b"/tmp/" not in data
            assert path.parent.name != "claims", "which names the host"
    for folder, expected in EXPECTED.items():
        if folder == GONE_BACK:
            continue
        abouts = expected["roots"].values()
        assert {kind for about in abouts for kind in about["kinds"]} >= {
            "delta", "pack", "merge", "snapshot", "copy",
        }  # fmt: skip
        assert {about["compression"] for about in abouts} == {"none", "lz4", "zstd"}
        assert {about["partitions"] for about in abouts} >= {None, 1, 2}
        assert any(about["tags"] for about in abouts)


def test_the_golden_script_writes_every_format_again(tmp_path: Path) -> None:
    """The same contents always, and the same bytes with the pyarrow that wrote them."""
    script = [sys.executable, str(PROJECT / "dev/make_golden.py"), str(tmp_path / "again")]
    subprocess.run(script, check=True, capture_output=True)
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == [
        folder.name for folder in FORMATS
    ]
    for folder in FORMATS:
        written = tmp_path / "again" / folder.name
        again = json.loads((written / "expected.json").read_text("utf-8"))
        assert again["lives"] == EXPECTED[folder]["lives"]
        assert again["roots"] == EXPECTED[folder]["roots"]
        if again["pyarrow"] == EXPECTED[folder]["pyarrow"]:
            assert bytes_of(written) == bytes_of(folder)


GONE_BACK = Path(__file__).parent / f"golden/format-{LINEAGE_FORMAT}"


def test_a_golden_history_that_went_back_says_so_and_shows_its_changes(tmp_path: Path) -> None:
    root = open_root(copied(GONE_BACK, "gone-back-zstd", tmp_path))
    by_version = {version: root.manifest(version) for version in root.versions}
    [back] = [each for each in by_version.values() if each.goes_back]
    assert back.operation is not None
    assert (back.version, back.operation["detail"]) == (5, {"from": 4, "to": 2})
    for version, manifest in by_version.items():
        assert manifest.lineage == (version >= 5)
        raw = bytes(root.storage.read(manifest_path(version)))
        assert raw.startswith(b"HOLDFAST-MANIFEST %d " % (1 + manifest.lineage))
    [line] = Journal(root.log).lines()
    assert line.is_done
    assert (line.entry.version, line.entry.by, line.entry.reason) == (
        5,
        "ops@driver-1",
        "a mistake",
    )
    life = EXPECTED[GONE_BACK]["lives"]["gone_back"]
    store = root.store()
    for old, new in itertools.permutations(root.versions, 2):
        before, after = (
            {tuple(json.loads(row)[:2]): row for row in life[str(v)]} for v in (old, new)
        )
        found = store.diff(old, new)
        assert (found.added, found.removed) == (
            len(after.keys() - before.keys()),
            len(before.keys() - after.keys()),
        )
        assert found.changed == sum(before[k] != after[k] for k in before.keys() & after.keys())


def bytes_of(folder: Path) -> dict[str, str]:
    """The digest of each file, ids by their order: how many ids were drawn between is no format."""
    found: dict[str, str] = {}
    for root in sorted(folder.iterdir()):
        files = [path for path in sorted(root.rglob("*")) if path.is_file()] or [root]
        contents = {str(path.relative_to(folder)): _contents(path) for path in files}
        texts = [*contents, *(text for text in contents.values() if isinstance(text, str))]
        ids = sorted({found for text in texts for found in _ID.findall(text)})
        order = {each: f"<{number}>" for number, each in enumerate(ids)}
        for name, content in contents.items():
            data = (
                _ID.sub(lambda m, o=order: o[m[0]], content)
                if isinstance(content, str)
                else content
            )
            raw = data.encode() if isinstance(data, str) else data
            found[_ID.sub(lambda m, o=order: o[m[0]], name)] = xxhash.xxh3_64_hexdigest(raw)
    return found


def _contents(path: Path) -> bytes | str:
    """A manifest's header without its checksum, and its JSON, and so of the journal; else bytes."""
    data = path.read_bytes()
    if path.parent.name == "operations" and data:
        magic, version, _, body = data.split(b" ", 3)
        return b" ".join((magic, version, body)).decode()
    if path.parent.name != "versions":
        return data
    header, _, packed = data.partition(b"\n")
    magic, version, codec, size, _ = header.split(b" ")
    body = pa.decompress(packed, decompressed_size=int(size), codec=codec.decode(), asbytes=True)
    return b" ".join((magic, version, codec, body)).decode()


@pytest.fixture
def golden_root(tmp_path: Path) -> Path:
    return copied(FORMATS[0], "packs-zstd", tmp_path)


def test_a_manifest_of_an_unknown_format_is_refused_by_name(golden_root: Path) -> None:
    path = max((golden_root / "versions").iterdir(), key=lambda each: int(each.name))
    path.write_bytes(path.read_bytes().replace(b"HOLDFAST-MANIFEST 1 ", b"HOLDFAST-MANIFEST 3 "))
    with pytest.raises(InvalidArgument, match="is in format 3; this release reads") as caught:
        holdfast.open(golden_root)
    assert caught.value.condition == "STATE_STORE_UNSUPPORTED_FORMAT"
    assert f"versions/{path.name}" in caught.value.message
    assert "Upgrade holdfast" in caught.value.message


def test_a_segment_of_an_unknown_format_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    with monkeypatch.context() as patch, holdfast.open(root, "k int", "v int", conf=QUIET) as db:
        patch.setattr(segment_writer, "SEGMENT_FORMAT", 7)
        with db.update() as store:
            store.put((1,), (2,))
    with holdfast.open(root, conf=QUIET) as db:
        with pytest.raises(InvalidArgument, match="is in segment format 7; this") as caught:
            db.get((1,))
        assert caught.value.condition == "STATE_STORE_UNSUPPORTED_FORMAT"
        assert "packs/1-" in caught.value.message


def test_a_tag_of_an_unknown_format_is_refused_by_name(golden_root: Path) -> None:
    path = golden_root / "tags" / "first"
    path.write_bytes(path.read_bytes().replace(b"HOLDFAST-TAG 1 ", b"HOLDFAST-TAG 2 "))
    with holdfast.open(golden_root, conf=QUIET) as db, pytest.raises(InvalidArgument) as caught:
        db.at("first")
    assert caught.value.condition == "STATE_STORE_UNSUPPORTED_FORMAT"
    assert "tags/first" in caught.value.message


def rewritten(root: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Change the newest manifest, checksum and all."""
    log = VersionLog(LocalStorage(root), Runtime.system())
    newest = log.newest()
    assert newest is not None
    (root / manifest_path(newest)).write_bytes(encode(change(log.load(newest))))


def test_altered_hash_samples_are_refused_by_name(golden_root: Path) -> None:
    def change(manifest: Manifest) -> Manifest:
        store = manifest.operators[0]["default"]
        first, *others = store.hash_samples["hashes"]
        samples = {**store.hash_samples, "hashes": [first ^ 1, *others]}
        return replace(manifest, operators={0: {"default": replace(store, hash_samples=samples)}})

    rewritten(golden_root, change)
    with pytest.raises(InvalidArgument, match="hashes its sample keys differently") as caught:
        holdfast.open(golden_root)
    assert caught.value.condition == "STATE_STORE_HASH_MISMATCH"


def test_another_hash_is_refused_by_name(golden_root: Path) -> None:
    rewritten(golden_root, lambda manifest: replace(manifest, hash_name="sha1"))
    with pytest.raises(InvalidArgument, match="written with the hash 'sha1'") as caught:
        holdfast.open(golden_root)
    assert caught.value.condition == "STATE_STORE_HASH_MISMATCH"


def test_any_arrow_reader_opens_a_golden_segment() -> None:
    files = sorted(FORMATS[0].rglob("*.snapshot"))
    assert files
    for path in files:
        with pa.OSFile(str(path)) as file:
            table = pa.ipc.open_file(file).read_all()
        assert table.column_names[0] == "_hash"
        assert table.num_rows > 0
