"""Any root can be looked into: what is there, since when, in which files, and whether intact."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import sample_roots
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from holdfast.errors import Corruption, InvalidArgument, VersionNotFound
from holdfast.reading import json as shapes
from holdfast.reading import open_root, open_roots, parse_where, verify
from holdfast.reading.cells import (
    cell_json,
    duration,
    duration_text,
    parse_json_row,
    parse_row,
    row_json,
)
from holdfast.types import RowCodec, StructType, parse_schema

# -- finding roots -------------------------------------------------------------------------------


def test_every_kind_of_root_is_recognised(tmp_path: Path) -> None:
    sample_roots.shop(tmp_path / "database")
    sample_roots.query(tmp_path / "query")
    sample_roots.providers(tmp_path / "providers")
    assert open_root(tmp_path / "database").kind == "database"
    assert open_root(tmp_path / "query").kind == "query"
    assert open_root(tmp_path / "providers/0/1").kind == "store"


def test_folder_of_providers_lists_each_store_named_ones_inside_default_ones(
    tmp_path: Path,
) -> None:
    roots = open_roots(sample_roots.providers(tmp_path))
    places = [Path(root.location).relative_to(tmp_path).as_posix() for root in roots]
    assert places == ["0/0", "0/0/left", "0/1"]
    assert [root.info().newest for root in roots] == [2, 1, 3]


def test_one_of_several_roots_is_chosen_by_its_store(tmp_path: Path) -> None:
    sample_roots.providers(tmp_path)
    root = open_root(tmp_path, partition=0, store="left")
    assert Path(root.location) == tmp_path / "0/0/left"
    with pytest.raises(InvalidArgument, match=r"several stores.*0/0, .*0/0/left, .*0/1"):
        open_root(tmp_path)
    with pytest.raises(InvalidArgument, match="no such store"):
        open_root(tmp_path, operator=7)


def test_checkpoint_of_a_query_leads_to_the_state_inside(tmp_path: Path) -> None:
    sample_roots.query(tmp_path / "checkpoint" / "holdfast")
    (root,) = open_roots(tmp_path / "checkpoint")
    assert root.location.endswith("checkpoint/holdfast")


def test_folder_that_is_no_store_is_refused_with_what_to_do(tmp_path: Path) -> None:
    sample_roots.shop(tmp_path / "shop")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for place, hint in [
        ("empty", "holds no Holdfast state"),
        ("file", "is a file"),
        ("nowhere", "does not exist"),
        ("shop/packs", "inside a root. Name the root itself: .*shop"),
    ]:
        with pytest.raises(InvalidArgument, match=hint) as caught:
            open_roots(tmp_path / place)
        assert caught.value.condition == "STATE_STORE_NOT_A_STORE"


def test_search_for_roots_goes_no_deeper_than_a_store_can_be(tmp_path: Path) -> None:
    sample_roots.shop(tmp_path / "a/b/c/d/e/f/shop")
    with pytest.raises(InvalidArgument):
        open_roots(tmp_path)


def test_root_in_memory_and_through_fsspec_can_be_inspected(tmp_path: Path) -> None:
    db = holdfast.open("memory://inspected", key="k int", value="v int")
    with db.update() as store:
        store.put((1,), (2,))
    assert open_root("memory://inspected").store().get((1,)) == (2,)
    sample_roots.shop(tmp_path)
    root = open_root(f"simplecache::file://{tmp_path}")
    assert root.store().get(("Sankar",)) == (500,)


# -- versions ------------------------------------------------------------------------------------


def test_versions_are_found_by_number_text_and_tag(tmp_path: Path) -> None:
    root = open_root(sample_roots.shop(tmp_path))
    assert [root.resolve(at) for at in (None, "newest", 3, "3", "two-users")] == [4, 4, 3, 3, 2]
    with pytest.raises(VersionNotFound, match=r"Version 9 is not in .*, which has 0–4"):
        root.resolve(9)
    with pytest.raises(VersionNotFound, match=r"no version or tag 'x'. Tags: two-users"):
        root.resolve("x")


def test_history_is_newest_first_with_figures_and_tags(tmp_path: Path) -> None:
    root = open_root(sample_roots.shop(tmp_path))
    lines = root.history()
    assert [line.version for line in lines] == [4, 3, 2, 1, 0]
    assert [line.num_keys for line in lines] == [2, 2, 2, 1, 0]
    assert [line.changed_rows for line in lines] == [2, 1, 1, 1, 0]
    assert [line.tags for line in lines if line.tags] == [("two-users",)]
    assert [line.version for line in root.history(limit=2)] == [4, 3]


def test_history_and_older_versions_survive_a_damaged_newest_manifest(tmp_path: Path) -> None:
    sample_roots.shop(tmp_path)
    sample_roots.flip_byte(tmp_path / "versions/4")
    root = open_root(tmp_path)
    newest, *older = root.history()
    assert newest.problem is not None
    assert "checksum" in newest.problem
    assert [line.num_keys for line in older] == [2, 2, 1, 0]
    assert root.store().get(("Sankar",), at=3) == (500,)
    with pytest.raises(Corruption):
        root.store().get(("Sankar",))


def test_query_root_shows_every_operator_store_and_partition(tmp_path: Path) -> None:
    root = open_root(sample_roots.query(tmp_path))
    stores = root.info().stores
    assert [(s.operator, s.store, len(s.partitions), s.num_keys) for s in stores] == [
        (0, "default", 2, 4), (1, "left", 2, 4), (1, "right", 2, 4),
    ]  # fmt: skip
    version = root.version(2, operator=1, partition=0)
    assert version.batch == {"id": 1, "query_id": "q"}
    assert [(s.store, [p.partition for p in s.partitions]) for s in version.stores] == [
        ("left", [0]), ("right", [0]),
    ]  # fmt: skip
    assert root.store(0).get(("word-2",)) == (1,)
    assert root.store(1, "right").get((3,), at=1) == (b"\0",)
    with pytest.raises(
        InvalidArgument, match=r"several stores.*operator 0, store default, partitions"
    ):
        root.store()
    with pytest.raises(InvalidArgument, match="no partition 5; it has 0–1"):
        root.store(0, partition=5)
    with pytest.raises(InvalidArgument, match="nothing like that"):
        root.history(operator=9)


def test_provider_store_of_any_partition_finds_its_keys(tmp_path: Path) -> None:
    store = open_root(sample_roots.providers(tmp_path) / "0/1").store()
    assert store.get((2,)) == ("default-1",)
    assert store.get((2,), at=1) is None


# -- reading -------------------------------------------------------------------------------------


def test_key_history_names_the_versions_that_changed_it(tmp_path: Path) -> None:
    store = open_root(sample_roots.shop(tmp_path)).store()
    found = [(line.version, line.change, line.value) for line in store.key_history(("Sankar",))]
    assert found == [(1, "added", (200,)), (3, "changed", (500,))]
    assert [line.change for line in store.key_history(("Jade",))] == ["added", "removed"]
    assert store.key_history(("Nobody",)) == []


def test_scan_takes_columns_a_filter_and_a_partition(tmp_path: Path) -> None:
    root = open_root(sample_roots.shop(tmp_path))
    store = root.store()
    assert sorted(store.scan(at=2).to_pylist(), key=str) == [
        {"user": "Jade", "total": 800}, {"user": "Sankar", "total": 200},
    ]  # fmt: skip
    assert store.scan(2, ["user"], pc.field("total") > 500).to_pylist() == [{"user": "Jade"}]
    parts = [root.store(partition=n).scan().num_rows for n in range(2)]
    assert sum(parts) == 2
    with pytest.raises(InvalidArgument, match="no column 'x'"):
        store.head(1, columns=["x"])


def test_head_says_whether_there_are_more(tmp_path: Path) -> None:
    store = open_root(sample_roots.shop(tmp_path)).store()
    assert (store.head(1)[0].num_rows, store.head(1)[1]) == (1, True)
    assert (store.head(2)[0].num_rows, store.head(2)[1]) == (2, False)
    table, more = store.head(5, at=0)
    assert (table.num_rows, table.column_names, more) == (0, ["user", "total"], False)


def test_diff_lists_added_changed_and_removed_keys_both_ways(tmp_path: Path) -> None:
    store = open_root(sample_roots.shop(tmp_path)).store()
    diff = store.diff("two-users", 4)
    assert (diff.before, diff.after, diff.added, diff.changed, diff.removed) == (2, 4, 1, 1, 1)
    assert [(c.change, c.key, c.before, c.after) for c in diff.changes] == [
        ("removed", ("Jade",), (800,), None),
        ("added", ("Kun",), None, (100,)),
        ("changed", ("Sankar",), (200,), (500,)),
    ]
    back = store.diff(4, 2)
    assert [(c.change, c.before, c.after) for c in back.changes] == [
        ("added", None, (800,)), ("removed", (100,), None), ("changed", (500,), (200,)),
    ]  # fmt: skip
    cut = store.diff(2, 4, limit=1)
    assert (len(cut.changes), cut.total) == (1, 3)


@pytest.mark.parametrize("seed", range(3))
def test_diff_of_any_two_versions_agrees_with_a_dict(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    db = holdfast.open(
        tmp_path,
        key="k int, t int",
        value="v double, m map<string,int>",
        partitions=2,
        key_index_ordinal=1,
        conf={"min_deltas_for_snapshot": 4},
    )
    states: list[dict[Any, Any]] = [{}]
    bound = -1
    for number in range(12):
        state = dict(states[-1])
        with db.update() as store:
            for _ in range(draw.randrange(6)):
                key = (draw.randrange(8), draw.randrange(20))
                if draw.random() < 0.3:
                    store.remove(key)
                    state.pop(key, None)
                elif key[1] > bound:
                    value = (draw.choice([0.0, -0.0, float("nan"), 1.5]), {"a": draw.randrange(2)})
                    store.put(key, value)
                    state[key] = value
            if draw.random() < 0.2:
                bound = max(bound, draw.randrange(10))
                store.evict(bound)
                state = {k: v for k, v in state.items() if k[1] > bound}
        states.append(state)
        if number % 3 == 2:
            db.maintain()
    store = open_root(tmp_path).store()
    for before, old in enumerate(states):
        for after, new in enumerate(states):
            expected = {
                ("added" if k not in old else "removed" if k not in new else "changed", k)
                for k in old.keys() | new.keys()
                if repr(old.get(k)) != repr(new.get(k))
            }
            diff = store.diff(before, after)
            assert {(c.change, c.key) for c in diff.changes} == expected, (before, after)
            assert diff.total == len(expected)


# -- files ---------------------------------------------------------------------------------------


def test_chain_names_kinds_versions_packs_and_fallbacks(tmp_path: Path) -> None:
    sample_roots.merged_shop(tmp_path / "merged")
    (chain,) = open_root(tmp_path / "merged").chains()
    newest, snapshot = chain.segments
    assert (newest.kind, newest.low, newest.high, newest.rows) == ("delta", 7, 7, 1)
    assert (snapshot.kind, snapshot.low, snapshot.high, snapshot.rows) == ("snapshot", 1, 6, 7)
    assert [part.low for part in snapshot.fallbacks] == [6, 5, 4, 3, 2, 1]
    assert all((tmp_path / "merged" / part.path).exists() for part in snapshot.fallbacks)
    sample_roots.shop(tmp_path / "packed")
    chains = open_root(tmp_path / "packed").chains(4)
    newest_two = [chain.segments[0] for chain in chains if chain.segments[0].high == 4]
    assert all(ref.path.startswith("packs/4-") for ref in newest_two)
    assert sorted(ref.offset for ref in newest_two if ref.offset is not None)[0] == 0


def test_chain_marks_a_missing_file(tmp_path: Path) -> None:
    sample_roots.merged_shop(tmp_path)
    next(tmp_path.glob("0/0/*.snapshot")).unlink()
    (chain,) = open_root(tmp_path).chains()
    assert [segment.present for segment in chain.segments] == [True, False]


def test_verify_of_an_intact_root_checks_every_byte_with_progress(tmp_path: Path) -> None:
    sample_roots.merged_shop(tmp_path)
    seen: list[tuple[int, int, str]] = []
    result = verify(open_root(tmp_path), lambda *step: seen.append(step))
    on_disk = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert result.intact
    assert result.checked_bytes == sum(path.stat().st_size for path in on_disk)
    assert {check.path for check in result.files} == {
        path.relative_to(tmp_path).as_posix() for path in on_disk
    }
    assert result.readable == tuple(range(8))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1][0] == seen[-1][1] > 0


def test_verify_names_damaged_files_and_the_versions_that_need_them(tmp_path: Path) -> None:
    sample_roots.merged_shop(tmp_path)
    delta = next(tmp_path.glob("0/0/4-*.delta"))
    sample_roots.flip_byte(delta)
    sample_roots.flip_byte(tmp_path / "versions/2", at=70)
    result = verify(open_root(tmp_path))
    assert {check.path for check in result.problems} == {
        delta.relative_to(tmp_path).as_posix(), "versions/2",
    }  # fmt: skip
    bad = next(check for check in result.problems if check.kind == "delta")
    assert bad.versions == (4, 5, 6, 7)
    # Version 7 reads the snapshot; 4 to 6 need the delta itself.
    assert result.readable == (0, 1, 3, 7)
    assert result.broken == (2, 4, 5, 6)


def test_damaged_snapshot_is_reported_and_its_version_still_readable(tmp_path: Path) -> None:
    sample_roots.merged_shop(tmp_path)
    sample_roots.flip_byte(next(tmp_path.glob("0/0/*.snapshot")))
    root = open_root(tmp_path)
    result = verify(root)
    assert [check.kind for check in result.problems] == ["snapshot"]
    assert result.broken == ()
    assert root.store().get(("user-3",)) == (3,)


def test_verify_reports_a_damaged_tag_and_one_that_leads_nowhere(tmp_path: Path) -> None:
    sample_roots.shop(tmp_path)
    (tmp_path / "tags/broken").write_text("not a tag")
    (tmp_path / "versions/2").unlink()
    result = verify(open_root(tmp_path))
    assert {check.path for check in result.problems} == {"tags/broken", "tags/two-users"}


def test_verify_never_says_a_value_of_the_state(tmp_path: Path) -> None:
    sample_roots.merged_shop(tmp_path)
    for path in tmp_path.glob("0/0/*"):
        sample_roots.flip_byte(path, at=path.stat().st_size // 2)
    result = verify(open_root(tmp_path))
    assert result.problems
    assert not any("Sankar" in str(check.problem) for check in result.problems)


# -- cells and filters ---------------------------------------------------------------------------

CELLS = [
    ("string", "Jade", "Jade"),
    ("long", "-5", -5),
    ("double", "1.5", 1.5),
    ("boolean", "TRUE", True),
    ("decimal(10,2)", "3.14", Decimal("3.14")),
    ("binary", "0xff00", b"\xff\x00"),
    ("date", "2026-01-31", date(2026, 1, 31)),
    ("timestamp", "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamp", "2026-01-31 12:00:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamp_ntz", "2026-01-31T12:00:00", datetime(2026, 1, 31, 12)),
    ("interval day to second", "P1DT2H", timedelta(days=1, hours=2)),
    ("interval year to month", "14", 14),
    ("array<int>", "[1, null]", [1, None]),
    ("struct<a:int,b:string>", '{"a": 1, "b": "x"}', (1, "x")),
]


@pytest.mark.parametrize(("kind", "text", "cell"), CELLS, ids=[f"{k}-{t}" for k, t, _ in CELLS])
def test_cell_is_read_by_its_type_and_back_from_json(kind: str, text: str, cell: Any) -> None:
    schema = parse_schema(f"k {kind}")
    (row,) = [parse_row(schema, [text])]
    assert row == (cell,)
    canonical = RowCodec(schema).encode(row)
    shown = row_json(schema, canonical)
    assert parse_json_row(schema, json.dumps(shown)) == canonical


@pytest.mark.parametrize(
    ("kind", "text"),
    [("int", "secret"), ("date", "secret"), ("binary", "secret"), ("array<int>", "secret"),
     ("boolean", "secret"), ("interval day to second", "secret"), ("decimal(5,1)", "secret")],
)  # fmt: skip
def test_cell_that_does_not_fit_is_refused_by_column_and_not_by_value(kind: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match="column 'k'") as caught:
        parse_row(parse_schema(f"k {kind}"), [text])
    assert "secret" not in caught.value.message


def test_json_of_what_json_has_no_word_for() -> None:
    schema = parse_schema("a double, b map<int,string>, c map<string,double>")
    row = (float("nan"), {1: "x"}, {"y": float("-inf")})
    assert row_json(schema, row) == {"a": "NaN", "b": [[1, "x"]], "c": {"y": "-Infinity"}}
    assert cell_json(parse_schema("d time(6)").fields[0].type, None) is None


@pytest.mark.parametrize("text", ["PT0S", "P3D", "-PT0.5S", "P1DT2H3M4.000005S"])
def test_durations_go_both_ways(text: str) -> None:
    assert duration_text(duration(text)) == text


PEOPLE = pa.table(
    {
        "name": ["Ann", "Bo", None, "d'Arc"],
        "age": pa.array([30, None, 12, 19], pa.int32()),
        "born": pa.array([date(1990, 1, 1), date(2000, 1, 1), None, date(1412, 1, 6)]),
        "pay": pa.array([Decimal("1.50"), Decimal("0.00"), None, Decimal("9.99")]),
        "ok": [True, False, None, True],
        "at": [{"x y": 1}, {"x y": 2}, {"x y": 3}, {"x y": 4}],
    }
)
COLUMNS = parse_schema(
    "name string, age int, born date, pay decimal(10,2), ok boolean, at struct<`x y`:long>"
).struct


@pytest.mark.parametrize(
    ("where", "rows"),
    [
        ("age > 18", [0, 3]),
        ("age >= 12 and age <= 19", [2, 3]),
        ("age = 30 or name = 'Bo'", [0, 1]),
        ("not age = 30", [2, 3]),
        ("name = 'd''Arc'", [3]),
        ('name == "Bo"', [1]),
        ("name is null", [2]),
        ("name is not null and not (age < 20)", [0]),
        ("age in (12, 30)", [0, 2]),
        ("age not in (12, 30)", [3]),
        ("name in ('Ann', 'Bo')", [0, 1]),
        ("born < '1991-01-01'", [0, 3]),
        ("pay > 1.499", [0, 3]),
        ("pay <> 0", [0, 3]),
        ("age > 18.5", [0, 3]),
        ("18 < age", [0, 3]),
        ("ok", [0, 3]),
        ("ok = false", [1]),
        ("at.`x y` >= 3", [2, 3]),
        ("AGE IS NULL or ok", None),
        ("age IS NULL OR ok", [0, 1, 3]),
        ("age < 99999999999999999999", [0, 2, 3]),
    ],
)
def test_filter_selects_what_it_says(where: str, rows: list[int] | None) -> None:
    if rows is None:
        with pytest.raises(InvalidArgument, match="names no column 'AGE'"):
            parse_where(where, COLUMNS)
        return
    found = PEOPLE.append_column("n", pa.array(range(4))).filter(parse_where(where, COLUMNS))
    assert found.column("n").to_pylist() == rows


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("", "ends where"),
        ("age >", "ends where a column or a value was due, at character 6"),
        ("age", "compared with nothing"),
        ("(age > 1", r"needs '\)' here"),
        ("age > 1 name = 'x'", "goes on after its end"),
        ("age = null", "is null"),
        ("1 = 1", "compares no column"),
        ("name > 5", "in quotes"),
        ("born > 'yesterday'", "not a date"),
        ("age = 'x'", "not of type int"),
        ("age = name", "cannot be compared"),
        ("at = at", "cannot be compared"),
        ("salary > 1", "no column 'salary'; there are name, age"),
        ("age > 1; drop", "cannot be read, at character 8"),
        ("__import__('os')", "no column '__import__'"),
        ("(" * 200 + "ok" + ")" * 200, "nested too deeply"),
    ],
)
def test_filter_that_cannot_be_read_says_where(where: str, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why):
        parse_where(where, COLUMNS)


def test_filter_of_a_struct_type_is_what_scan_takes(tmp_path: Path) -> None:
    store = open_root(sample_roots.shop(tmp_path)).store()
    known = StructType((*store.key_schema.fields, *store.value_schema.fields))
    found = store.scan(where=parse_where("total >= 500", known))
    assert found.to_pylist() == [{"user": "Sankar", "total": 500}]


def test_inspection_loads_no_optional_package() -> None:
    script = (
        "import sys, holdfast.reading\n"
        "print(sorted({'pyspark', 'py4j', 'pandas', 'duckdb', 'rich', 'typer'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_json_shapes_are_those_the_command_line_prints(tmp_path: Path) -> None:
    place = str(sample_roots.shop(tmp_path))
    root = open_root(place)
    store = root.store()
    expected = {
        ("ls",): {"roots": [shapes.root_json(root.info())]},
        ("show",): shapes.version_json(root.info(), root.version()),
        ("history",): shapes.history_json(root.info(), root.history()),
        ("scan", "--at", "3"): shapes.rows_json(store, 3, store.scan(3), False),
        ("diff", "1", "3"): shapes.diff_json(store, store.diff(1, 3)),
        ("verify",): shapes.verification_json([verify(root)]),
    }
    for (command, *rest), shape in expected.items():
        printed = CliRunner().invoke(app, [command, place, *rest, "--json"]).stdout
        assert json.loads(printed) == json.loads(json.dumps(shape)), command
