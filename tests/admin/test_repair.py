"""Keys are repaired from outside, as one version that everything else follows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sample_roots
from command_line import fails, run, run_json
from pyarrow import parquet

import holdfast
from holdfast import admin
from holdfast.admin.repair import plan_repair
from holdfast.admin.repair_input import RepairInput
from holdfast.admin.site import Site
from holdfast.backends.locations import open_storage
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.filenames import delivered_path
from holdfast.engine.files.manifest_codec import decode, encode
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.journal import Journal
from holdfast.errors import Conflict, IllegalState, InvalidArgument
from holdfast.ids import TIMERS
from holdfast.reading import Root
from holdfast.testing.faults import CRASHES, Crash, FaultyStorage, crash_at

SECRET = 987654321
NOON = datetime.fromtimestamp(sample_roots.NOON_MS / 1000, UTC)
LATER = NOON + timedelta(minutes=5)


def rows_of(location: object, **where: Any) -> dict[Any, Any]:
    return {tuple(key): tuple(value) for key, value in holdfast.read(location, **where)}


def delivered(location: Path) -> Path:
    """The same root, its newest version known to have reached the sink."""
    newest = holdfast.reading.open_root(location).newest_readable()
    path = delivered_path(newest.version, newest.commit_id)
    open_storage(location).create_if_absent(path, b"")
    return location


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    return sample_roots.shop(tmp_path / "a shop, 100 % größer")


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    """A store of several columns, one of which cannot be null."""
    root = tmp_path / "prices"
    schema = (
        "price decimal(10,2), note string, n int not null, at timestamp, tags array<string>, "
        "weight double"
    )
    db = holdfast.open(root, key="shop string, item int", value=schema, partitions=3)
    with db, db.update() as store:
        for item in range(5):
            store.put(("a", item), (Decimal(item), "old", SECRET, NOON, ["x"], 0.5))
    return root


# -- what a repair does ----------------------------------------------------------------------------


def test_a_plan_shows_before_and_after_and_its_run_makes_one_version(shop: Path) -> None:
    before = rows_of(shop)
    wanted = [{"key": "Sankar", "value": {"total": 7}}, {"key": ("Ada",), "value": (1,)}]
    plan = admin.repair(shop, set=wanted, delete=["Kun"], reason="a wrong price")
    assert rows_of(shop) == before == {("Sankar",): (500,), ("Kun",): (100,)}
    assert {each.key[0]: (each.before, each.after) for each in plan.keys} == {
        "Sankar": ((500,), (7,)),
        "Ada": (None, (1,)),
        "Kun": ((100,), None),
    }
    done = plan.run()
    assert (done.kind, done.version) == ("repair", 5)
    assert rows_of(shop) == {("Sankar",): (7,), ("Ada",): (1,)}
    state = holdfast.read(shop)
    assert state.num_keys == 2
    assert (state.diff().added, state.diff().changed, state.diff().removed) == (1, 1, 1)
    assert [each.version for each in state.key_history("Sankar")] == [1, 3, 5]
    changes = list(holdfast.reading.open_root(shop).store().at(5).changes())
    gone = {
        key: dead
        for table, dead in changes
        for key, dead in zip(table.column("user").to_pylist(), dead.to_pylist(), strict=True)
    }
    assert gone == {"Ada": False, "Sankar": False, "Kun": True}
    [line] = Journal(holdfast.reading.open_root(shop).log).lines()
    assert line.is_done
    assert (line.entry.version, line.entry.reason) == (5, "a wrong price")
    assert line.entry.detail == {
        "operator": 0,
        "store": "default",
        "set": 2,
        "removed": 1,
        "deliver": False,
    }
    assert "Sankar" not in str(line.entry), "the journal outlives the state and has none of it"


def test_a_writer_that_is_open_goes_on_from_the_repair(shop: Path) -> None:
    with holdfast.open(shop) as db:
        with db.update() as store:
            store.put(("Ada",), (1,))
        admin.repair(shop, set={"key": "Ada", "value": 2}).run()
        with db.update() as store:
            assert store.get(("Ada",)) == (2,)
            store.put(("Bob",), (3,))
        update = db.update()
        update.put(("Bob",), (4,))
        admin.repair(shop, set={"key": "Ada", "value": 5}).run()
        with pytest.raises(Conflict):
            update.commit()
    assert rows_of(shop)[("Ada",)] == (5,)
    assert rows_of(shop)[("Bob",)] == (3,)


def test_columns_that_are_not_given_stay(prices: Path) -> None:
    text = '{"key": {"shop": "a", "item": 1}, "value": {"price": 9.5, "tags": ["y", null]}}'
    admin.repair(prices, set=[text, {"key": ("a", 2), "value": {"note": None}}]).run()
    rows = rows_of(prices)
    assert rows["a", 1] == (Decimal("9.50"), "old", SECRET, NOON, ["y", None], 0.5)
    assert rows["a", 2] == (Decimal("2.00"), None, SECRET, NOON, ["x"], 0.5)
    assert len(rows) == 5


def test_json_takes_what_the_command_line_prints(prices: Path) -> None:
    shown = run_json("get", prices, "a", "3")["value"]
    shown["note"] = "new"
    admin.repair(prices, set=json.dumps({"key": ["a", 3], "value": shown})).run()
    assert rows_of(prices)["a", 3] == (Decimal("3.00"), "new", SECRET, NOON, ["x"], 0.5)


def test_a_new_key_needs_the_columns_that_cannot_be_null(prices: Path) -> None:
    with pytest.raises(InvalidArgument, match="In set 1: The key is new, and its column 'n'"):
        admin.repair(prices, set={"key": ("b", 1), "value": {"note": "x"}})
    admin.repair(prices, set={"key": ("b", 1), "value": {"n": 4}}).run()
    assert rows_of(prices)["b", 1] == (None, None, 4, None, None, None)


def test_a_filter_removes_what_it_finds(prices: Path) -> None:
    plan = admin.repair(prices, delete_where="item >= 2 and shop = 'a'")
    assert sorted(each.key for each in plan.keys) == [("a", 2), ("a", 3), ("a", 4)]
    assert plan.removed == 3
    plan.run()
    assert sorted(rows_of(prices)) == [("a", 0), ("a", 1)]


def _parquet(path: Path, table: pa.Table) -> Path:
    parquet.write_table(table, path.with_suffix(".parquet"))
    return path.with_suffix(".parquet")


def _csv(path: Path, table: pa.Table) -> Path:
    path = path.with_suffix(".csv")
    path.write_text('shop,item,note,price\na,1,"",7.25\n"b ""c""",2,,1\n')
    return path


