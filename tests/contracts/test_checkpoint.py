"""Spark's checkpoint is read without Spark: recorded texts, and the rules of pairing and replay."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.backends.local import LocalStorage
from holdfast.checkpoint import (
    CheckpointFiles,
    CommitEntry,
    NextBatch,
    OffsetEntry,
    SparkCheckpoint,
    moment_of,
)
from holdfast.engine.storage import BlobNotFound, Storage
from holdfast.errors import IllegalState

HERE = Path(__file__).parent
RECORDED: dict[str, dict[str, dict[str, str]]] = json.loads((HERE / "checkpoints.json").read_text())
"""What Spark's own queries wrote, by its version and the kind of query."""
EVERY = [(version, kind) for version, kinds in RECORDED.items() for kind in kinds]
GOLDEN = sorted((HERE.parent / "spark" / "golden").glob("*/cp"))
"""Checkpoints of Holdfast's streams."""


class Texts:
    """A checkpoint in memory."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = dict(files)

    def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> list[str]:
        start = f"{path}/" if path else ""
        below = [each.removeprefix(start) for each in self.files if each.startswith(start)]
        return sorted({each.partition("/")[0] for each in below})

    def create_if_absent(self, path: str, text: str) -> bool:
        return self.files.setdefault(path, text) is text


class Stored:
    """A checkpoint through a storage of Holdfast's own, as a tool without a JVM would have it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def read_text(self, path: str) -> str | None:
        try:
            return bytes(self._storage.read(path)).decode()
        except BlobNotFound:
            return None

    def names(self, path: str) -> list[str]:
        start = f"{path}/" if path else ""
        below = [blob.path.removeprefix(start) for blob in self._storage.list(path)]
        return sorted({each.partition("/")[0] for each in below})

    def create_if_absent(self, path: str, text: str) -> bool:
        return self._storage.create_if_absent(path, text.encode())


def _checkpoint(files: dict[str, str]) -> SparkCheckpoint:
    return SparkCheckpoint(Texts(files), "/cp")


def _version(state_id: str | None, query_id: str | None = None) -> Any:
    scope = {} if state_id is None else {"id": state_id}
    batch = None if query_id is None else {"id": 0, "query_id": query_id, "offsets": None}
    return SimpleNamespace(scope=scope, batch=batch)


@pytest.mark.parametrize(("version", "kind"), EVERY)
def test_recorded_checkpoints_are_read_whole(version: str, kind: str) -> None:
    files = RECORDED[version][kind]
    checkpoint = _checkpoint(files)
    assert checkpoint.query_id() == json.loads(files["metadata"])["id"]
    assert checkpoint.planned() == checkpoint.committed() == [0, 1]
    assert checkpoint.next_batch() == NextBatch(2, is_planned=False)
    assert checkpoint.has_spark_state() == ("stateful" in kind)
    assert not checkpoint.is_noted()
    for number in (0, 1):
        text = files[f"offsets/{number}"]
        entry = OffsetEntry.parse(text)
        assert entry.version == (2 if "offset log 2" in kind else 1)
        assert entry.timestamp_ms == moment_of({"offsets": text})
        assert f'"batchTimestampMs":{entry.timestamp_ms},' in text
        assert entry.watermark_ms == 0
        assert entry.settings["spark.sql.shuffle.partitions"] == "1"
        names = ("first", "second") if "named" in kind else ("0", "1")
        wanted = {names[0]: f'{{"logOffset":{number}}}'}
        if len(entry.sources) > 1:
            wanted[names[1]] = '{"offset":2,"timestamp":1000}'
        assert entry.sources == wanted
        text = files[f"commits/{number}"]
        assert CommitEntry.parse(text) == CommitEntry(2 if text.startswith("v2\n") else 1, 0)


@pytest.mark.parametrize("folder", GOLDEN, ids=lambda folder: folder.parent.name)
def test_checkpoints_of_streams_are_read_through_storages_of_our_own(folder: Path) -> None:
    files: CheckpointFiles = Stored(LocalStorage(folder))
    checkpoint = SparkCheckpoint(files, str(folder))
    assert checkpoint.state_id() == (folder / "holdfast-state").read_text().strip()
    assert checkpoint.next_batch() == NextBatch(2, is_planned=False)
    assert not checkpoint.has_spark_state()
    assert checkpoint.is_committed(1)
    assert not checkpoint.is_committed(2)
    commits = [CommitEntry.parse(checkpoint.commit(number) or "") for number in (0, 1)]
    assert commits == [CommitEntry(1, 1_700_000_520_000), CommitEntry(1, 1_700_001_120_000)]
    planned = OffsetEntry.parse(checkpoint.offsets(1) or "")
    assert planned.watermark_ms == commits[0].next_watermark_ms


@pytest.mark.parametrize(
    "text", ["", "offsets of 3", "v1", "v1\n\n", "{not json", "v1\n{}", "[1]", "v1\n-\n-"]
)
def test_a_text_that_says_less_is_read_as_far_as_it_goes(text: str) -> None:
    entry = OffsetEntry.parse(text)
    assert (entry.timestamp_ms, entry.watermark_ms, entry.settings) == (None, None, {})
    assert moment_of({"offsets": text}) is moment_of(None) is moment_of({"offsets": None}) is None
    assert CommitEntry.parse(text).next_watermark_ms is None


