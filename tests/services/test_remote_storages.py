"""HDFS, S3 and databases keep what a storage promises, on real servers that fail and refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from remotes import Remote, opened, refusal

import holdfast
from holdfast.backends import chunked as chunked_module
from holdfast.backends import hdfs as hdfs_module
from holdfast.backends import s3 as s3_module
from holdfast.backends.hdfs import HdfsStorage
from holdfast.backends.s3 import S3Storage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage, TooLarge
from holdfast.errors import Unavailable
from holdfast.testing import StorageConformance
from servers import Minio

pytestmark = pytest.mark.services
IMPATIENT = StateStoreConf(retry_timeout_ms=300)


class TestHdfsStorage(StorageConformance):
    races = 15

    @pytest.fixture
    def storage(self, on_hdfs: Remote) -> Storage:
        return opened(on_hdfs)


class TestS3Storage(StorageConformance):
    races = 50
    adopts = True

    @pytest.fixture
    def storage(self, on_s3: Remote) -> Storage:
        return opened(on_s3)

    @pytest.fixture
    def neighbour(self, on_s3: Remote) -> Storage:
        server, location, options = on_s3
        return opened((server, f"{location}-another", options))


class TestCassandraStorage(StorageConformance):
    races = 15

    @pytest.fixture
    def storage(self, on_cassandra: Remote) -> Storage:
        return opened(on_cassandra)


class TestDynamoDbStorage(StorageConformance):
    races = 15

    @pytest.fixture
    def storage(self, on_dynamodb: Remote) -> Storage:
        return opened(on_dynamodb)


# Eight forks of a process that has no client yet race for a number of names; each prints those it
# got.
RACERS = """
import json, multiprocessing, sys
from holdfast.backends.locations import open_storage

location, options, races = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
forks = multiprocessing.get_context("fork")
ready = forks.Barrier(8)

def race(racer):
    storage = open_storage(location, options)
    storage.size("warm")
    ready.wait(200)
    mine = str(racer).encode()
    won = [n for n in range(races) if storage.create_if_absent(f"race/{n}", mine)]
    sys.stdout.write(json.dumps([racer, won]) + "\\n")  # whole, whoever else writes
    sys.stdout.flush()

open_storage(location, options)  # imports what the forks need, and connects to nothing
racers = [forks.Process(target=race, args=(number,)) for number in range(8)]
for racer in racers:
    racer.start()
for racer in racers:
    racer.join()
