"""Tests of the batch methods, compared with a dict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.errors import Closed, IllegalState, InvalidArgument
from holdfast.testing._provider_base import (
    MakeProvider,
    SuiteBase,
    advance,
    contents,
    totals,
)

MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def table(users: Sequence[str | None], amounts: Sequence[int | None]) -> pa.Table:
    """Rows of a store with the default schemas."""
    return pa.table({"user": pa.array(users, pa.string()), "total": pa.array(amounts, pa.int64())})


def keys(users: Sequence[str | None]) -> pa.Table:
    """Keys of a store with the default schemas."""
    return pa.table({"user": pa.array(users, pa.string())})


class BatchContract(SuiteBase):
    """Many rows at once as Arrow tables."""

    def test_batch_is_read_back_before_and_after_commit(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put_many(table(["a", "b"], [1, 2]))
        assert store.get(("a",)) == (1,)
        assert contents(store) == {("a",): (1,), ("b",): (2,)}
        store.commit()
        assert totals(provider, 1) == {"a": 1, "b": 2}

    def test_last_of_equal_keys_in_a_batch_wins(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put_many(table(["a", "b", "a", "a", None, None], [1, 2, 3, 4, 5, 6]))
        assert store.metrics.num_keys == 3
        store.commit()
        assert totals(provider, 1) == {"a": 4, "b": 2, None: 6}

    def test_later_call_wins_whether_row_or_batch(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        store.put_many(table(["a", "b"], [2, 2]))
        assert store.get(("a",)) == (2,)
        store.put(("b",), (3,))
        assert store.get(("b",)) == (3,)
        store.remove_many(keys(["a"]))
        assert store.get(("a",)) is None
        store.put_many(table(["c"], [1]))
        store.remove(("c",))
        store.put_many(table(["d"], [1]))
        store.remove_many(keys(["d", "nobody"]))
        store.put(("d",), (9,))
        assert contents(store) == {("b",): (3,), ("d",): (9,)}
        assert store.metrics.num_keys == 2
        store.commit()
        assert totals(provider, 1) == {"b": 3, "d": 9}

    def test_get_many_keeps_the_order_of_the_keys(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {str(i): i for i in range(50)})
        store = provider.get_store(1)
        store.put(("7",), (70,))
        store.remove(("8",))
        asked = ["9", "none", "7", "8", "0", "9", "7"]
        for reader, expected in (
            (store, [9, None, 70, None, 0, 9, 70]),
            (provider.get_read_store(1), [9, None, 7, 8, 0, 9, 7]),
        ):
            found = reader.get_many(keys(asked))
            assert found.column_names == ["user", "total", "_found"]
            assert found["user"].to_pylist() == asked
            assert found["total"].to_pylist() == expected
            assert found["_found"].to_pylist() == [value is not None for value in expected]
            assert found["_found"].type == pa.bool_()

    def test_null_value_is_found_and_absent_is_not(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put_many(table([None, "a"], [1, None]))
        for reader in (store, provider.get_read_store(store.commit())):
            found = reader.get_many(keys(["a", "b", None]))
            assert found["total"].to_pylist() == [None, None, 1]
            assert found["_found"].to_pylist() == [True, False, True]
            assert reader.get(("a",)) == (None,)
            assert reader.get(("b",)) is None

    def test_empty_batches_change_nothing(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put_many(table([], []))
        store.remove_many(keys([]))
        assert store.get_many(keys([])).num_rows == 0
        assert store.scan().num_rows == 0
        no_chunks = pa.chunked_array([], pa.string())
        store.put_many(pa.table({"user": no_chunks, "total": pa.chunked_array([], pa.int64())}))
        assert store.get_many(pa.table({"user": no_chunks})).column_names[-1] == "_found"
        store.commit()
        assert totals(provider, 1) == {}

    def test_empty_store_finds_nothing(self, make_provider: MakeProvider) -> None:
        reader = make_provider().get_read_store(0)
        found = reader.get_many(keys(["a", None]))
        assert found["_found"].to_pylist() == [False, False]
        assert found["total"].to_pylist() == [None, None]
        assert found["total"].type == pa.int64()
        assert reader.scan().schema.names == ["user", "total"]

    def test_batches_in_chunks_slices_and_other_orders_are_understood(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        whole = table(["x", "a", "b", "c", "a", "x"], [0, 1, 2, 3, 4, 0])
        parts = pa.concat_tables([whole.slice(1, 2), whole.slice(3, 2)])
        store.put_many(parts.select(["total", "user"]))
        found = store.get_many(pa.concat_tables([keys(["c"]), keys(["a", "x"])]))
        assert found["total"].to_pylist() == [3, 4, None]
        store.commit()
        assert totals(provider, 1) == {"a": 4, "b": 2, "c": 3}

    def test_caller_may_reuse_buffers_after_put_many(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="k long, f double", value="v long, w double")
        store = provider.get_store(0)
        numbers, floats = np.arange(1000), np.arange(1000, dtype=float)
        columns = {
            "k": pa.array(numbers),
            "f": pa.array(floats),
            "v": pa.array(numbers),
            "w": pa.array(floats),
        }
        store.put_many(pa.table(columns))
        numbers[:], floats[:] = -1, -1.0
        expected = {(i, float(i)): (i, float(i)) for i in range(1000)}
        assert contents(store) == expected
        store.remove_many(pa.table({"k": pa.array([5]), "f": pa.array([5.0])}))
        store.commit()
        del expected[5, 5.0]
        assert contents(provider.get_read_store(1)) == expected

    def test_caller_may_reuse_text_buffers_after_put_many(
        self, make_provider: MakeProvider
    ) -> None:
        store = make_provider(key="k string", value="v string").get_store(0)
        scratch = bytearray(b"onetwo")
        offsets = pa.array([0, 3, 6], pa.int32()).buffers()[1]
        text = pa.StringArray.from_buffers(2, offsets, pa.py_buffer(scratch))
        store.put_many(pa.table({"k": text, "v": text}))
        scratch[:] = b"xxxyyy"
        assert contents(store) == {("one",): ("one",), ("two",): ("two",)}

    def test_missing_column_is_refused(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        with pytest.raises(InvalidArgument, match="total"):
            store.put_many(keys(["a"]))
        with pytest.raises(InvalidArgument, match="user"):
            store.get_many(table(["a"], [1]).select(["total"]))
        with pytest.raises(InvalidArgument, match="user"):
            store.remove_many(table(["a"], [1]).select(["total"]))
        assert contents(store) == {}

    def test_null_in_a_column_without_nulls_is_refused(self, make_provider: MakeProvider) -> None:
        store = make_provider(key="user string not null", value="total long not null").get_store(0)
        with pytest.raises(InvalidArgument, match="user"):
            store.put_many(table([None], [1]))
        with pytest.raises(InvalidArgument, match="total"):
            store.put_many(table(["a"], [None]))
        assert store.get_many(keys(["a"]))["total"].to_pylist() == [None]

    @pytest.mark.parametrize("batch", [None, [("a", 1)], {"user": ["a"], "total": [1]}, "a"])
    def test_what_is_no_table_is_refused(self, make_provider: MakeProvider, batch: Any) -> None:
        store = make_provider().get_store(0)
        for call in (store.put_many, store.remove_many, store.get_many):
            with pytest.raises(InvalidArgument, match=r"pyarrow\.Table"):
                call(batch)
        assert store.metrics.num_keys == 0

    def test_record_batch_is_taken_as_a_table(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        (batch,) = table(["a"], [1]).to_batches()
        store.put_many(batch)
        assert contents(store) == {("a",): (1,)}

    def test_column_that_comes_twice_is_refused_by_name(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        rows = pa.table([["a"], [1], [2]], names=["user", "total", "total"])
        with pytest.raises(InvalidArgument, match="'total'"):
            store.put_many(rows)
        with pytest.raises(InvalidArgument, match="'total'"):
            store.get_many(rows)

    @pytest.mark.parametrize(
        ("kind", "column"),
        [
            ("string", pa.array([1])),
            ("long", pa.array(["1"])),
            ("long", pa.array([1.0])),
            ("long", pa.array([True])),
            ("int", pa.array([1 << 40])),
            ("boolean", pa.array([1])),
            ("binary", pa.array(["a"])),
            ("string", pa.array([b"a"])),
            ("double", pa.array([(1 << 53) + 1])),
            ("double", pa.array(["1.5"])),
            ("float", pa.array([1e300])),
            ("timestamp", pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))),
            ("timestamp_ntz", pa.array([datetime(2026, 1, 1)], pa.timestamp("us", "UTC"))),
            ("timestamp", pa.array([1], pa.int64())),
            ("timestamp", pa.array([1], pa.timestamp("ns", "UTC"))),
            ("date", pa.array([datetime(2026, 1, 1)], pa.timestamp("us"))),
            ("date", pa.array([20_000], pa.int32())),
            ("decimal(5,2)", pa.array([Decimal("1.125")])),
            ("decimal(5,2)", pa.array([1.5])),
            ("varchar(3)", pa.array(["four"])),
            ("char(3)", pa.array(["four"])),
            ("array<varchar(3)>", pa.array([["abc", "four"]])),
            ("array<string>", pa.array([[1]])),
            ("struct<a:string>", pa.array([{"a": 1}])),
            ("struct<a:long>", pa.array([{"b": 1}])),
            ("struct<a:long NOT NULL>", pa.array([{"a": None}], pa.struct({"a": pa.int64()}))),
            ("map<string,varchar(3)>", pa.array([[("a", "four")]], pa.map_(*[pa.string()] * 2))),
        ],
        ids=lambda given: given if isinstance(given, str) else f"from {given.type}",
    )
    def test_column_of_another_meaning_is_refused_by_name_and_never_by_value(
        self, make_provider: MakeProvider, kind: str, column: pa.Array
    ) -> None:
        store = make_provider("k long", f"held {kind}").get_store(0)
        with pytest.raises(InvalidArgument, match="'held'") as refused:
            store.put_many(pa.table({"k": [1], "held": column}))
        assert "four" not in str(refused.value)
        assert store.metrics.num_keys == 0

    @pytest.mark.parametrize(
        ("kind", "column", "expected"),
        [
            ("long", pa.array([7], pa.int8()), 7),
            ("long", pa.array([7], pa.uint32()), 7),
            ("int", pa.array([7], pa.int64()), 7),
            ("double", pa.array([7], pa.int64()), 7.0),
            ("double", pa.array([0.5], pa.float32()), 0.5),
            ("decimal(22,2)", pa.array([7], pa.int64()), Decimal("7.00")),
            ("decimal(9,3)", pa.array([Decimal("1.5")]), Decimal("1.500")),
            ("string", pa.array(["a"], pa.large_string()), "a"),
            ("string", pa.array(["a"]).dictionary_encode(), "a"),
            ("binary", pa.array([b"ab"], pa.binary(2)), b"ab"),
            ("long", pa.nulls(1), None),
            ("timestamp", pa.array([MOMENT], pa.timestamp("ns", "+01:00")), MOMENT),
            ("varchar(3)", pa.array(["äöü"]), "äöü"),
            ("array<long>", pa.array([[1, None]], pa.list_(pa.int16())), [1, None]),
            ("map<string,int>", pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), {"a": 1}),
        ],
        ids=lambda given: f"from {given.type}" if isinstance(given, pa.Array) else str(given),
    )  # fmt: skip
    def test_column_in_another_form_is_converted(
        self, make_provider: MakeProvider, kind: str, column: pa.Array, expected: Any
    ) -> None:
        store = make_provider("k long", f"held {kind}").get_store(0)
        store.put_many(pa.table({"k": [1], "held": column}))
        assert store.get((1,)) == (expected,)

    def test_batches_are_refused_after_commit_and_abort(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        committed, aborted = provider.get_store(0), provider.get_store(0)
        committed.commit()
        aborted.abort()
        for ended in (committed, aborted):
            with pytest.raises(IllegalState) as put:
                ended.put_many(table(["a"], [1]))
            with pytest.raises(IllegalState) as remove:
                ended.remove_many(keys(["a"]))
            assert str(put.value) == "Cannot put after already committed or aborted"
            assert str(remove.value) == "Cannot remove after already committed or aborted"
        assert committed.get_many(keys(["a"])).num_rows == 1
        assert committed.scan().num_rows == 0
        with pytest.raises(Closed):
            aborted.get_many(keys(["a"]))
        with pytest.raises(Closed):
            aborted.scan()

    def test_scan_gives_columns_and_rows_that_were_asked_for(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1, "b": 2})
        store = provider.get_store(1)
        store.put(("c",), (3,))
        store.remove(("a",))
        rows = store.scan()
        assert rows.column_names == ["user", "total"]
        assert sorted(rows.to_pylist(), key=lambda row: row["total"]) == [
            {"user": "b", "total": 2},
            {"user": "c", "total": 3},
        ]
        assert store.scan(["total"], pc.field("user") == "c").to_pydict() == {"total": [3]}
        assert store.scan(where=pc.field("total") > 5).num_rows == 0

    def test_state_after_many_random_batches_is_that_of_a_dict(
        self, make_provider: MakeProvider, rng: Any
    ) -> None:
        provider = make_provider()
        expected: dict[str | None, int | None] = {}
        for version in range(12):
            store = provider.get_store(version)
            for _ in range(rng.randrange(4)):
                users = rng.choices([None, *map(str, range(300))], k=rng.randrange(80))
                amounts = [rng.choice([None, rng.randrange(9)]) for _ in users]
                if rng.random() < 0.7:
                    store.put_many(table(users, amounts))
                    expected.update(zip(users, amounts, strict=True))
                else:
                    store.remove_many(keys(users))
                    for user in users:
                        expected.pop(user, None)
            asked = rng.choices([None, *map(str, range(400))], k=200)
            found = store.get_many(keys(asked))
            assert found["total"].to_pylist() == [expected.get(user) for user in asked]
            assert found["_found"].to_pylist() == [user in expected for user in asked]
            assert store.metrics.num_keys == len(expected)
            store.commit()
            if version % 3 == 2:
                provider.do_maintenance()
            scanned = provider.get_read_store(version + 1).scan().to_pydict()
            assert len(scanned["user"]) == len(expected)
            assert dict(zip(scanned["user"], scanned["total"], strict=True)) == expected
