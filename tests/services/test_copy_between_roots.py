"""State moves between roots of every kind, on real servers, and a stream moves with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

import pytest
import sample_roots
from copies import blobs
from pyspark.sql import SparkSession
from test_streams_on_remote_roots import check_every_version, run, s3a, write_batches  # noqa: F401

import holdfast
from holdfast import reading
from holdfast.admin import plan_copy
from holdfast.backends.local import LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.engine.storage import Storage
from holdfast.errors import IllegalState
from holdfast.schemes import scheme_of
from holdfast.testing.faults import Crash, Fault, FaultyStorage, crash_at

pytestmark = pytest.mark.services
Place = tuple[str, dict[str, str]]
"""A new root and how it is reached."""


def on_hdfs(request: pytest.FixtureRequest) -> Place:
    return f"{request.getfixturevalue('hdfs').url}/copies/{secrets.token_hex(4)}", {}


def on_s3(request: pytest.FixtureRequest) -> Place:
    return f"s3://state/copies/{secrets.token_hex(4)}", request.getfixturevalue("minio").options


def on_cassandra(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue("cassandra")
    name = f"copies/{secrets.token_hex(4)}"
    return f"cassandra://{server.address}/state/{name}", server.options


def on_dynamodb(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue("dynamodb")
    return f"dynamodb://{server.region}/copies/{secrets.token_hex(4)}", server.options


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "hdfs": on_hdfs,
    "s3": on_s3,
    "cassandra": on_cassandra,
    "dynamodb": on_dynamodb,
}


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param](request)


@pytest.fixture
def merged(tmp_path: Path) -> LocalStorage:
    """Versions 0 to 7, segments in files of their own, a snapshot with fallbacks."""
    return LocalStorage(sample_roots.merged_shop(tmp_path / "merged"))


def assert_same(storage: Storage, expected: Storage) -> None:
    assert blobs(storage) == blobs(expected)
    assert reading.verify(reading.Root(storage)).intact


def test_state_goes_from_root_to_root_and_comes_home_the_same(
    request: pytest.FixtureRequest, merged: LocalStorage, tmp_path: Path
) -> None:
    tour = [open_storage(*find(request)) for find in PLACES.values()]
    here: Storage = merged
    for there in (*tour, LocalStorage(tmp_path / "home")):
        copied = plan_copy(here, there).run()
        assert copied.versions == tuple(range(8))
        assert_same(there.source, merged)
        here = there
    with holdfast.open(tmp_path / "home") as db, db.update() as store:
        store.put(("Jade",), (800,))
    assert plan_copy(here, tour[0]).run().versions == tuple(range(9))


def test_a_copy_to_a_server_that_ends_halfway_is_not_opened_and_goes_on(
    merged: LocalStorage, place: Place
) -> None:
    target = open_storage(*place).source
    calls = FaultyStorage(LocalStorage(Path(merged.location).parent / "watched"))
    plan_copy(merged, calls, threads=1).run()
    changing = [call for call in calls.calls if call.changes]
    for call in changing[3 :: len(changing) // 4]:
        faulty = FaultyStorage(target, crash_at(call.number, Fault.CRASH_AFTER))
        with pytest.raises(Crash):
            plan_copy(merged, faulty, threads=1).run()
        faulty.bury()
        with pytest.raises(IllegalState, match="unfinished copy"):
            holdfast.read(place[0], options=place[1])
    plan_copy(merged, target).run()
    assert_same(target, merged)


@pytest.mark.spark
@pytest.mark.usefixtures("s3a")
@pytest.mark.parametrize("place", ["cassandra", "dynamodb", "s3"], indirect=True)
def test_a_stream_goes_on_where_its_state_was_copied_to(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    location, options = place
    write_batches(tmp_path / "in", 2)
    run(spark, tmp_path / "in", str(tmp_path / "cp"))
    copying = plan_copy(open_storage(tmp_path / "cp" / "holdfast"), open_storage(location, options))
    assert copying.run().versions == (0, 1, 2)
    expected = write_batches(tmp_path / "in", 4)
    scheme = scheme_of(location)
    assert scheme is not None
    settings = {f"spark.holdfast.{scheme.name}.{name}": text for name, text in options.items()}
    for name, text in settings.items() if scheme.is_set_in_spark else ():
        spark.conf.set(name, text)
    try:
        run(spark, tmp_path / "in", str(tmp_path / "cp"), stateLocation=location)
    finally:
        for name in settings:
            spark.conf.unset(name)
    check_every_version(location, options, expected)
