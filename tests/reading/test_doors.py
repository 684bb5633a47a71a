"""Every way to a version's state gives the same: each is held to a dict."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from typer.testing import CliRunner

import holdfast
from holdfast.cli.app import app
from holdfast.errors import Closed, IllegalState, InvalidArgument, VersionNotFound
from holdfast.reading import open_root

State = dict[tuple[str, int], int]
KEY, VALUE, USERS = "user string, day int", "total long", ["Sankar", "Jade", "Kun", "Mara"]
VERSIONS = 9


@dataclass
class Shop:
    """A store with a prefix and an index, and what each of its versions holds."""

    root: Path
    db: holdfast.VersionedStore
    states: list[State]


@pytest.fixture(scope="module", params=[1, 3])
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    root = tmp_path_factory.mktemp("shop") / "root"
    with holdfast.open(
        root, KEY, VALUE, partitions=request.param, key_index_ordinal=1, num_cols_prefix_key=1
    ) as db:
        states: list[State] = [{}]
        for number in range(1, VERSIONS + 1):
            state = dict(states[-1])
            with db.update() as store:
                for _ in range(chance.randrange(1, 30)):
                    key = (chance.choice(USERS), chance.randrange(20))
                    if chance.random() < 0.2:
                        store.remove(key)
                        state.pop(key, None)
                    else:
                        state[key] = chance.randrange(1000)
                        store.put(key, (state[key],))
            states.append(state)
            if number == VERSIONS // 2:
                db.maintain(snapshot=True)
        db.tag("last-but-two", VERSIONS - 2)
        yield Shop(root, db, states)


DOORS: dict[str, Callable[[Shop, int], Any]] = {
    "holdfast.read": lambda shop, at: holdfast.read(shop.root).at(at),
    "db.at": lambda shop, at: shop.db.at(at),
    "db.at, of another version": lambda shop, at: shop.db.at(1).at(at),
    "holdfast.reading": lambda shop, at: open_root(shop.root).store().at(at),
}


@pytest.fixture(params=DOORS)
def door(request: pytest.FixtureRequest) -> Callable[[Shop, int], Any]:
    return DOORS[request.param]


def test_a_version_is_named_by_number_text_tag_or_newest(
    shop: Shop, door: Callable[[Shop, Any], Any]
) -> None:
    for name, version in {2: 2, "2": 2, "last-but-two": VERSIONS - 2, "newest": VERSIONS}.items():
        assert held(door(shop, name).iterator()) == shop.states[version]
    with pytest.raises(VersionNotFound):
        door(shop, "no such tag")


def test_a_tag_that_looks_like_another_name_of_a_version_is_a_tag(tmp_path: Path) -> None:
    with holdfast.open(tmp_path, "k string", "n long") as db:
        for number in range(1, 4):
            with db.update() as store:
                store.put(("a",), (number,))
        db.tag("newest", 1)
        db.tag("3", 2)
        assert db.at("newest").get("a") == (1,)
        assert db.at("3").get("a") == (2,)
        assert db.at(3).get("a") == (3,)


def test_methods_of_before_say_where_they_are_now(shop: Shop) -> None:
    store, (key, value) = open_root(shop.root).store(), next(iter(shop.states[-1].items()))
    with pytest.warns(DeprecationWarning, match=r"at\(\.\.\.\)\.find"):
        assert store.find([key]).column("total").to_pylist() == [value]
    with pytest.warns(DeprecationWarning, match=r"at\(\.\.\.\)\.changes"):
        assert sum(len(rows) for rows, _ in store.changes(1)) == len(shop.states[1])
    with pytest.warns(DeprecationWarning, match=r"at\(\.\.\.\)\.partition_of"):
        assert store.partition_of(key) == store.at().partition_of(key)


def held(pairs: Any) -> State:
    return {key: value for key, (value,) in pairs}


def in_table(table: pa.Table) -> State:
    rows = table.to_pylist()
    assert len({(row["user"], row["day"]) for row in rows}) == len(rows)
    return {(row["user"], row["day"]): row["total"] for row in rows}


def test_every_door_gives_each_key_of_each_version(shop: Shop, door: Any) -> None:
    for version, state in enumerate(shop.states):
        read = door(shop, version)
        assert (read.version, read.num_keys) == (version, len(state))
        for key in [(user, day) for user in USERS for day in range(20)]:
            expected = (state[key],) if key in state else None
            assert read.get(key) == read.get({"day": key[1], "user": key[0]}) == expected


def test_every_door_finds_many_keys_in_their_order(shop: Shop, door: Any) -> None:
    keys = [(user, day) for day in range(20) for user in reversed(USERS)]
    asked = pa.table({"user": [k[0] for k in keys], "day": pa.array([k[1] for k in keys], "int32")})
    for version, state in enumerate(shop.states):
        found = door(shop, version).get_many(asked)
        assert found.select(["user", "day"]).to_pylist() == asked.to_pylist()
        assert found["total"].to_pylist() == [state.get(key) for key in keys]
        assert found["_found"].to_pylist() == [key in state for key in keys]
        assert door(shop, version).get_many(asked.slice(0, 0)).num_rows == 0


def test_every_door_scans_with_columns_and_with_filters_of_both_kinds(
    shop: Shop, door: Any
) -> None:
    for version, state in enumerate(shop.states):
        read = door(shop, version)
        assert in_table(read.scan()) == held(read.iterator()) == state
        large = {key: total for key, total in state.items() if total > 500}
        assert in_table(read.scan(where="total > 500")) == large
        assert in_table(read.scan(where=pc.field("total") > 500)) == large
        days = read.scan(columns=["day"], where="user = 'Jade'")
        assert days.column_names == ["day"]
        assert sorted(days["day"].to_pylist()) == sorted(d for u, d in state if u == "Jade")
    with pytest.raises(InvalidArgument, match="no column 'nonsense'"):
        read.scan(columns=["nonsense"])
    with pytest.raises(InvalidArgument, match="names no column 'nonsense'"):
        read.scan(where="nonsense > 1")


def test_every_door_reads_by_prefix_and_by_range(shop: Shop, door: Any) -> None:
    for version, state in enumerate(shop.states):
        read = door(shop, version)
        for user in [*USERS, "nobody"]:
            own = {key: total for key, total in state.items() if key[0] == user}
            assert held(read.prefix_scan((user,))) == held(read.prefix_scan(user)) == own
            assert held(read.prefix_scan({"user": user})) == own
            assert in_table(read.scan(prefix=user)) == in_table(read.scan(prefix=(user,))) == own
        days = {key: total for key, total in state.items() if 5 <= key[1] <= 9}
        assert held(read.get_range(5, 9)) == days
    for user in USERS:
        newest = {key: total for key, total in shop.states[-1].items() if key[0] == user}
        assert in_table(shop.db.scan(prefix=user)) == held(shop.db.prefix_scan(user)) == newest


def changes_of(states: list[State], key: tuple[str, int]) -> list[tuple[int, int | None]]:
    found, before = [], None
    for version, state in enumerate(states):
        if state.get(key) != before:
            found.append((version, state.get(key)))
        before = state.get(key)
    return found


@pytest.mark.parametrize("name", ["holdfast.read", "db.at"])
def test_histories_are_alike(shop: Shop, name: str) -> None:
    read = DOORS[name](shop, 1)
    assert [(line.version, line.num_keys) for line in read.history()] == [
        (version, len(state)) for version, state in reversed(list(enumerate(shop.states)))
    ]
    assert read.history() == shop.db.history()
    for key in [("Sankar", day) for day in range(20)]:
        lines = read.key_history(key)
        told = [(line.version, line.value and line.value[0]) for line in lines]
        assert told == changes_of(shop.states, key)


@pytest.mark.parametrize("name", ["holdfast.read", "db.at"])
def test_a_version_tells_about_itself_alike_and_is_a_table_to_others(shop: Shop, name: str) -> None:
    read, other = DOORS[name](shop, 4), holdfast.read(shop.root).at(4)
    for what in ("watermark", "committed_at", "operator", "store", "stores", "num_keys"):
        assert getattr(read, what) == getattr(other, what), what
    assert in_table(pa.table(read)) == in_table(read.to_arrow()) == shop.states[4]
    assert len(read.to_pandas()) == len(shop.states[4])
    assert read.at("last-but-two").version == VERSIONS - 2
    assert read.refresh() is read
    assert (read.version, in_table(read.scan())) == (VERSIONS, shop.states[-1])
    with pytest.raises(VersionNotFound, match="no-such-tag"):
        read.at("no-such-tag")


def test_the_command_line_shows_the_same(shop: Shop) -> None:
    def told(*words: str) -> Any:
        return json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)

    state = shop.states[-1]
    scan = ("scan", str(shop.root), "--limit", "0")
    assert in_table(pa.Table.from_pylist(told(*scan)["rows"])) == state
    own = {key: total for key, total in state.items() if key[0] == "Kun" and total < 700}
    rows = told(*scan, "--prefix", "Kun", "--where", "total < 700")["rows"]
    assert {(row["user"], row["day"]): row["total"] for row in rows} == own
    key = max(state)
    assert told("get", str(shop.root), key[0], str(key[1]))["value"] == {"total": state[key]}


def test_a_store_open_for_update_reads_its_own_changes(shop: Shop) -> None:
    state = dict(shop.states[-1])
    with shop.db.update() as store:
        for day in range(5):
            store.put(("Jade", day), (-1,))
            state["Jade", day] = -1
        seen, batches = store.iterator(), pa.RecordBatchReader.from_stream(store)
        store.remove(("Jade", 0))
        assert held(seen) == in_table(batches.read_all()) == state
        del state["Jade", 0]
        assert in_table(store.scan(where="total >= -1")) == held(store.iterator()) == state
        own = {key: total for key, total in state.items() if key[0] == "Jade"}
        assert held(store.prefix_scan("Jade")) == own
        assert (store.num_keys, store.get({"user": "Jade", "day": 0})) == (len(state), None)
        with pytest.raises(IllegalState, match="open for update"):
            store.refresh()
        assert in_table(store.at(2).scan()) == shop.states[2]
        store.abort()
    with pytest.raises(Closed, match="was aborted"):
        store.scan()


def test_an_aborted_reader_says_so_and_still_tells_what_it_was(shop: Shop) -> None:
    read = shop.db.at(3)
    read.abort()
    for look in (
        lambda: read.get(("Jade", 1)), read.scan, read.iterator, lambda: read.prefix_scan("Jade"),
        lambda: read.metrics,
        lambda: read.get_many(pa.table({"user": ["Jade"], "day": pa.array([1], "int32")})),
    ):  # fmt: skip
        with pytest.raises(Closed, match="was aborted"):
            look()
    assert (read.version, read.key_schema.names) == (3, ("user", "day"))


def test_a_plain_cell_is_a_key_of_one_column_behind_every_door(tmp_path: Path) -> None:
    with holdfast.open(tmp_path, "path array<string>", "v int", partitions=2) as db:
        with db.update() as store:
            store.put((["a", "b"],), (1,))
        for read in (db, db.at(1), holdfast.read(tmp_path), open_root(tmp_path).store()):
            for key in (["a", "b"], (["a", "b"],), [["a", "b"]]):
                assert read.get(key) == (1,)


def test_a_store_without_a_prefix_says_so_behind_every_door(tmp_path: Path) -> None:
    with holdfast.open(tmp_path, "user string", "v int") as db:
        for read in (db, db.at(0), holdfast.read(tmp_path), db.update()):
            with pytest.raises(InvalidArgument, match="without num_cols_prefix_key"):
                read.prefix_scan("x")
