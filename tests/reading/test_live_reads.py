"""A stream's state can be read by anybody while the stream goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sample_roots

import holdfast
from holdfast.backends.locations import open_storage
from holdfast.engine.files.manifest_codec import encode
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Corruption, InvalidArgument, VersionNotFound

# -- what is read --------------------------------------------------------------------------------


def test_a_checkpoint_a_root_and_a_store_of_its_own_are_read_alike(tmp_path: Path) -> None:
    sample_roots.query(tmp_path / "checkpoint" / "holdfast")
    sample_roots.shop(tmp_path / "shop")
    sample_roots.providers(tmp_path / "providers")
    for place in ("checkpoint", "checkpoint/holdfast"):
        assert holdfast.read(tmp_path / place).get("word-1") == (1,)
    assert holdfast.read(tmp_path / "shop").get("Sankar") == (500,)
    assert holdfast.read(tmp_path / "providers/0/1").get(2) == ("default-1",)
    assert holdfast.read(f"file://{tmp_path}/shop").version == 4


def test_a_folder_that_holds_no_state_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    with pytest.raises(
        InvalidArgument, match=r"holds no Holdfast state.*name its checkpoint"
    ) as no:
        holdfast.read(tmp_path / "checkpoint")
    assert no.value.condition == "STATE_STORE_NOT_A_STORE"
    with pytest.raises(InvalidArgument, match="does not exist"):
        holdfast.read(tmp_path / "nowhere")


def test_operator_0_and_the_default_store_are_read_unless_told_otherwise(tmp_path: Path) -> None:
    sample_roots.query(tmp_path)
    state = holdfast.read(tmp_path)
    assert (state.operator, state.store) == (0, "default")
    assert [(info.operator, info.store) for info in state.stores] == [
        (0, "default"), (1, "left"), (1, "right"),
    ]  # fmt: skip
    assert holdfast.read(tmp_path, store="right").get(1) == (b"\x01",)
    assert holdfast.read(tmp_path, operator=1, store="left").get(1) == (0.5,)
    for wrong in [{"store": "middle"}, {"operator": 3}, {"operator": 1}]:
        with pytest.raises(InvalidArgument, match="operator 1, store left"):
            holdfast.read(tmp_path, **wrong)


def test_of_several_stores_the_log_says_which_is_read_and_how_to_choose(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sample_roots.query(tmp_path / "query")
    sample_roots.shop(tmp_path / "shop")
    holdfast.read(tmp_path / "query")
    (told,) = caplog.messages
    assert "reading operator 0, store default. Choose with operator= and store= among" in told
    assert "operator 1, store left, operator 1, store right" in told
    caplog.clear()
    holdfast.read(tmp_path / "query", operator=1, store="left")
    holdfast.read(tmp_path / "shop")
    assert caplog.messages == []


def test_a_state_is_iterated_counted_and_compared_with_another_version(tmp_path: Path) -> None:
    state = holdfast.read(sample_roots.shop(tmp_path))
    assert dict(state) == {("Sankar",): (500,), ("Kun",): (100,)}
    assert (len(state), bool(state.at(0)), len(state.at(0))) == (2, True, 0)
    assert ("Kun" in state, "Jade" in state) == (True, False)
    found = state.diff("two-users")
    assert (found.before, found.after) == (2, 4)
    assert [(each.change, each.key, each.before, each.after) for each in found.changes] == [
        ("removed", ("Jade",), (800,), None),
        ("added", ("Kun",), None, (100,)),
        ("changed", ("Sankar",), (200,), (500,)),
    ]
    older = state.at(2).diff()
    assert (older.before, older.after, older.total) == (1, 2, 1)
    assert len(state.diff(0, limit=1).changes) == 1
    assert state.at(1).diff(4).removed == 1
    with holdfast.open(tmp_path) as db:
        assert db.at(4).diff(2).changes == found.changes


def test_a_key_is_a_tuple_a_dict_or_a_plain_cell(tmp_path: Path) -> None:
    state = holdfast.read(sample_roots.shop(tmp_path))
    assert state.get("Sankar") == state.get(("Sankar",)) == state.get({"user": "Sankar"}) == (500,)
    assert state.get(["Sankar"]) == (500,)
    assert state.get("Jade") is None
    with pytest.raises(InvalidArgument, match="'user'"):
        state.get(7)
    with pytest.raises(InvalidArgument, match="None"):
        state.get(None)


def test_a_plain_cell_is_refused_where_the_key_has_two_columns(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="a string, b int", value="v int", partitions=3)
    with db.update() as store:
        store.put(("x", 1), (10,))
    state = holdfast.read(tmp_path)
    assert state.get(("x", 1)) == state.get({"b": 1, "a": "x"}) == (10,)
    with pytest.raises(InvalidArgument, match="a string, b int"):
        state.get("x")


def test_an_array_is_a_plain_cell_too(tmp_path: Path) -> None:
    db = holdfast.open(tmp_path, key="path array<string>", value="v int")
    with db.update() as store:
        store.put((["a", "b"],), (1,))
    assert holdfast.read(tmp_path).get(["a", "b"]) == (1,)


def test_rows_are_filtered_by_text_and_by_expression(tmp_path: Path) -> None:
    state = holdfast.read(sample_roots.shop(tmp_path))
    for where in ["total > 100", pc.field("total") > 100]:
        assert state.scan(where=where).to_pylist() == [{"user": "Sankar", "total": 500}]
    assert state.scan(columns=["total"], where="user = 'Kun'").to_pydict() == {"total": [100]}
    assert state.scan(columns=["total", "user"]).column_names == ["total", "user"]


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"where": "spent > 1"}, "no column 'spent'"),
        ({"where": pc.field("spent") > 1}, "does not fit the columns user, total"),
        ({"where": pc.field("user") > 1}, "does not fit the columns"),
        ({"where": pc.field("total") + 1}, "does not fit the columns"),
        ({"where": {"user": "Kun"}}, "not dict"),
        ({"columns": ["spent"]}, "no column 'spent'"),
    ],
)
def test_a_filter_that_does_not_fit_is_refused(
    tmp_path: Path, arguments: dict[str, object], hint: str
) -> None:
    for place in (sample_roots.shop(tmp_path / "shop"), tmp_path / "empty"):
        holdfast.open(place, key="user string", value="total long").close()
        with pytest.raises(InvalidArgument, match=hint):
            holdfast.read(place).scan(**arguments)


def test_the_watermark_is_a_time_or_none(tmp_path: Path) -> None:
    sample_roots.query(tmp_path)
    assert holdfast.read(tmp_path).watermark is None
    log = VersionLog(open_storage(tmp_path), Runtime.system())
    newest = log.load(2)
    marks = {"late_ms": 0, "evict_ms": 1_700_000_000_123, "next_ms": 1_700_000_060_000}
    manifest = replace(newest, version=3, parent=2, watermark=marks)
    log.storage.create_if_absent("versions/3", encode(manifest))
    state = holdfast.read(tmp_path)
    assert state.watermark == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)
    assert state.at(2).watermark is None


def test_a_version_before_the_store_was_added_says_so(tmp_path: Path) -> None:
    sample_roots.query(tmp_path)
    log = VersionLog(open_storage(tmp_path), Runtime.system())
    manifest = log.load(1)
    log.storage.delete("versions/1")
    first = replace(manifest, operators={0: manifest.operators[0]})
    log.storage.create_if_absent("versions/1", encode(first))
    state = holdfast.read(tmp_path, store="left")
    assert state.version == 2
    with pytest.raises(VersionNotFound, match=r"no store 'left' in operator 1: it was added later"):
        state.at(1)


# -- other tools ---------------------------------------------------------------------------------


def test_arrow_and_pandas_get_the_whole_state(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    state = holdfast.read(sample_roots.shop(tmp_path))
    expected = {"Sankar": 500, "Kun": 100}
    frame = state.to_pandas()
    assert dict(zip(frame["user"], frame["total"], strict=True)) == expected
    assert {row["user"]: row["total"] for row in state.to_arrow().to_pylist()} == expected


def test_duckdb_queries_the_state_by_its_variable(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    state = holdfast.read(sample_roots.shop(tmp_path))
    assert state.num_keys == 2
    query = "select user, total from state where total > 10 order by total"
    assert duckdb.sql(query).fetchall() == [("Kun", 100), ("Sankar", 500)]
    connection = duckdb.connect()
    connection.register("totals", state)
    assert connection.sql("select sum(total) from totals").fetchall() == [(600,)]
    assert connection.sql("select count(*) from totals").fetchall() == [(2,)]


def test_polars_takes_the_state_and_its_arrow_table(tmp_path: Path) -> None:
    import polars

    state = holdfast.read(sample_roots.shop(tmp_path))
    for frame in (polars.DataFrame(state), polars.from_arrow(state.to_arrow())):
        assert sorted(frame.rows()) == [("Kun", 100), ("Sankar", 500)]
        assert frame.schema == {"user": polars.String, "total": polars.Int64}
    old = polars.DataFrame(state.at("two-users"))
    assert old.filter(polars.col("total") > 500).rows() == [("Jade", 800)]


def test_duckdb_and_polars_get_cells_of_every_kind(tmp_path: Path) -> None:
    import duckdb
    import polars

    value = (
        "a array<long>, s struct<x: double, y: string>, d decimal(10,2), b binary, t timestamp, "
        "n timestamp_ntz, f boolean, i byte"
    )
    when = datetime(2024, 1, 2, 3, 4, 5, 6)
    row = ([1, None], (0.5, "y"), Decimal("1.25"), b"\x00", when.replace(tzinfo=UTC), when, True, 3)
    db = holdfast.open(tmp_path, key="id string, day date", value=value)
    with db, db.update() as store:
        store.put(("k", when.date()), row)
        store.put(("nulls", when.date()), (None,) * 8)
    state = holdfast.read(tmp_path)
    expected = sorted(state.to_arrow().to_pylist(), key=lambda cells: str(cells["id"]))
    assert polars.DataFrame(state).sort("id").to_dicts() == expected
    for given in (state, state.to_arrow()):
        connection = duckdb.connect()
        connection.register("kinds", given)
        found = connection.sql("select * from kinds order by id").fetchall()
        assert found == [tuple(cells.values()) for cells in expected]


def test_the_arrow_stream_has_the_rows_and_takes_a_wanted_schema(tmp_path: Path) -> None:
    state = holdfast.read(sample_roots.shop(tmp_path))
    table = pa.table(state)
    assert table.schema == state.to_arrow().schema
    assert table.sort_by("user").to_pydict() == {"user": ["Kun", "Sankar"], "total": [100, 500]}
    wanted = pa.schema([("user", pa.large_string()), ("total", pa.int64())])
    capsule = state.__arrow_c_stream__(wanted.__arrow_c_schema__())
    assert pa.RecordBatchReader._import_from_c_capsule(capsule).read_all().schema.types == [
        pa.large_string(), pa.int64(),
    ]  # fmt: skip


def test_an_empty_state_is_a_table_without_rows(tmp_path: Path) -> None:
    holdfast.open(tmp_path, key="user string", value="total long").close()
    state = holdfast.read(tmp_path)
    assert (state.version, state.num_keys, state.get("Kun")) == (0, 0, None)
    assert pa.table(state).to_pydict() == {"user": [], "total": []}


def test_text_forms_fit_a_line_and_a_notebook(tmp_path: Path) -> None:
    state = holdfast.read(sample_roots.shop(tmp_path / "a<b"))
    assert repr(state) == (
        f"LiveState[{tmp_path}/a<b, operator=0, store=default, version=4, keys=2]"
    )
    assert "a&lt;b" in state._repr_html_()
    assert "<td>user string</td>" in state._repr_html_()
    assert len(repr(state.stores[0])) < 300


# -- while the stream goes on --------------------------------------------------------------------


def test_a_state_stays_at_its_version_until_refreshed(tmp_path: Path) -> None:
    db = holdfast.open(sample_roots.shop(tmp_path))
    state = holdfast.read(tmp_path)
    with db.update() as store:
        store.put(("Kun",), (101,))
    assert (state.version, state.get("Kun")) == (4, (100,))
    assert state.refresh() is state
    assert (state.version, state.get("Kun")) == (5, (101,))
    assert state.refresh().version == 5


def test_versions_are_read_by_number_and_tag_and_stay_where_they_are(tmp_path: Path) -> None:
    db = holdfast.open(sample_roots.shop(tmp_path))
    state = holdfast.read(tmp_path)
    old = state.at(2)
    assert (old.version, old.get("Jade")) == (2, (800,))
    assert state.at("two-users").version == 2
    assert state.version == 4
    with db.update() as store:
        store.put(("Kun",), (101,))
    assert state.at(5).get("Kun") == (101,)
    assert old.refresh().version == 5
    with pytest.raises(VersionNotFound, match="0–5"):
        state.at(9)
    with pytest.raises(VersionNotFound, match="two-users"):
        state.at("three-users")


def test_a_version_retired_under_the_reader_says_to_refresh(tmp_path: Path) -> None:
    conf = {"min_versions_to_retain": 2, "grace_period_ms": 0, "pack_threshold_bytes": 0}
    db = holdfast.open(tmp_path, key="k long", value="v long", partitions=2, conf=conf)
    for version in range(3):
        with db.update() as store:
            store.put_many(pa.table({"k": range(100), "v": [version] * 100}))
    state, streamed = holdfast.read(tmp_path), holdfast.read(tmp_path)
    for version in range(3, 8):
        with db.update() as store:
            store.put_many(pa.table({"k": range(100), "v": [version] * 100}))
        db.maintain(snapshot=True)
    for read in (lambda: state.get(1), state.scan, state.to_arrow):
        with pytest.raises(VersionNotFound, match=r"Version 3 .*refresh"):
            read()
    with pytest.raises(Exception, match=r"Version 3 .*refresh"):
        pa.table(streamed)
    assert state.refresh().get(1) == (7,)
    assert pa.table(streamed.refresh()).num_rows == 100
    db.close()


def test_damage_is_not_taken_for_a_version_that_was_retired(tmp_path: Path) -> None:
    conf = {"pack_threshold_bytes": 0, "keep_copies": "off"}
    db = holdfast.open(tmp_path, key="k long", value="v long", conf=conf)
    with db.update() as store:
        store.put((1,), (1,))
    db.close()
    state = holdfast.read(tmp_path)
    (delta,) = (tmp_path / "0/0").glob("*.delta")
    sample_roots.flip_byte(delta, at=delta.stat().st_size - 5)
    with pytest.raises(Corruption):
        state.scan()


def test_a_damaged_newest_version_is_named_and_the_one_before_it_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sample_roots.shop(tmp_path)
    sample_roots.flip_byte(tmp_path / "versions" / "4", at=80)
    state = holdfast.read(tmp_path)
    assert (state.version, state.get("Jade")) == (3, (800,))
    assert "Version 4" in caplog.text
    with pytest.raises(Corruption):
        state.at(4)


WRITER = """
import sys, holdfast, pyarrow as pa
conf = {"min_versions_to_retain": 3, "grace_period_ms": 200, "pack_threshold_bytes": 0,
        "min_deltas_for_snapshot": 3}