sys.exit(any(racer.exitcode for racer in racers))
"""


def test_one_of_eight_processes_creates_a_blob(remote: Remote) -> None:
    _, location, options = remote
    races = 15
    command = [sys.executable, "-c", RACERS, location, json.dumps(options), str(races)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    won = dict(json.loads(line) for line in done.stdout.splitlines())
    assert sorted(won) == list(range(8))
    assert sorted(n for mine in won.values() for n in mine) == list(range(races))
    storage = opened(remote)
    for number, mine in won.items():
        for race in mine:
            assert bytes(storage.read(f"race/{race}")) == str(number).encode()


def test_a_store_is_unavailable_without_its_server_and_whole_when_it_is_back(
    remote: Remote, tmp_path: Path
) -> None:
    """What was answered is there after a SIGKILL; a batch that was not is lost, and no other."""
    server, location, options = remote
    conf = {"pack_threshold_bytes": 0, "cache_location": str(tmp_path)}
    with holdfast.open(
        location, "user long", "total long", partitions=2, options=options, conf=conf
    ) as db:
        for version in (1, 2, 3):
            with db.update() as store:
                users = pa.array(range(50_000))
                store.put_many(pa.table({"user": users, "total": pa.array([version] * 50_000)}))
        db.tag("first", 1)
    impatient = {"cache_location": str(tmp_path), "retry_timeout_ms": 300}
    with holdfast.open(location, options=options, conf=impatient) as db:
        store = db.update()
        store.put((7,), (5,))
        server.kill()
        try:
            with pytest.raises(Unavailable, match=r"[Tt]ry again"):
                store.commit()
            _check_unavailable(opened(remote, IMPATIENT))
        finally:
            server.start()
    uncached = {"pack_threshold_bytes": 0, "cache_size_bytes": 0}
    with holdfast.open(location, options=options, conf=uncached) as db:
        assert db.version == 3
        assert [db.at(n).get((49_999,)) for n in (1, 2, 3)] == [(1,), (2,), (3,)]
        assert db.get((7,)) == (3,)
        with db.update() as store:
            store.put((7,), (4,))
    state = holdfast.read(location, options=options)
    assert (state.version, state.get(7), state.at("first").get(7)) == (4, (4,), (1,))


def _check_unavailable(storage: Storage) -> None:
    started = time.monotonic()
    for call in (
        lambda: storage.read("versions/1"),
        lambda: storage.size("versions/1"),
        lambda: storage.list(""),
        lambda: storage.create_if_absent("new", b"1"),
        lambda: storage.delete("versions/1"),
        lambda: storage.write("other", b"2"),
    ):
        with pytest.raises(Unavailable, match=r"Could not .*again"):
            call()
    assert time.monotonic() - started < 45, "none of them took the time a patient one has"


def test_a_server_that_restarts_in_the_middle_of_use_is_waited_for(remote: Remote) -> None:
    server, location, options = remote
    committed = []
    patient = {"retry_timeout_ms": 600_000}
    with holdfast.open(location, "n long", "total long", options=options, conf=patient) as db:
        down = threading.Thread(target=lambda: (server.kill(), server.start()))
        for number in range(200):
            with db.update() as store:
                store.put((number,), (number,))
            committed.append(number)
            if number == 3:
                down.start()
            if number > 5 and not down.is_alive():
                break
        down.join()
    assert len(committed) > 4
    with holdfast.open(location, options=options) as db:
        assert db.version == len(committed)
        assert sorted(db.scan().column("n").to_pylist()) == committed


def test_an_answer_that_gets_lost_never_means_two_winners(
    on_hdfs: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = opened(on_hdfs)
    assert isinstance(storage, HdfsStorage)
    real = storage.client.rename
    lost = []

    class Losing:
        def __getattr__(self, name: str) -> Any:
            return getattr(hdfs_module._client_of(os.getpid(), storage._url, ()), name)

        def rename(self, source: str, target: str, overwrite: bool) -> None:
            real(source, target, overwrite)
            if not lost:
                lost.append(target)
                raise OSError("Connection reset by peer (os error 104)")

    monkeypatch.setattr(HdfsStorage, "client", Losing())
    assert storage.create_if_absent("a", b"mine") is True
    assert storage.create_if_absent("a", b"other") is False
    assert lost
    assert bytes(storage.read("a")) == b"mine"
    assert [blob.path for blob in storage.list("")] == ["a"]


def test_a_writer_whose_unfinished_file_was_swept_is_not_taken_for_the_winner(
    on_hdfs: Remote,
) -> None:
    successor = opened(on_hdfs)
    assert isinstance(successor, HdfsStorage)

    class Paused(HdfsStorage):
        """Sleeps before its rename until what it wrote was swept."""

        def rename(self, temporary: str, path: str) -> bool | None:
            self.client.delete(temporary, False)
            if path != "nobody's":
                successor.write(path, b"successor's")
            return super().rename(temporary, path)

    late = Paused(successor.location)
    assert late.create_if_absent("versions/1", b"mine") is False
    with pytest.raises(Unavailable, match="gone"):
        late.create_if_absent("nobody's", b"mine")
    with pytest.raises(Unavailable, match="gone"):
        late.write("0/0/1.delta", b"mine")
    assert bytes(successor.read("versions/1")) == b"successor's"


def test_a_blob_too_large_for_memory_is_read_in_ranges(
    remote: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (chunked_module, hdfs_module, s3_module):
        monkeypatch.setattr(module, "MOST_IN_MEMORY_BYTES", 10)
    storage = opened(remote)
    storage.write("small", b"0123456789")
    storage.write("large", b"0123456789a")
    assert bytes(storage.read("small")) == b"0123456789"
    with pytest.raises(TooLarge):
        storage.read("large")
    assert bytes(storage.read_range("large", 9, 11)) == b"9a"


def test_large_blobs_are_sent_in_parts(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_module, "_PART_BYTES", 5 << 20)
    storage = opened(remote)
    data = os.urandom(1 << 20) * 17
    for path, pieces in {"one": [data], "many": [data[n : n + 100_000] for n in
                         range(0, len(data), 100_000)]}.items():  # fmt: skip
        with storage.open_writer(path) as writer:
            for piece in pieces:
                writer.write(piece)
        assert storage.read(path).equals(pa.py_buffer(data))
        assert bytes(storage.read_range(path, 6_000_000, 6_000_010)) == data[6_000_000:6_000_010]
    half = storage.open_writer("half")
    half.write(data)
    half.discard()
    assert [blob.path for blob in storage.list("")] == ["many", "one"]


def test_minio_is_asked_once_more_by_the_first_object_of_a_process(
    on_s3: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_module, "_proven", set())
    storage, puts = opened(on_s3), []
    assert isinstance(storage, S3Storage)
    storage.client.meta.events.register(
        "before-call.s3.PutObject", lambda params, **_: puts.append(params["headers"])
    )
    assert storage.create_if_absent("versions/1", b"mine") is True
    assert len(puts) == 2
    assert storage.create_if_absent("versions/1", b"other") is False
    assert storage.create_if_absent("versions/2", b"mine") is True
    assert len(puts) == 4
    assert [bytes(storage.read(blob.path)) for blob in storage.list("")] == [b"mine", b"mine"]


def test_what_a_crashed_writer_left_on_hdfs_is_swept(on_hdfs: Remote) -> None:
    storage = opened(on_hdfs)
    assert isinstance(storage, HdfsStorage)
    storage.write("a/kept", b"1")
    abandoned = storage.temporary_for("a/lost")
    storage.send(abandoned, b"half of")
    storage.client.set_times(abandoned, 1000, 1000)
    at_work = storage.open_writer("a/large")
    at_work.write(b"x" * (5 << 20))
    assert storage.sweep(3600) == 1
    at_work.close()
    assert [blob.path for blob in storage.list("")] == ["a/kept", "a/large"]


def test_an_upload_that_a_crashed_writer_left_on_s3_is_swept(minio: Minio) -> None:
    minio.create_bucket("swept")  # MinIO lists the uploads of whole buckets only
    storage = S3Storage("s3://swept", minio.options)
    place = storage.place(f"0/0/1-{'a' * 32}.snapshot")
    upload = storage.client.create_multipart_upload(**place)["UploadId"]
    storage.client.upload_part(**place, UploadId=upload, PartNumber=1, Body=b"x")
    assert storage.sweep(3600) == 0
    time.sleep(1.1)
    assert storage.sweep(1.0) == 1
    assert storage.sweep(0.0) == 0


def test_a_listing_has_every_page(on_s3: Remote) -> None:
    storage = opened(on_s3)
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda n: storage.write(f"many/{n:04}", b""), range(1100)))
    assert [blob.path for blob in storage.list("many")] == [f"many/{n:04}" for n in range(1100)]


# -- refusals ------------------------------------------------------------------------------------


def test_wrong_and_missing_keys_are_refused_at_once_and_not_shown(
    on_s3: Remote, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, location, options = on_s3
    planted = "PLANTED-SECRET-0123456789"
    wrong = {**options, "secret": planted}
    for call in (
        lambda: holdfast.open(location, "n long", "v long", options=wrong),
        lambda: holdfast.read(location, options=wrong),
        lambda: S3Storage(location, wrong).create_if_absent("a", b"1"),
        lambda: S3Storage(location, {**options, "key": "nobody"}).list(""),
    ):
        error = refusal(call)
        assert error.condition == "STATE_STORE_ACCESS_DENIED"
        assert "credentials" in str(error)
        assert planted not in f"{error!r} {error} {error.__cause__!r}"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    bare = {"endpoint_url": options["endpoint_url"]}
    error = refusal(lambda: S3Storage(location, bare).list(""))
    assert error.condition == "STATE_STORE_ACCESS_DENIED"
    error = refusal(lambda: S3Storage(location, {"secrets": planted}))
    assert planted not in str(error)
    assert planted not in caplog.text
    assert planted not in repr(s3_module._Options.of(wrong))


def test_keys_come_from_the_environment_too(on_s3: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    _, location, options = on_s3
    monkeypatch.setenv("AWS_ENDPOINT_URL", options["endpoint_url"])
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", options["key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", options["secret"])
    s3_module._client_of.cache_clear()
    with holdfast.open(location, "n long", "v long") as db, db.update() as store:
        store.put((1,), (2,))
    command = [
        sys.executable,
        "-c",
        "from holdfast.cli import main; main()",
        "get",
        location,
        "1",
        "--json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    s3_module._client_of.cache_clear()
    assert done.returncode == 0, done.stderr
    assert '"v": 2' in done.stdout


def test_a_bucket_that_is_not_there_is_named(on_s3: Remote) -> None:
    _, _, options = on_s3
    storage = S3Storage("s3a://no-such-bucket/x", options)
    for call in (lambda: storage.list(""), lambda: storage.create_if_absent("a", b"")):
        assert "Create the bucket no-such-bucket" in str(refusal(call))
    assert "has no bucket" in str(refusal(lambda: S3Storage("s3:///x", options)))


@pytest.mark.parametrize("location", ["s3://state/x", "hdfs://no-such-host.invalid:8020/x"])
def test_a_host_that_is_not_there_is_refused_at_once(location: str) -> None:
    options = {"endpoint_url": "http://no-such-host.invalid:9000", "key": "k", "secret": "s"}
    remote = (None, location, options if location.startswith("s3") else {})
    error = refusal(lambda: opened(remote).list(""))  # type: ignore[arg-type]
    assert "no such" in str(error).lower()


def test_an_address_without_a_port_says_what_to_write() -> None:
    error = refusal(lambda: HdfsStorage("hdfs://127.0.0.1/x").list(""))
    assert "hdfs://host:port" in str(error)


def test_a_user_without_permission_is_refused_at_once(
    on_hdfs: Remote, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(on_hdfs).write("a", b"1")
    monkeypatch.setenv("HADOOP_USER_NAME", "nobody")
    hdfs_module._client_of.cache_clear()
    try:
        storage = opened(on_hdfs)
        assert bytes(storage.read("a")) == b"1"
        for call in (
            lambda: storage.write("b", b"1"),
            lambda: storage.create_if_absent("c", b"1"),
            lambda: storage.delete("a"),
        ):
            error = refusal(call)
            assert error.condition == "STATE_STORE_ACCESS_DENIED"
            assert "HADOOP_USER_NAME" in str(error)
    finally:
        hdfs_module._client_of.cache_clear()


# Uses a storage, forks, and lets the child use it, too.
FORKER = """
import json, os, sys
from holdfast.backends.locations import open_storage
location, options = sys.argv[1], json.loads(sys.argv[2])
open_storage(location, options).write("a", b"1")
assert bytes(open_storage(location, options).read("a")) == b"1"
if os.fork() == 0:
    try:
        print(bytes(open_storage(location, options).read("a")), flush=True)
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


def test_a_fork_has_a_client_of_its_own_and_is_told_about_hdfs(remote: Remote) -> None:
    _, location, options = remote
    command = [sys.executable, "-c", FORKER, location, json.dumps(options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    if location.startswith("hdfs"):
        assert "spawn" in done.stdout
    else:
        assert done.stdout == "b'1'\n"
