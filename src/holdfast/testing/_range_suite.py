"""Tests of ranges over an index column, and of key prefixes."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from holdfast.errors import InvalidArgument
from holdfast.store import ReadStateStore, StateStoreProvider
from holdfast.testing._provider_base import MakeProvider, SuiteBase, contents

_NOON = datetime(2024, 2, 29, 12, tzinfo=UTC)
_HOUR = timedelta(hours=1)
_INDEXES: dict[str, list[Any]] = {
    "long": [-(2**63), -5, 0, 7, 2**63 - 1],
    "int": [-(2**31), -5, 0, 7, 2**31 - 1],
    "tinyint": [-128, -5, 0, 7, 127],
    "timestamp": [_NOON - 9000 * _HOUR, _NOON - _HOUR, _NOON, _NOON + _HOUR, _NOON + 9000 * _HOUR],
    "timestamp_ntz": [datetime(1900 + 50 * i, 1, 1) for i in range(5)],
    "date": [date(1900 + 50 * i, 1, 1) for i in range(5)],
    "string": ["", "a", "a b", "b", "é"],
    "binary": [b"", b"\x00", b"a", b"ab", b"\xff"],
    "double": [-1e300, -0.5, 0.0, 0.5, float("inf")],
    "decimal(10,2)": [Decimal(i).scaleb(-2) for i in (-500, -1, 0, 1, 500)],
    "interval day to second": [timedelta(days=i) for i in (-300, -1, 0, 1, 300)],
}


class RangeContract(SuiteBase):
    """`get_range` and `prefix_scan`."""

    @pytest.mark.parametrize("kind", _INDEXES)
    def test_range_gives_what_lies_between_both_ends_included(
        self, make_provider: MakeProvider, kind: str
    ) -> None:
        cells = _INDEXES[kind]
        provider = make_provider(key=f"n int, at {kind}", value="total long", key_index_ordinal=1)
        store = provider.get_store(0)
        for number, cell in enumerate([*cells, None]):
            for twin in (0, 1):
                store.put((twin, cell), (number,))
        store.commit()
        writer = provider.get_store(1)
        writer.remove((1, cells[1]))
        writer.put((2, cells[2]), (2,))
        self._check_ranges(provider.get_read_store(1), cells)
        self._check_ranges(writer, cells)
        writer.commit()
        self._check_ranges(provider.get_read_store(2), cells)

    def _check_ranges(self, reader: ReadStateStore, cells: list[Any]) -> None:
        everything = contents(reader)
        ends = [None, *cells]
        for start in ends:
            for end in ends:
                expected = {
                    key: value
                    for key, value in everything.items()
                    if start is end is None
                    or (
                        key[1] is not None
                        and (start is None or key[1] >= start)
                        and (end is None or key[1] <= end)
                    )
                }
                pairs = list(reader.get_range(start, end))
                found = {pair.key: pair.value for pair in pairs}
                assert len(found) == len(pairs)
                if self.exact_ranges:
                    assert found == expected
                assert found.items() >= expected.items()

    def test_range_without_an_index_misses_nothing(self, make_provider: MakeProvider) -> None:
        store = make_provider(key="at long", value="total long").get_store(0)
        for number in range(10):
            store.put((number,), (number,))
        assert {pair.key[0] for pair in store.get_range(3, 5)} >= {3, 4, 5}

    def test_range_is_that_of_its_creation(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="at long", value="total long", key_index_ordinal=0)
        store = provider.get_store(0)
        for number in range(10):
            store.put((number,), (number,))
        pairs = store.get_range(3, 5)
        store.remove((4,))
        store.put((5,), (50,))
        expected = {3: 3, 4: 4, 5: 5}
        assert expected.items() <= {pair.key[0]: pair.value[0] for pair in pairs}.items()

    def test_range_end_of_another_type_is_refused(self, make_provider: MakeProvider) -> None:
        if not self.exact_ranges:
            pytest.skip("the provider does not look at the ends")
        store = make_provider(key="at long", value="total long", key_index_ordinal=0).get_store(0)
        with pytest.raises(InvalidArgument):
            store.get_range("three", None)

    def test_nan_lies_above_every_number(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="at double", value="total long", key_index_ordinal=0)
        store = provider.get_store(0)
        for number, cell in enumerate([1.0, float("inf"), float("nan")]):
            store.put((cell,), (number,))
        for reader in (store, provider.get_read_store(store.commit())):
            assert {pair.value[0] for pair in reader.get_range(1.0, None)} == {0, 1, 2}
            assert {pair.value[0] for pair in reader.get_range(float("nan"), None)} >= {2}
            assert {pair.value[0] for pair in reader.get_range(None, float("nan"))} == {0, 1, 2}

    def prefixed(self, make_provider: MakeProvider) -> StateStoreProvider:
        """A provider with maps of entries: a user and a day first, then the entry."""
        return make_provider(
            key="user string, day int, entry long", value="total long", num_cols_prefix_key=2
        )

    def test_prefix_scan_finds_every_key_of_the_prefix(self, make_provider: MakeProvider) -> None:
        provider = self.prefixed(make_provider)
        store = provider.get_store(0)
        users = ["a", "b", None]
        for user in users:
            for day in (1, 2, None):
                for entry in range(5):
                    store.put((user, day, entry), (entry,))
        store.commit()
        writer = provider.get_store(1)
        writer.remove(("a", 1, 0))
        writer.put(("a", 1, 9), (9,))
        writer.put_many(writer.scan().slice(0, 3))
        for reader, expected in (
            (provider.get_read_store(1), {0, 1, 2, 3, 4}),
            (writer, {1, 2, 3, 4, 9}),
            (provider.get_read_store(writer.commit()), {1, 2, 3, 4, 9}),
        ):
            for prefix in (("a", 1), ["a", 1], {"day": 1, "user": "a"}):
                pairs = list(reader.prefix_scan(prefix))
                assert {pair.key[:2] for pair in pairs} == {("a", 1)}
                assert sorted(pair.value[0] for pair in pairs) == sorted(expected)
            assert {pair.key[:2] for pair in reader.prefix_scan((None, None))} == {(None, None)}
            assert len(list(reader.prefix_scan(("b", None)))) == 5
            assert list(reader.prefix_scan(("nobody", 1))) == []
            assert reader.get(("b", 2, 3)) == (3,)

    def test_prefix_scan_sees_the_state_as_of_its_creation(
        self, make_provider: MakeProvider
    ) -> None:
        store = self.prefixed(make_provider).get_store(0)
        for entry in range(3):
            store.put(("a", 1, entry), (entry,))
        pairs = store.prefix_scan(("a", 1))
        store.put(("a", 1, 7), (7,))
        store.remove(("a", 1, 0))
        assert sorted(pair.value[0] for pair in pairs) == [0, 1, 2]
        for pair in store.prefix_scan(("a", 1)):
            store.remove(pair.key)
        assert contents(store) == {}

    def test_prefix_of_another_width_is_refused(self, make_provider: MakeProvider) -> None:
        store = self.prefixed(make_provider).get_store(0)
        with pytest.raises(InvalidArgument):
            store.prefix_scan(("a", 1, 2, 3))
