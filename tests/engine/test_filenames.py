"""Names of files: what is ours is recognised, what is not is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up_manifests import attempt, manifest

from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import (
    SEGMENT_KINDS,
    DataFile,
    data_file,
    done_path,
    is_operation,
    manifest_path,
    manifest_version,
    operation_path,
    operation_version,
    pack_path,
    segment_path,
    tag_name,
    tag_path,
)
from holdfast.engine.files.manifest_codec import encode
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.retention import Cleaner
from holdfast.errors import InvalidArgument

HEX = attempt(0xABC)
VERSIONS = st.integers(0, 10**18 - 1)
HOSTILE_NUMBERS = [
    "", "-1", "+1", "01", "007", "1.0", "1e3", " 1", "1 ", "1\n", "0x1", "1_000",
    "٣", "１", "²", "9" * 19, "9" * 5_000, "None", ".tmp-1",
]  # fmt: skip


@given(VERSIONS)
def test_a_manifest_is_found_under_the_name_it_was_given(version: int) -> None:
    assert manifest_version(manifest_path(version)) == version


@given(VERSIONS)
def test_an_entry_of_the_journal_and_its_note_say_their_version(version: int) -> None:
    assert operation_version(operation_path(version, HEX)) == version
    assert operation_version(done_path(version, HEX)) == version
    assert is_operation(operation_path(version, HEX))
    assert not is_operation(done_path(version, HEX))
    assert operation_version(f"operations/{version}-{HEX}.copy") is None
    assert operation_version(f"versions/{version}-{HEX}") is None


@pytest.mark.parametrize("name", HOSTILE_NUMBERS)
def test_a_name_that_is_no_plain_number_is_no_version(name: str) -> None:
    assert manifest_version(f"versions/{name}") is None


@pytest.mark.parametrize(
    "path", ["1", "versions", "Versions/1", "a/versions/1", "versions/1/2", "versions//1", "/1"]
)
def test_a_number_elsewhere_is_no_version(path: str) -> None:
    assert manifest_version(path) is None


@given(VERSIONS, st.sampled_from(SEGMENT_KINDS), st.sampled_from(["", "0/1", "0/1/joined-rows"]))
def test_a_segment_is_found_under_the_name_it_was_given(
    version: int, kind: str, directory: str
) -> None:
    path = segment_path(directory, version, HEX, kind)
    assert data_file(path) == DataFile(version, HEX, kind)
    assert path.rpartition("/")[0] == directory


@given(VERSIONS)
def test_a_pack_is_found_under_the_name_it_was_given(version: int) -> None:
    assert data_file(pack_path(version, HEX)) == DataFile(version, HEX, "pack")


@pytest.mark.parametrize("number", HOSTILE_NUMBERS)
def test_a_data_file_of_no_plain_number_is_somebody_elses(number: str) -> None:
    assert data_file(f"0/0/{number}-{HEX}.delta") is None


@pytest.mark.parametrize(
    "name",
    [
        f"1-{HEX}",
        f"1-{HEX}.",
        f"1-{HEX}.parquet",
        f"1-{HEX}.delta.crc",
        f"1-{HEX}.DELTA",
        f"1-{HEX}.delta\n",
        f".1-{HEX}.delta",
        f"1-{HEX.upper()}.delta",
        f"1-{HEX[:-1]}.delta",
        f"1-{HEX}0.delta",
        f"1_{HEX}.delta",
        "1.delta",
        "1.snapshot",
        "",
    ],
)
def test_a_name_that_is_nearly_ours_is_somebody_elses(name: str) -> None:
    assert data_file(name) is None
    assert data_file(f"0/0/{name}") is None


@given(st.text(max_size=80))
def test_any_text_is_a_path_that_can_be_asked_about(path: str) -> None:
    data_file(path)
    manifest_version(path)
    tag_name(path)


@pytest.mark.parametrize("name", ["before-upgrade", "v1.2", "_", "2026-11-16", "a" * 100, "a..b"])
def test_a_plain_name_is_a_tag(name: str) -> None:
    assert tag_name(tag_path(name)) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../versions/1", "a/b", "a\\b", ".hidden", "-rf", "a b", "a\n", "a\0b", "é",
     "a" * 101, "tab\t", "*", "~"],
)  # fmt: skip
def test_a_name_that_could_leave_the_folder_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be used"):
        tag_path(name)
    assert tag_name(f"tags/{name}") is None


def test_strange_files_in_a_root_disturb_nobody_and_stay() -> None:
    storage = MemoryStorage()
    strange = [
        "versions/.DS_Store", "versions/007", "versions/" + "9" * 5_000, "versions/٣", "versions/x",
        "tags/.DS_Store", "tags/a b", "tags/sub/x", "retiring/.DS_Store", "packs/readme.txt",
        f"0/0/٣-{HEX}.delta", f"0/0/1-{HEX}.delta.bak", "notes.txt",
    ]  # fmt: skip
    for path in strange:
        storage.write(path, b"not ours")
    runtime = Runtime(lambda: 10**12, lambda: 0, lambda: HEX)
    versions = VersionLog(storage, runtime)
    for version in range(1, 4):
        storage.write(manifest_path(version), encode(manifest(version)))
    assert versions.versions() == [1, 2, 3]
    assert versions.newest() == 3
    assert versions.tags() == {}
    versions.tag("kept", 2)
    conf = StateStoreConf(min_versions_to_retain=2, grace_period_ms=0)
    done = Cleaner(versions, runtime, conf).clean()
    assert done.versions == [1]
    assert done.files == []
    left = {blob.path for blob in storage.list("")}
    assert left >= set(strange) - {"retiring/.DS_Store"}
