"""Which storage a root means, what it takes, and for how long it is asked."""

from __future__ import annotations

import sys
import time
import traceback
from pathlib import Path

import pytest

import holdfast
from holdfast.backends.cache import CachedStorage
from holdfast.backends.hdfs import HdfsStorage
from holdfast.backends.local import LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.backends.s3 import S3Storage
from holdfast.clients.retrying import retried
from holdfast.conf import StateStoreConf
from holdfast.errors import InvalidArgument


@pytest.mark.parametrize(
    ("location", "kind"),
    [
        ("hdfs://host:8020/a/b", HdfsStorage),
        ("s3://bucket/a/b", S3Storage),
        ("s3a://bucket/a/b/", S3Storage),
        ("s3://bucket/job#1", S3Storage),
        ("s3://bucket/job?x/y", S3Storage),
    ],
)
def test_a_remote_root_is_behind_the_cache_and_named_as_it_was(
    location: str, kind: type, tmp_path: Path
) -> None:
    storage = open_storage(location, conf=StateStoreConf(cache_location=str(tmp_path)))
    assert isinstance(storage, CachedStorage)
    assert isinstance(storage.source, kind)
    assert storage.location == location.rstrip("/")
    assert list(tmp_path.iterdir()) == []
    assert isinstance(open_storage(location, conf=StateStoreConf(cache_size_bytes=0)), kind)


def test_roots_that_differ_in_what_a_uri_takes_for_a_fragment_are_not_one(tmp_path: Path) -> None:
    first, second = S3Storage("s3://bucket/job#1"), S3Storage("s3://bucket/job?x")
    assert [each.place("a")["Key"] for each in (first, second)] == ["job#1/a", "job?x/a"]
    for text in (f"file://{tmp_path}/job#1", f"file:{tmp_path}/job%231"):
        assert open_storage(text).location == f"{tmp_path}/job#1"
    assert open_storage(f"file://localhost{tmp_path}/job?x").location == f"{tmp_path}/job?x"


@pytest.mark.parametrize(
    "location",
    ["cassandra://host/state/job#1", "dynamodb://local/job?x", "dynamodb://local/job/a#1"],
)
def test_a_root_in_a_database_has_no_query_or_fragment(location: str) -> None:
    with pytest.raises(InvalidArgument, match="Choose a name without"):
        open_storage(location)


@pytest.mark.parametrize("location", ["s3://", "s3:///x", "s3://bucket?x", "s3://#bucket/x"])
def test_an_address_on_s3_names_a_bucket(location: str) -> None:
    with pytest.raises(InvalidArgument, match="has no bucket"):
        S3Storage(location)


def test_a_local_root_needs_no_cache(tmp_path: Path) -> None:
    storage = open_storage(tmp_path)
    assert isinstance(storage, LocalStorage)
    assert storage.source is storage
    assert storage.distrust("versions/1") is False


@pytest.mark.parametrize(
    ("location", "client", "extra"),
    [("hdfs://host:8020/x", "hdfs_native", "hdfs"), ("s3://bucket/x", "boto3", "s3")],
)
def test_a_missing_client_is_named_with_the_extra_that_brings_it(
    location: str, client: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, client, None)
    for call in (lambda: holdfast.open(location), lambda: holdfast.read(location)):
        with pytest.raises(InvalidArgument) as refused:
            call()
        assert f'pip install "holdfast[{extra}]"' in str(refused.value)


@pytest.mark.parametrize(
    "location",
    ["dynamodb://key:hunter2@eu-west-1/t", "cassandra://user:hunter2@host/keyspace/t",
     "dynamodb://key:hunter2?x@eu-west-1/t", "dynamodb://key:x/hunter2@eu-west-1/t",
     "cassandra://user:hunter2#x@host/keyspace/t", "cassandra://user:x/hunter2@host/keyspace/t"],
)  # fmt: skip
def test_an_address_with_keys_is_refused_and_not_shown(location: str) -> None:
    with pytest.raises(InvalidArgument, match="do not belong into an address") as refused:
        holdfast.open(location, key="user string", value="total long")
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_an_endpoint_that_is_none_is_refused_and_not_shown() -> None:
    options = {"endpoint_url": "http://key:hunter2@ host", "key": "k", "secret": "s"}
    storage = open_storage("dynamodb://eu-west-1/t", options, StateStoreConf(cache_size_bytes=0))
    with pytest.raises(InvalidArgument, match=r"Check endpoint_url") as refused:
        storage.read("versions/1")
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


class Passing(Exception):
    pass


def test_a_failure_that_passes_is_tried_again_with_growing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls, waits = [], []
    monkeypatch.setattr("holdfast.clients.retrying.time.sleep", waits.append)

    def third_time() -> str:
        calls.append(1)
        if len(calls) < 4:
            raise Passing
        return "done"

    assert retried(third_time, lambda error: isinstance(error, Passing), 5000) == "done"
    assert len(waits) == 3
    assert 0.04 < waits[0] < waits[2]


def test_a_failure_that_does_not_pass_is_raised_at_once() -> None:
    calls = []

    def fail() -> None:
        calls.append(1)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        retried(fail, lambda error: isinstance(error, Passing), 5000)
    assert len(calls) == 1


def test_a_failure_that_lasts_is_raised_at_the_end_of_the_time() -> None:
    def fail() -> None:
        raise Passing

    started = time.monotonic()
    with pytest.raises(Passing):
        retried(fail, lambda error: True, 300)
    assert 0.25 < time.monotonic() - started < 3


def test_a_folder_named_with_an_escape_is_found_by_the_address_spark_gives_it(
    tmp_path: Path,
) -> None:
    text = f"file:{tmp_path}/job%201"
    assert open_storage(text).location == f"{tmp_path}/job 1"
    (tmp_path / "job%201").mkdir()
    assert open_storage(text).location == f"{tmp_path}/job%201"
