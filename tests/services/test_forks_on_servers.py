"""Forks between roots on real servers, and streams that continue from them."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import sample_roots
from pyspark.sql import SparkSession
from remotes import Remote
from test_streams_on_remote_roots import check_every_version, run, s3a, totals_of, write_batches  # noqa: F401
from view_databases import ViewDatabase

import holdfast
from holdfast import admin, reading
from holdfast.backends.locations import open_storage
from holdfast.backends.s3 import S3Storage
from holdfast.engine.storage import Storage
from holdfast.errors import IllegalState, InvalidArgument
from holdfast.testing.faults import Crash
from servers import Hdfs, Minio

pytestmark = pytest.mark.services


def put(location: str, options: dict[str, str], user: str) -> None:
    with holdfast.open(location, options=options) as db, db.update() as update:
        update.put((user,), (1,))


def users(location: str, options: dict[str, str]) -> set[str]:
    table = holdfast.read(location, options=options).to_arrow()
    return {row["user"] for row in table.to_pylist()}


def on_s3(minio: Minio) -> str:
    return f"s3://state/a fork %20/{secrets.token_hex(4)}"


def test_a_fork_on_s3_is_copied_by_the_server(
    minio: Minio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, new, options = on_s3(minio), on_s3(minio), minio.options
    merged = open_storage(sample_roots.merged_shop(tmp_path / "merged"))
    admin.plan_copy(merged, open_storage(source, options)).run()
    real, seen = S3Storage.adopt, []

    def adopt(self: S3Storage, other: Storage, path: str) -> bool:
        if len(seen) == 2:
            raise Crash(path)
        seen.append(path)
        return real(self, other, path)

    plan = admin.fork(source, new, at=6, options=options)
    assert not plan.moves_bytes
    with monkeypatch.context() as patched:
        patched.setattr(S3Storage, "adopt", adopt)
        with pytest.raises(Crash):
            plan.run()
    with pytest.raises(IllegalState, match="unfinished copy or fork"):
        holdfast.read(new, options=options)
    done = admin.fork(source, new, options=options).run()
    assert done.detail["written_files"] == 0
    assert done.detail["adopted_files"] == plan.files
    put(new, options, "of the fork")
    put(source, options, "of the original")
    assert users(new, options) - users(source, options) == {"of the fork"}
    assert users(source, options) - users(new, options) == {"of the original"}
    for place in (source, new):
        assert reading.verify(reading.open_root(place, options=options)).intact
    assert reading.open_root(source, options=options).tags == {}


def test_a_store_is_forked_to_every_kind_of_server_and_home_again(
    remote: Remote, tmp_path: Path
) -> None:
    _, location, options = remote
    shop = sample_roots.shop(tmp_path / "shop")
    admin.fork(shop, location, at="two-users", options=options).run()
    assert users(location, options) == {"Sankar", "Jade"}
    put(location, options, "Kun")
    admin.fork(location, tmp_path / "home", options=options).run()
    assert users(str(tmp_path / "home"), {}) == {"Sankar", "Jade", "Kun"}
    assert reading.verify(reading.open_root(tmp_path / "home")).intact
    assert reading.open_root(location, options=options).tags == {}


def test_a_view_of_the_original_is_refused_to_the_fork(
    database: ViewDatabase, tmp_path: Path
) -> None:
    shop, new = sample_roots.shop(tmp_path / "shop"), tmp_path / "fork"
    view = {
        "view": database.location(database.table("forked")),
        "view_options": dict(database.options),
    }
    with holdfast.open(shop, **view) as db:
        shown = db.version
    admin.fork(shop, new).run()
    with pytest.raises(InvalidArgument, match="shows other state") as refused:
        holdfast.open(new, **view)
    assert refused.value.condition == "STATE_STORE_NOT_A_VIEW"
    with holdfast.open(shop, **view) as db, db.update() as update:
        update.put(("Jade",), (1,))
    assert database.totals(database.table("forked"))["Jade"] == (1, shown + 1)
    own = {**view, "view": database.location(database.table("own"))}
    with holdfast.open(new, **own):
        assert set(database.totals(database.table("own"))) == {"Sankar", "Kun"}


@pytest.mark.spark
def test_a_stream_is_forked_from_a_local_disk_to_hdfs(
    spark: SparkSession, hdfs: Hdfs, tmp_path: Path
) -> None:
    source, cp = tmp_path / "in", tmp_path / "cp"
    new = f"{hdfs.url}/forks/{secrets.token_hex(4)}/a fork"
    write_batches(source, 3)
    run(spark, source, str(cp))
    result = admin.fork(cp, new, at=2).run()
    assert result.detail["written_files"] > 0
    expected = write_batches(source, 4)
    run(spark, source, new)
    run(spark, source, str(cp))
    assert totals_of(holdfast.read(f"{new}/holdfast")) == expected[-1]
    assert totals_of(holdfast.read(f"{new}/holdfast").at(3)) == expected[1]
    check_every_version(str(cp), {}, expected)


@pytest.mark.spark
def test_a_stream_is_forked_with_its_state_from_s3_to_s3(
    spark: SparkSession,
    s3a: Minio,  # noqa: F811
    tmp_path: Path,
) -> None:
    source, cp, new = tmp_path / "in", tmp_path / "cp", tmp_path / "fork"
    old_state, state = on_s3(s3a), on_s3(s3a)
    write_batches(source, 3)
    run(spark, source, str(cp), stateLocation=old_state)
    plan = admin.fork(
        old_state, new, at=2, state_location=state, checkpoint=cp, options=s3a.options
    )
    assert plan.run().detail["written_files"] == 0
    expected = write_batches(source, 4)
    run(spark, source, str(new), stateLocation=state)
    assert totals_of(holdfast.read(state, options=s3a.options)) == expected[-1]
    run(spark, source, str(cp), stateLocation=old_state)
    check_every_version(old_state, s3a.options, expected)