def test_a_source_that_had_no_data_yet_has_no_offset() -> None:
    entry = OffsetEntry.parse('v1\n{"batchWatermarkMs":0,"batchTimestampMs":5}\n-\n{"logOffset":0}')
    assert entry.sources == {"0": None, "1": '{"logOffset":0}'}


@pytest.mark.parametrize(
    ("planned", "committed", "following"),
    [
        ([], [], NextBatch(0, is_planned=False)),
        ([0], [], NextBatch(0, is_planned=True)),
        ([0], [0], NextBatch(1, is_planned=False)),
        ([8, 9, 10], [8, 9], NextBatch(10, is_planned=True)),
        ([9, 10], [9, 10], NextBatch(11, is_planned=False)),
    ],
)
def test_the_newest_planned_batch_comes_next_unless_it_is_committed(
    planned: list[int], committed: list[int], following: NextBatch
) -> None:
    files = {f"offsets/{number}": "v1" for number in planned}
    files |= {f"commits/{number}": "v1" for number in committed}
    files |= {"offsets/.99.crc": "", "offsets/.99.0a.tmp": "", "commits/.99.crc": ""}
    assert _checkpoint(files).next_batch() == following


def test_a_batch_follows_comes_again_or_is_refused_with_both_offsets() -> None:
    checkpoint = _checkpoint({})
    texts = [RECORDED["4.3.0"][kind] for kind in ("one source", "offset log 2, named")]
    for first, second in [(files["offsets/0"], files["offsets/1"]) for files in texts]:
        last, following = {"id": 4, "offsets": first}, {"id": 5, "offsets": second}
        assert not checkpoint.check_next_batch(None, {"id": 0, "offsets": first}, "/state")
        assert not checkpoint.check_next_batch(last, following, "/state")
        assert checkpoint.check_next_batch(last, dict(last), "/state")
        for wrong in ({"id": 4, "offsets": second}, {"id": 6, "offsets": second}):
            with pytest.raises(IllegalState, match="do not belong together") as refused:
                checkpoint.check_next_batch(last, wrong, "/state")
            assert refused.value.condition == "STATE_STORE_WRONG_PAIR"
            said = str(refused.value)
            assert 'up to {"logOffset":1}' in said or 'first:{"logOffset":1}' in said
            assert "spark.sql" not in said
    with pytest.raises(IllegalState, match=r"batch 3, up to no known offsets.* batch is none"):
        checkpoint.check_next_batch(None, {"id": 3, "offsets": None}, "/state")


def test_state_and_checkpoint_are_paired_by_note_and_by_query() -> None:
    query = {"metadata": '{"id":"q"}'}
    noted = _checkpoint({**query, "holdfast-state": "s\n"})
    noted.check_pair("/state", _version("s", "q"))
    noted.check_pair("/state", _version("s"))
    _checkpoint(query).check_pair("/state", _version(None, "q"))
    _checkpoint({}).check_pair("/state", None)
    _checkpoint({**query, "holdfast-state": "\n"}).check_pair("/state", _version(None, "q"))
    for checkpoint, found, said in [
        (noted, None, "belongs to the state s, and there is none in /state"),
        (noted, _version("other"), "belongs to the state s; in /state is the state other"),
        (noted, _version("s", "p"), "belongs to Spark's query p; .* is that of query q"),
        (_checkpoint({}), _version("s", "p"), "is that of a new query"),
    ]:
        with pytest.raises(IllegalState, match=said) as refused:
            checkpoint.check_pair("/state", found)
        assert refused.value.condition == "STATE_STORE_WRONG_PAIR"


def test_a_note_is_left_once() -> None:
    checkpoint = _checkpoint({})
    checkpoint.note_state("first")
    checkpoint.note_state("second")
    assert checkpoint.is_noted()
    assert checkpoint.state_id() == "first"


@pytest.mark.parametrize(("version", "kind"), EVERY)
def test_a_checkpoint_of_sparks_own_is_refused_unless_its_state_is_found(
    version: str, kind: str
) -> None:
    files = RECORDED[version][kind]
    query_id = json.loads(files["metadata"])["id"]
    checkpoint = _checkpoint(files)
    for fresh in (None, _version("s")):
        with pytest.raises(IllegalState, match=r"made by Spark's own streaming \(2 batches\)"):
            checkpoint.check_not_native(lambda fresh=fresh: fresh)
    checkpoint.check_not_native(lambda: _version("s", query_id))
    checkpoint.check_not_native(lambda: _version(None))
    before_any = _checkpoint({"metadata": files["metadata"]})
    with pytest.raises(IllegalState, match=r"\(0 batches\)"):
        before_any.check_not_native(lambda: None)


def test_the_state_is_not_asked_for_where_there_is_a_note_or_nothing_of_sparks() -> None:
    def never() -> None:
        raise AssertionError

    _checkpoint({}).check_not_native(never)
    _checkpoint({"metadata": '{"id":"q"}', "holdfast-state": "s\n"}).check_not_native(never)