def _json_lines(path: Path, table: pa.Table) -> Path:
    path = path.with_suffix(".jsonl")
    rows = [{"shop": "a", "item": 1, "note": "", "price": "7.25"}]
    rows += [{"shop": 'b "c"', "item": 2, "note": None, "price": 1}]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return path


@pytest.mark.parametrize("write", [_parquet, _csv, _json_lines, lambda path, table: table])
def test_rows_come_of_tables_and_files(
    prices: Path, tmp_path: Path, write: Callable[[Path, pa.Table], Any]
) -> None:
    with holdfast.open(prices) as db, db.update() as store:
        store.put(('b "c"', 2), (None, "old", 1, None, None, None))
    table = pa.table(
        {
            "item": pa.array([1, 2], pa.int64()),
            "shop": ["a", 'b "c"'],
            "note": ["", None],
            "price": [Decimal("7.25"), Decimal("1.00")],
        }
    )
    plan = admin.repair(prices, rows=write(tmp_path / "rows", table))
    assert len(plan.keys) == 2
    plan.run()
    rows = rows_of(prices)
    assert rows["a", 1] == (Decimal("7.25"), "", SECRET, NOON, ["x"], 0.5)
    assert rows['b "c"', 2] == (Decimal("1.00"), None, 1, None, None, None)


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"set": "{"}, "In set: It is not JSON"),
        ({"set": "[1]"}, "In set 1: It needs"),
        ({"set": {"key": ("a", 1), "values": {}}}, "In set 1: It needs"),
        ({"set": {"key": ("a", 1), "value": {"prize": 1}}}, "no column 'prize' in the value"),
        ({"set": {"key": ("a", 1), "value": {"n": "x"}}}, "'n'"),
        ({"set": {"key": ("a", 1), "value": {"n": None}}}, "'n'"),
        ({"set": {"key": ("a", 1), "value": (1, 2)}}, "6 columns, not 2"),
        ({"set": {"key": ("a",), "value": {"n": 1}}}, "'item' is missing"),
        ({"set": '{"key": ["a", 1], "value": {"n": 1e400}}'}, "'n'"),
        ({"set": '{"key": ["a", 1], "value": {"note": 5}}'}, "'note'"),
        ({"set": '{"key": ["a", 1], "value": {"weight": 1e400}}'}, "'weight'"),
        ({"set": '{"key": ["a", 1], "value": {"n": 4000000000}}'}, "'n'"),
        ({"set": '{"key": {"shop": "a"}, "value": {"n": 1}}'}, "The key has the columns"),
        ({"set": '{"key": ["a", 1], "value": {"at": "noon"}}'}, "'at' is not a time such as"),
        ({"delete": [("a", 77)]}, "In delete 1: There is no such key"),
        ({"delete": [("a", 1), ("a", 1)]}, "delete 1 and delete 2 are of the same key"),
        ({"set": {"key": ("a", 1), "value": {}}, "delete": ("a", 1)}, "of the same key"),
        ({"delete_where": "item > 'x"}, "The filter"),
        ({"delete_where": "item > 100"}, "Nothing would change"),
        ({"set": {"key": ("a", 1), "value": {"note": "old"}}}, "Nothing would change"),
        ({}, "Nothing would change"),
        ({"rows": "rows.txt"}, "is of no kind that is known"),
        ({"rows": "missing.csv"}, "cannot be read"),
        ({"rows": "odd.parquet"}, "is no parquet file"),
        ({"rows": "odd.csv"}, "is no CSV file with a header"),
        ({"rows": "odd.jsonl"}, "In odd.jsonl: It is not text in UTF-8"),
        ({"rows": pa.table({"shop": ["a"]})}, "In rows: The key column 'item' is missing"),
        ({"rows": pa.table({"shop": ["a"], "item": [1], "odd": [1]})}, "no column 'odd'"),
        ({"rows": pa.table({"shop": ["a"], "item": ["x"]})}, "'item'"),
        ({"operator": 1}, "has nothing like that"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_anything_is_written(
    prices: Path, given: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prices.parent)
    for name in ("odd.parquet", "odd.csv", "odd.jsonl"):
        Path(name).write_bytes(b"\xff\xfe{\n")
    files = sorted(prices.rglob("*"))
    with pytest.raises(InvalidArgument) as refused:
        admin.repair(prices, **given)
    assert told in refused.value.message
    assert str(SECRET) not in refused.value.message
    assert sorted(prices.rglob("*")) == files


def test_a_provider_used_alone_is_refused(tmp_path: Path) -> None:
    root = sample_roots.providers(tmp_path / "providers") / "0/1"
    with pytest.raises(InvalidArgument, match="Change it with the provider"):
        admin.repair(root, delete=(0,))


def test_rows_that_a_provider_of_another_kind_keeps_are_refused(tmp_path: Path) -> None:
    root = delivered(sample_roots.query(tmp_path / "query"))
    path = root / "versions/2"
    made = decode(path.read_bytes(), path.name)
    store = made.operators[0]["default"]
    parts = tuple(replace(part, segments=()) for part in store.partitions)
    operators = {**made.operators, 0: {"default": replace(store, partitions=parts)}}
    path.write_bytes(encode(replace(made, operators=operators)))
    with pytest.raises(InvalidArgument, match="are kept by a provider of its own"):
        admin.repair(root, operator=0, set={"key": "word-9", "value": 1})


def test_a_key_below_the_bound_of_eviction_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "root"
    db = holdfast.open(root, key="at long, k string", value="v long", key_index_ordinal=0)
    with db, db.update() as store:
        store.put((1, "a"), (1,))
        store.put((9, "a"), (1,))
        store.evict(4)
    with pytest.raises(InvalidArgument, match="column 'at' is not after 4, up to which"):
        admin.repair(root, set={"key": (4, "b"), "value": {"v": 1}})
    with pytest.raises(InvalidArgument, match="There is no such key"):
        admin.repair(root, delete=(1, "a"))
    admin.repair(root, set={"key": (5, "b"), "value": {"v": 1}}).run()
    assert rows_of(root) == {(5, "b"): (1,), (9, "a"): (1,)}


def test_a_repaired_row_expires_as_before_and_a_new_one_as_it_says(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with holdfast.open(root, key="k string", value="v long", partitions=2) as db:
        with db.update() as store:
            store.put(("a",), (1,), 5_000)
            store.put(("b",), (1,))
            store.expire(1_000)
        with pytest.raises(InvalidArgument, match="nobody would see the row"):
            admin.repair(root, set={"key": "c", "value": 2, "expires": 1_000})
        text = '{"key": "c", "value": {"v": 2}, "expires": "1970-01-01T00:00:04Z"}'
        wanted = [text, {"key": "a", "value": 2}, {"key": "b", "value": 2}]
        admin.repair(root, set=wanted).run()
        for moment, kept in ((3_999, "abc"), (4_000, "ab"), (5_000, "b")):
            with db.update() as store:
                store.expire(moment)
            assert rows_of(root) == {(name,): (2,) for name in kept}
        admin.repair(root, set={"key": "b", "value": 2, "expires": 6_000}).run()
        with db.update() as store:
            store.expire(6_000)
        assert rows_of(root) == {}


# -- queries ---------------------------------------------------------------------------------------


def test_a_query_whose_newest_version_may_lack_delivery_is_refused(tmp_path: Path) -> None:
    root = sample_roots.query(tmp_path / "query")
    given = {"set": {"key": "word-1", "value": 5}, "operator": 0}
    with pytest.raises(IllegalState, match="Name Spark's checkpoint of the query") as refused:
        admin.repair(root, **given)
    assert "trigger(availableNow=True)" in refused.value.message
    admin.repair(delivered(root), **given).run()
    assert rows_of(root, operator=0)[("word-1",)] == (5,)
    newest = holdfast.reading.open_root(root).newest_readable()
    assert (newest.delivered_through, newest.counts) == (newest.version, False)
    assert newest.batch == {"id": 1, "query_id": "q"}
    admin.repair(root, set={"key": "word-1", "value": 6}, operator=0).run()
    with pytest.raises(InvalidArgument, match="Choose one with --operator and --store"):
        admin.repair(root, delete="word-1")


@pytest.fixture
def processor(tmp_path: Path) -> Path:
    return delivered(sample_roots.processor(tmp_path / "processor"))


def test_entries_of_a_map_are_repaired_by_key(processor: Path) -> None:
    wanted = [{"key": ("a", "wed"), "value": 8}, {"key": ("b", "mon"), "value": 9}]
    admin.repair(processor, store="seen", set=wanted, delete=("a", "mon")).run()
    assert rows_of(processor, store="seen") == {
        ("a", "tue"): (2,),
        ("a", "wed"): (8,),
        ("b", "mon"): (9,),
    }


def test_entries_of_a_list_are_repaired_where_people_count_them(processor: Path) -> None:
    def listed(key: str) -> list[int]:
        rows = rows_of(processor, store="events").items()
        return [value[0] for (own, _), value in sorted(rows) if own == key]

    assert (listed("a"), listed("b")) == ([2], [3, 4, 5, 9])
    wanted = [
        {"key": ("b", 1), "value": 40},
        {"key": ("a", 1), "value": 10},
        {"key": ("a", 2), "value": 11},
        {"key": ("c", 0), "value": 12},
    ]
    plan = admin.repair(processor, store="events", set=wanted, delete=[("b", 0)])
    assert [each.key for each in plan.keys if each.before is None and each.key[0] == "a"] == [
        ("a", 1),
        ("a", 2),
    ]
    plan.run()
    assert (listed("a"), listed("b"), listed("c")) == ([2, 10, 11], [40, 5, 9], [12])
    with pytest.raises(InvalidArgument, match="The list has no entry 5, and its next one is 3"):
        admin.repair(processor, store="events", set={"key": ("a", 5), "value": 1})
    with pytest.raises(InvalidArgument, match="The list has no such entry"):
        admin.repair(processor, store="events", set={"key": ("a", 99 << 32), "value": 1})


def test_timers_are_set_and_removed(processor: Path) -> None:
    text = '{"key": ["c", "2026-01-01T13:00:00Z"]}'
    noon = sample_roots.NOON_MS
    admin.repair(processor, store=TIMERS, set=text, delete=("a", noon)).run()
    assert rows_of(processor, store=TIMERS) == {
        ("b", noon + 1): (True,),
        ("c", noon + 3_600_000): (True,),
    }


# -- aggregates ------------------------------------------------------------------------------------


@pytest.fixture
def aggregation(tmp_path: Path) -> Path:
    return delivered(sample_roots.aggregation(tmp_path / "aggregation"))


def test_aggregates_are_set_by_their_values(aggregation: Path) -> None:
    value = {"total": 8, "price": Decimal("1.5"), "n": 3, "last_": "y", "names": ["p", "q"]}
    admin.repair(aggregation, set={"key": ("a", LATER), "value": value}).run()
    names = holdfast.read(aggregation).value_schema.names
    row = dict(zip(names, rows_of(aggregation)["a", LATER], strict=True))
    assert row == {
        "total": 8,
        "price": Decimal("1.50"),
        "price_seen": True,
        "n": 3,
        "mean_sum": 5.0,
        "mean_count": 2,
        "spread_count": 2.0,
        "spread_mean": 2.5,
        "spread_square": 0.5,
        "users": 1,
        "users_hyperloglog": b"sketch",
        "last_": "y",
        "last_seen": True,
        "names": ["p", "q"],
    }


def test_a_new_group_has_nothing_of_the_aggregates_that_are_not_given(aggregation: Path) -> None:
    admin.repair(aggregation, set={"key": ("b", LATER), "value": {"total": 8}}).run()
    assert rows_of(aggregation)["b", LATER] == (
        8,
        None,
        None,
        0,
        None,
        0,
        0.0,
        None,
        None,
        0,
        None,
        None,
        False,
        [],
    )


@pytest.mark.parametrize(
    ("value", "columns"),
    [
        ({"mean": 2.0}, "avg(amount). Give all of them with --partials (partials=True): mean_sum,"),
        ({"mean_sum": 2.0}, "of avg(amount). Give all of them with --partials"),
        ({"price": None}, "of sum(price)"),
        ({"price_seen": True}, "of sum(price)"),
        ({"n": None}, "of count(1)"),
        ({"n": -1}, "of count(1)"),
        ({"spread": 1.0}, "of stddev(amount)"),
        ({"users": 4}, "users, users_hyperloglog"),
        ({"last_": None}, "of last(name)"),
        ({"names": ["p", "p"]}, "of collect_set(name)"),
    ],
)
def test_values_that_do_not_say_what_to_store_need_partials(
    aggregation: Path, value: dict[str, Any], columns: str
) -> None:
    with pytest.raises(InvalidArgument, match="does not determine the stored columns") as refused:
        admin.repair(aggregation, set={"key": ("a", LATER), "value": value})
    assert columns in refused.value.message


def test_partials_set_whole_aggregates_and_no_half(aggregation: Path) -> None:
    key = ("a", LATER)
    half = {"key": key, "value": {"mean_sum": 9.0}}
    with pytest.raises(
        InvalidArgument, match=r"is a part of avg\(amount\), and 'mean_count' is not"
    ):
        admin.repair(aggregation, set=half, partials=True)
    whole = {"key": key, "value": {"mean_sum": 9.0, "mean_count": 3, "total": 9}}
    admin.repair(aggregation, set=whole, partials=True).run()
    row = rows_of(aggregation)[key]
    assert (row[0], row[4], row[5]) == (9, 9.0, 3)
    assert row[6:] == (2.0, 2.5, 0.5, 1, b"sketch", "x", True, ["x"])


def test_an_evicted_window_is_refused(aggregation: Path) -> None:
    assert list(rows_of(aggregation)) == [("a", LATER)]
    for key in ("a", "b"):
        with pytest.raises(InvalidArgument, match="'end' is not after 2026-01-01T12:00:00Z"):
            admin.repair(aggregation, set={"key": (key, NOON), "value": {"total": 1}})


def test_the_schema_says_which_columns_belong_together(aggregation: Path) -> None:
    [store] = run_json("show", aggregation, "--schema")["stores"]
    assert {tuple(column["set_with"] or [column["name"]]) for column in store["columns"]} == {
        ("user",),
        ("end",),
        ("total",),
        ("price",),
        ("n",),
        ("last_",),
        ("names",),
        ("price", "price_seen"),
        ("mean_sum", "mean_count"),
        ("last_", "last_seen"),
        ("spread_count", "spread_mean", "spread_square"),
        ("users", "users_hyperloglog"),
    }
    shown = run("show", aggregation, "--schema")
    assert "avg(amount)" in shown
    assert "with mean_count (--partials)" in shown


def test_only_what_is_read_from_state_can_be_delivered(
    shop: Path, processor: Path, tmp_path: Path
) -> None:
    query = delivered(sample_roots.query(tmp_path / "query"))
    for root, store, key, why in (
        (shop, None, "Kun", "is not that of a query"),
        (processor, "seen", ("a", "mon"), "only an aggregation's rows"),
        (query, "default", "word-1", "the query has several operators"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            admin.repair(root, store=store, set={"key": key, "value": 1}, deliver=True)


def test_a_repair_to_be_delivered_takes_a_number_and_waits_for_it(aggregation: Path) -> None:
    wanted = {"key": ("a", LATER), "value": {"total": 8}}
    admin.repair(aggregation, set=wanted, deliver=True).run()
    newest = holdfast.reading.open_root(aggregation).newest_readable()
    assert newest.delivered_through == newest.version - 1
    assert newest.numbering == {"first": 1, "last": 2}
    assert newest.counts
    with pytest.raises(IllegalState, match="is not known to have reached the sink"):
        admin.repair(aggregation, set={"key": ("a", LATER), "value": {"total": 9}})


# -- faults and races ------------------------------------------------------------------------------


def made_up(storage: Any) -> Site:
    return Site(Root(storage), Runtime.system(), None)


WANTED = RepairInput(set={"key": "Sankar", "value": 7}, delete="Kun")


def _clone(location: Path) -> MemoryStorage:
    copied = MemoryStorage("clone")
    source = open_storage(location)
    for blob in source.list(""):
        copied.write(blob.path, bytes(source.read(blob.path)))
    return copied


def test_a_crash_at_any_call_leaves_all_or_nothing_and_a_second_run_does_it(
    tmp_path: Path,
) -> None:
    shop = sample_roots.shop(tmp_path / "shop")
    watched = FaultyStorage(_clone(shop))
    plan_repair(made_up(watched), WANTED).run()
    old, new = {("Sankar",): (500,), ("Kun",): (100,)}, {("Sankar",): (7,)}
    seen = []
    for call in watched.calls:
        for fault in CRASHES if call.changes else CRASHES[:1]:
            inner = _clone(shop)
            with pytest.raises(Crash):
                plan_repair(
                    made_up(FaultyStorage(inner, crash_at(call.number, fault))), WANTED
                ).run()
            root = Root(inner)
            rows = {tuple(k): tuple(v) for k, v in root.store().at(root.versions[-1]).iterator()}
            is_done = rows == new
            assert is_done or rows == old
            seen.append(is_done)
            lines = Journal(root.log).lines()
            assert [line for line in lines if line.is_done] == lines[:is_done]
            if not is_done:
                again = FaultyStorage(inner)
                plan_repair(made_up(again), WANTED).run()
            else:
                with pytest.raises(InvalidArgument, match="There is no such key"):
                    plan_repair(made_up(inner), WANTED)
            root = Root(inner)
            assert root.versions[-1] == 5
            assert holdfast.reading.verify(root).intact
    assert set(seen) == {True, False}


def test_a_crash_in_the_run_after_a_crash_is_made_good_by_the_third(tmp_path: Path) -> None:
    shop = sample_roots.shop(tmp_path / "shop")
    watched = FaultyStorage(_clone(shop))
    plan_repair(made_up(watched), WANTED).run()
    [commits] = [
        call.number
        for call in watched.calls
        if call.operation == "create_if_absent" and call.path.startswith("versions/")
    ]
    for second in range(1, commits):
        inner = _clone(shop)
        for number in (commits, second):
            with pytest.raises(Crash):
                plan_repair(made_up(FaultyStorage(inner, crash_at(number))), WANTED).run()
        plan_repair(made_up(inner), WANTED).run()
        lines = Journal(Root(inner).log).lines()
        assert [line.is_done for line in lines].count(True) == 1
        assert Root(inner).versions[-1] == 5


def test_of_two_repairs_at_once_one_is_a_conflict(shop: Path) -> None:
    plans = [admin.repair(shop, set={"key": "Kun", "value": at}) for at in (1, 2)]
    outcomes: list[Any] = []

    def work(plan: admin.RepairPlan) -> None:
        try:
            outcomes.append(plan.run().version)
        except Conflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, outcomes)) in (["5", "conflict"], ["conflict", "conflict"])
    with pytest.raises(Conflict, match="then plan again"):
        plans[0].run()


def test_a_plan_is_a_conflict_once_another_version_was_made(shop: Path) -> None:
    plan = admin.repair(shop, delete="Kun")
    with holdfast.open(shop) as db, db.update() as store:
        store.put(("Kun",), (1,))
    with pytest.raises(Conflict, match="then plan again"):
        plan.run()
    assert rows_of(shop)[("Kun",)] == (1,)
    assert Journal(holdfast.reading.open_root(shop).log).lines() == []


def test_a_hundred_repairs_push_out_no_version_of_a_writer(tmp_path: Path) -> None:
    root = tmp_path / "root"
    conf = {"min_versions_to_retain": 60, "grace_period_ms": 0}
    with holdfast.open(root, key="k string", value="v long", conf=conf) as db:
        for number in range(4):
            with db.update() as store:
                store.put(("a",), (number,))
        for number in range(100):
            admin.repair(root, set={"key": "b", "value": number}).run()
        db.refresh()
        db.maintain()
        assert [line.version for line in db.history()] == list(range(104, -1, -1))
        assert db.at(2).get("a") == (1,)
        assert db.get(("b",)) == (99,)


# -- the command line ------------------------------------------------------------------------------


def test_the_command_line_shows_asks_and_repairs(shop: Path) -> None:
    wanted = (
        "repair",
        shop,
        "--set",
        '{"key": "Sankar", "value": {"total": 7}}',
        "--delete",
        "Kun",
    )
    shown = run(*wanted, "--dry-run")
    assert "Sankar: total 500 → 7" in shown
    assert "Kun: removed (total 100)" in shown
    assert rows_of(shop) == {("Sankar",): (500,), ("Kun",): (100,)}
    assert "Add --yes" in fails(*wanted, code=2)
    done = run_json(*wanted, "--yes", "--reason", "wrong")
    assert (done["version"], done["detail"]["set"], done["detail"]["removed"]) == (5, 1, 1)
    assert rows_of(shop) == {("Sankar",): (7,)}
    assert "wrong" in run("history", shop, "--operations")
    plan = run_json("repair", shop, "--delete-where", "total > 1", "--dry-run")
    assert plan["keys"] == [{"key": {"user": "Sankar"}, "before": {"total": 7}, "after": None}]


def test_keys_are_typed_as_cells_or_as_json(prices: Path) -> None:
    run("repair", prices, "--delete", '["a", 1]', "--delete", '{"item": 2, "shop": "a"}', "--yes")
    assert sorted(rows_of(prices)) == [("a", 0), ("a", 3), ("a", 4)]
    assert "It is not JSON" in fails("repair", prices, "--delete", "a", "--yes", code=2)