db = holdfast.open(sys.argv[1], key="k long", value="v long", partitions=3, conf=conf)
for version in range(1, 121):
    with db.update() as store:
        store.put_many(pa.table({"k": list(range(200)), "v": [version] * 200}))
    if version % 4 == 0:
        db.maintain()
db.close()
"""

READER = """
import json, sys, time, holdfast
from holdfast.errors import VersionNotFound
deadline = time.monotonic() + 400
while True:
    try:
        state = holdfast.read(sys.argv[1])
        break
    except holdfast.InvalidArgument:
        assert time.monotonic() < deadline
        time.sleep(0.01)
seen, retired, versions = 0, 0, set()
while state.version < 120:
    assert time.monotonic() < deadline
    state.refresh()
    try:
        values = set(state.scan().column("v").to_pylist())
        one = state.get(7)
    except VersionNotFound:
        retired += 1
        continue
    assert values == ({state.version} if state.version else set()), (state.version, values)
    assert one == ((state.version,) if state.version else None)
    versions.add(state.version)
    seen += 1
assert not {"pyspark", "py4j", "duckdb"} & set(sys.modules)
print(json.dumps({"seen": seen, "versions": len(versions), "retired": retired}))
"""


def test_another_process_reads_whole_versions_while_a_writer_commits_and_cleans_up(
    tmp_path: Path,
) -> None:
    root = str(tmp_path / "root")
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, root], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", WRITER, root], capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, done.stderr
        printed, errors = reader.communicate(timeout=500)
    finally:
        reader.kill()
    assert reader.returncode == 0, errors.decode()
    told = json.loads(printed)
    assert told["versions"] > 5, told
    assert told["seen"] > told["retired"], told
