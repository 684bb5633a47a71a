"""Tests of every Spark SQL type as key and as value."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from holdfast.store import ReadStateStore
from holdfast.testing._provider_base import MakeProvider, SuiteBase

_NAN = math.nan
KEY_CELLS: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 0, 127],
    "smallint": [-(2**15), 0, 2**15 - 1],
    "int": [-(2**31), 0, 2**31 - 1],
    "long": [-(2**63), 0, 2**63 - 1, 2**53 + 1],
    "float": [0.5, -math.inf, 0.0],
    "double": [0.1, -1e300, math.inf, 5e-324],
    "decimal(5,2)": [Decimal("999.99"), Decimal("-0.01"), Decimal("0.00")],
    "decimal(38,10)": [Decimal("1234567890123456789012345678.0123456789"), Decimal("0E-10")],
    "string": ["", "plain", "漢字 \U0001f980", "a" * 300, "nul\x00inside"],
    "varchar(5)": ["", "12345"],
    "binary": [b"", b"\x00\xff", b"x" * 300],
    "date": [date(1, 1, 1), date(1970, 1, 1), date(9999, 12, 31)],
    "timestamp": [datetime(1900, 1, 1, tzinfo=UTC), datetime(2024, 2, 29, 1, 2, 3, 4, tzinfo=UTC)],
    "timestamp_ntz": [datetime(1900, 1, 1), datetime(2024, 2, 29, 1, 2, 3, 4)],
    "time": [time(0), time(23, 59, 59, 999999)],
    "interval year to month": [-14, 0, 2**31 - 1],
    "interval day to second": [timedelta(microseconds=-1), timedelta(days=100, microseconds=7)],
    "interval": [pa.MonthDayNano((1, -2, 3000)), pa.MonthDayNano((0, 0, 0))],
    "struct<a:int,b:string>": [(1, "x"), (None, "x"), (1, None), (None, None)],
    "struct<a:int not null,b:struct<c:double>>": [(1, (0.5,)), (1, None), (2, (None,))],
    "array<int>": [[], [1], [1, None], [None, 1]],
    "array<struct<a:string>>": [[("x",)], [None, (None,)]],
    "array<array<double>>": [[[0.5], []], [None, [None]]],
}
VALUE_CELLS: dict[str, list[Any]] = {
    **KEY_CELLS,
    "map<string,int>": [{}, {"a": 1, "b": None}],
    "map<int,array<string>>": [{1: ["x", None], 2: None}],
    "struct<m:map<string,double>>": [({"a": 0.5},), (None,)],
    "variant": [(b"\x0c\x01", b"\x01\x00\x00")],
    "char(3)": ["abc"],
}


def pairs_of(store: ReadStateStore) -> list[tuple[Any, Any]]:
    """Every pair in a fixed order, so that rows that cannot be hashed can be compared."""
    return sorted(((pair.key, pair.value) for pair in store.iterator()), key=repr)


class TypeContract(SuiteBase):
    """Types, nulls, and floats that are equal with different bits."""

    @pytest.mark.parametrize("kind", KEY_CELLS)
    def test_every_type_is_a_key(self, make_provider: MakeProvider, kind: str) -> None:
        provider = make_provider(key=f"n int, k {kind}", value="total long")
        cells = [*KEY_CELLS[kind], None]
        store = provider.get_store(0)
        for number, cell in enumerate(cells):
            store.put((0, cell), (number,))
            store.put((1, cell), (-number,))
        assert [store.get((0, cell)) for cell in cells] == [(n,) for n in range(len(cells))]
        store.commit()
        reader = provider.get_read_store(1)
        assert [reader.get((0, cell)) for cell in cells] == [(n,) for n in range(len(cells))]
        everything = reader.scan()
        assert everything.num_rows == 2 * len(cells)
        found = reader.get_many(everything.select(["n", "k"]))
        assert found["_found"].to_pylist() == [True] * (2 * len(cells))
        assert found["total"].equals(everything["total"])
        store = provider.get_store(1)
        store.put_many(everything)
        assert store.metrics.num_keys == 2 * len(cells)
        for cell in cells:
            store.remove((1, cell))
        store.commit()
        expected = sorted((((0, cell), (n,)) for n, cell in enumerate(cells)), key=repr)
        assert pairs_of(provider.get_read_store(2)) == expected
        store = provider.get_store(2)
        store.remove_many(everything.select(["n", "k"]))
        store.commit()
        assert pairs_of(provider.get_read_store(3)) == []

    @pytest.mark.parametrize("kind", VALUE_CELLS)
    def test_every_type_is_a_value(self, make_provider: MakeProvider, kind: str) -> None:
        provider = make_provider(key="k int", value=f"v {kind}, w string")
        cells = [*VALUE_CELLS[kind], None]
        expected = {number: (cell, "w") for number, cell in enumerate(cells)}
        store = provider.get_store(0)
        for number, value in expected.items():
            store.put((number,), value)
        assert {number: store.get((number,)) for number in expected} == expected
        store.commit()
        reader = provider.get_read_store(1)
        assert {number: reader.get((number,)) for number in expected} == expected
        assert {pair.key[0]: pair.value for pair in reader.iterator()} == expected
        everything = reader.scan()
        found = reader.get_many(pa.table({"k": pa.array([99, *expected], pa.int32())}))
        assert found["_found"].to_pylist() == [False] + [True] * len(cells)
        store = provider.get_store(1)
        store.remove((0,))
        store.put_many(everything)
        store.commit()
        provider.do_maintenance()
        reader = provider.get_read_store(2)
        assert {pair.key[0]: pair.value for pair in reader.iterator()} == expected

    @pytest.mark.parametrize("kind", ["float", "double"])
    def test_nan_is_one_key_and_negative_zero_is_zero(
        self, make_provider: MakeProvider, kind: str
    ) -> None:
        provider = make_provider(key=f"n int, k {kind}", value="total long")
        store = provider.get_store(0)
        store.put((1, -0.0), (1,))
        store.put((1, 0.0), (2,))
        store.put((1, _NAN), (3,))
        store.put((1, -_NAN), (4,))
        assert store.metrics.num_keys == 2
        arrow = pa.float32() if kind == "float" else pa.float64()
        floats = pa.array([-0.0, 0.0, _NAN, -_NAN], arrow)
        batch = pa.table({"n": pa.array([1] * 4, pa.int32()), "k": floats})
        for reader in (store, provider.get_read_store(store.commit())):
            assert reader.get((1, 0.0)) == reader.get((1, -0.0)) == (2,)
            assert reader.get((1, float("nan"))) == (4,)
            assert reader.get_many(batch)["total"].to_pylist() == [2, 2, 4, 4]
        store = provider.get_store(1)
        store.put_many(batch.append_column("total", pa.array([5, 6, 7, 8])))
        assert store.get((1, -0.0)) == (6,)
        store.remove((1, _NAN))
        store.commit()
        (pair,) = provider.get_read_store(2).iterator()
        assert pair.value == (6,)
        assert math.copysign(1, pair.key[1]) == 1

    @pytest.mark.parametrize("kind", ["array<double>", "struct<a:double>"])
    def test_nan_and_zero_are_one_key_each_inside_others(
        self, make_provider: MakeProvider, kind: str
    ) -> None:
        provider = make_provider(key=f"k {kind}", value="total long")

        def nest(cell: float) -> Any:
            return ([cell] if kind.startswith("array") else (cell,),)

        store = provider.get_store(0)
        for number, cell in enumerate([-0.0, 0.0, _NAN, -_NAN]):
            store.put(nest(cell), (number,))
        store.commit()
        reader = provider.get_read_store(1)
        assert reader.metrics.num_keys == 2
        assert reader.get(nest(-0.0)) == (1,)
        assert reader.get(nest(float("nan"))) == (3,)

    def test_nan_and_negative_zero_are_kept_in_values(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="k int", value="v double")
        store = provider.get_store(0)
        store.put((1,), (-0.0,))
        store.put((2,), (_NAN,))
        for reader in (store, provider.get_read_store(store.commit())):
            zero, nan = reader.get((1,)), reader.get((2,))
            assert zero is not None
            assert nan is not None
            assert math.copysign(1, zero[0]) == -1
            assert math.isnan(nan[0])
