"""What every state store provider must do, as a pytest class to inherit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import Closed, IllegalState, InvalidArgument, VersionNotFound
from holdfast.store import ReadStateStore, StateStore
from holdfast.testing._batch_suite import BatchContract
from holdfast.testing._life_suite import LifeContract
from holdfast.testing._provider_base import (
    MakeProvider,
    SuiteBase,
    advance,
    contents,
    total,
    totals,
)
from holdfast.testing._range_suite import RangeContract
from holdfast.testing._type_suite import TypeContract

__all__ = ["MakeProvider", "ProviderConformance"]


class RowContract(SuiteBase):
    """Tests of the row contract: get, put, remove, commit, abort, iterate."""

    def test_version_zero_is_empty(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        assert store.version == 0
        assert store.get(("a",)) is None
        assert contents(store) == {}
        assert store.metrics.num_keys == 0

    def test_put_is_read_back_before_and_after_commit(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        assert store.get(("a",)) == (1,)
        assert store.commit() == 1
        assert store.version == 0
        assert provider.get_store(1).version == 1
        assert total(provider, 1, "a") == 1

    def test_last_put_of_a_key_stays(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        store.put(("a",), (2,))
        assert store.get(("a",)) == (2,)
        store.commit()
        assert totals(provider, 1) == {"a": 2}

    def test_removed_key_is_gone(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1, "b": 2})
        store = provider.get_store(1)
        store.remove(("a",))
        assert store.get(("a",)) is None
        assert contents(store) == {("b",): (2,)}
        store.commit()
        assert totals(provider, 2) == {"b": 2}

    def test_removed_key_can_come_back(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1})
        store = provider.get_store(1)
        store.remove(("a",))
        store.put(("a",), (2,))
        assert store.get(("a",)) == (2,)
        store.commit()
        advance(provider, 2, {"a": None})
        advance(provider, 3, {"a": 4})
        assert [totals(provider, v) for v in (2, 3, 4)] == [{"a": 2}, {}, {"a": 4}]

    def test_removing_a_missing_key_changes_nothing(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1})
        store = provider.get_store(1)
        store.remove(("nobody",))
        assert store.metrics.num_keys == 1
        store.commit()
        assert totals(provider, 2) == {"a": 1}
        assert provider.get_read_store(2).metrics.num_keys == 1

    def test_key_put_and_removed_in_one_update_leaves_nothing(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        store.remove(("a",))
        assert store.metrics.num_keys == 0
        store.commit()
        assert totals(provider, 1) == {}

    def test_commit_without_changes_makes_a_version(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        assert provider.get_store(0).commit() == 1
        advance(provider, 1, {"a": 1})
        assert provider.get_store(2).commit() == 3
        assert [totals(provider, v) for v in (1, 2, 3)] == [{}, {"a": 1}, {"a": 1}]

    def test_every_version_stays_as_it_was(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        expected: list[dict[str, int]] = [{}]
        for version in range(12):
            changes: dict[str, int | None] = {"all": version, f"only-{version}": version}
            if version % 3 == 2:
                changes[f"only-{version - 1}"] = None
            advance(provider, version, changes)
            state: dict[str, Any] = {**expected[-1], **changes}
            expected.append({k: v for k, v in state.items() if v is not None})
        for version, state in enumerate(expected):
            assert totals(provider, version) == state

    def test_ids_and_schemas_are_those_of_the_provider(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store, reader = provider.get_store(0), provider.get_read_store(0)
        assert store.id == reader.id == provider.state_store_id
        assert store.key_schema.names == ("user",)
        assert reader.value_schema.names == ("total",)

    def test_negative_version_is_refused(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        with pytest.raises(InvalidArgument):
            provider.get_store(-1)
        with pytest.raises(InvalidArgument):
            provider.get_read_store(-1)

    def test_version_never_committed_is_not_found(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        with pytest.raises(VersionNotFound):
            provider.get_store(1)
        advance(provider, 0, {"a": 1})
        store = provider.get_store(1)
        store.put(("b",), (2,))
        with pytest.raises(VersionNotFound):
            provider.get_read_store(2)
        store.abort()
        with pytest.raises(VersionNotFound):
            provider.get_store(2)

    def test_rows_are_taken_as_tuples_lists_and_dicts(self, make_provider: MakeProvider) -> None:
        store = make_provider(key="a string, b int", value="c long, d string").get_store(0)
        store.put(("x", 1), (1, "one"))
        store.put(["x", 2], [2, "two"])
        store.put({"b": 3, "a": "x"}, {"d": "three", "c": 3})
        assert store.get({"a": "x", "b": 1}) == (1, "one")
        assert store.get(("x", 2)) == (2, "two")
        assert store.get(("x", 3)) == (3, "three")

    @pytest.mark.parametrize("row", [("a", 1), (), (1,), ("a", "b"), {"name": "a"}, "a", 5])
    def test_row_that_does_not_fit_the_key_is_refused(
        self, make_provider: MakeProvider, row: Any
    ) -> None:
        store = make_provider().get_store(0)
        with pytest.raises(InvalidArgument):
            store.put(row, (1,))
        assert contents(store) == {}

    def test_none_as_key_or_value_is_refused(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        with pytest.raises(InvalidArgument):
            store.put(None, (1,))
        with pytest.raises(InvalidArgument):
            store.put(("a",), None)
        with pytest.raises(InvalidArgument):
            store.get(None)
        with pytest.raises(InvalidArgument):
            store.remove(None)
        assert contents(store) == {}

    def test_null_inside_a_row_is_data(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="a string, b string", value="total long")
        rows = {("k", None): (1,), (None, "k"): (2,), (None, None): (None,), ("k", "k"): (3,)}
        store = provider.get_store(0)
        for key, value in rows.items():
            store.put(key, value)
        assert contents(store) == rows
        store.commit()
        reader = provider.get_read_store(1)
        assert contents(reader) == rows
        assert {key: reader.get(key) for key in rows} == rows
        store = provider.get_store(1)
        store.remove((None, "k"))
        store.commit()
        del rows[None, "k"]
        assert contents(provider.get_read_store(2)) == rows

    def test_null_where_the_schema_has_none_is_refused(self, make_provider: MakeProvider) -> None:
        store = make_provider(key="user string not null", value="total long not null").get_store(0)
        with pytest.raises(InvalidArgument):
            store.put((None,), (1,))
        with pytest.raises(InvalidArgument):
            store.put(("a",), (None,))

    def test_caller_may_reuse_rows_and_cells_after_put(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="k array<int>, b binary", value="v array<int>, w binary")
        store = provider.get_store(0)
        key: list[Any] = [[1, 2], bytearray(b"key")]
        value: list[Any] = [[3], bytearray(b"value")]
        store.put(key, value)
        key[0].append(9)
        key[1][:] = b"xyz"
        value[0].clear()
        value[1][:] = b"other"
        key[:], value[:] = [None, None], [None, None]
        assert contents_of_lists(store) == [(([1, 2], b"key"), ([3], b"value"))]
        store.commit()
        reader = provider.get_read_store(1)
        assert reader.get(([1, 2], b"key")) == ([3], b"value")

    def test_changing_what_get_returned_changes_no_state(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="k long", value="v array<int>, m map<string,int>")
        store = provider.get_store(0)
        store.put((1,), ([1], {"a": 1}))
        self._change_what_get_returns(store)
        store.commit()
        self._change_what_get_returns(store)
        self._change_what_get_returns(provider.get_read_store(1))

    def _change_what_get_returns(self, reader: ReadStateStore) -> None:
        got = reader.get((1,))
        assert got is not None
        got[0].append(2)
        got[1]["b"] = 2
        assert reader.get((1,)) == ([1], {"a": 1})

    def test_iterator_sees_the_state_as_of_its_creation(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1, "b": 2})
        store = provider.get_store(1)
        store.put(("c",), (3,))
        pairs = store.iterator()
        store.put(("a",), (10,))
        store.remove(("b",))
        store.put(("d",), (4,))
        seen = {pair.key[0]: pair.value[0] for pair in pairs}
        assert seen == {"a": 1, "b": 2, "c": 3}
        assert contents(store) == {("a",): (10,), ("c",): (3,), ("d",): (4,)}

    def test_updates_are_allowed_while_iterating(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {str(i): i for i in range(100)})
        store = provider.get_store(1)
        for pair in store.iterator():
            store.put((pair.key[0] + "'",), pair.value)
            if pair.value[0] % 2:
                store.remove(pair.key)
        store.commit()
        evens = {str(i): i for i in range(0, 100, 2)}
        assert totals(provider, 2) == {**evens, **{f"{i}'": i for i in range(100)}}

    def test_iterator_goes_on_after_commit(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        store.put(("b",), (2,))
        pairs = store.iterator()
        next(pairs)
        store.commit()
        assert len(list(pairs)) == 1

    def test_nothing_can_be_changed_after_commit(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        store.commit()
        self._expect_ended(store)
        assert totals(provider, 1) == {"a": 1}

    def test_nothing_can_be_changed_after_abort(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        store.put(("a",), (1,))
        store.abort()
        self._expect_ended(store)

    def _expect_ended(self, store: StateStore) -> None:
        with pytest.raises(IllegalState) as put:
            store.put(("b",), (2,))
        with pytest.raises(IllegalState) as remove:
            store.remove(("a",))
        with pytest.raises(IllegalState) as commit:
            store.commit()
        assert str(put.value) == "Cannot put after already committed or aborted"
        assert str(remove.value) == "Cannot remove after already committed or aborted"
        assert str(commit.value) == "Cannot commit after already committed or aborted"
        assert isinstance(put.value, RuntimeError)
        assert put.value.condition == "STATE_STORE_ILLEGAL_STATE"

    def test_reads_go_on_after_commit(self, make_provider: MakeProvider) -> None:
        store = make_provider().get_store(0)
        store.put(("a",), (1,))
        store.commit()
        assert store.get(("a",)) == (1,)
        assert contents(store) == {("a",): (1,)}
        assert store.metrics.num_keys == 1

    def test_reads_raise_closed_after_abort(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store, reader = provider.get_store(0), provider.get_read_store(0)
        for aborted in (store, reader):
            aborted.abort()
            with pytest.raises(Closed):
                aborted.get(("a",))
            with pytest.raises(Closed):
                aborted.iterator()

    def test_abort_drops_every_change(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1})
        store = provider.get_store(1)
        store.put(("b",), (2,))
        store.remove(("a",))
        store.abort()
        store.abort()
        assert totals(provider, 1) == {"a": 1}
        advance(provider, 1, {"c": 3})
        assert totals(provider, 2) == {"a": 1, "c": 3}

    def test_abort_after_commit_changes_nothing(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        store.commit()
        store.abort()
        assert store.has_committed
        assert store.get(("a",)) == (1,)
        assert totals(provider, 1) == {"a": 1}

    def test_has_committed_only_after_commit(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store, other = provider.get_store(0), provider.get_store(0)
        states = [store.has_committed]
        store.commit()
        states.append(store.has_committed)
        other.abort()
        states.append(other.has_committed)
        assert states == [False, True, False]

    def test_readers_and_a_writer_of_one_version_do_not_meet(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1, "b": 2})
        first, second = provider.get_read_store(1), provider.get_read_store(1)
        writer = provider.get_store(1)
        writer.put(("a",), (10,))
        writer.remove(("b",))
        first.abort()
        assert contents(second) == {("a",): (1,), ("b",): (2,)}
        assert second.get(("a",)) == (1,)
        writer.commit()
        assert contents(second) == {("a",): (1,), ("b",): (2,)}
        assert totals(provider, 2) == {"a": 10}

    def test_second_writer_of_a_version_is_refused(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1})
        first, second = provider.get_store(1), provider.get_store(1)
        first.put(("a",), (2,))
        second.put(("a",), (3,))
        assert second.get(("a",)) == (3,)
        first.commit()
        with pytest.raises(IllegalState, match="Error committing version 2 into") as caught:
            second.commit()
        assert caught.value.__cause__ is not None
        assert not second.has_committed
        second.abort()
        assert totals(provider, 2) == {"a": 2}

    def test_threads_read_while_one_writes(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {str(i): 0 for i in range(200)})

        def read(_: int) -> set[int]:
            seen: set[int] = set()
            for _ in range(10):
                reader = provider.get_read_store(1)
                seen.update(pair.value[0] for pair in reader.iterator())
                assert reader.get(("7",)) == (0,)
            return seen

        with ThreadPoolExecutor(4) as pool:
            reads = pool.map(read, range(4))
            for version in range(1, 8):
                advance(provider, version, {str(i): version for i in range(200)})
            assert list(reads) == [{0}] * 4
        assert total(provider, 8, "7") == 7

    def test_state_after_many_random_updates_is_that_of_a_dict(
        self, make_provider: MakeProvider, rng: Any
    ) -> None:
        provider = make_provider()
        expected: dict[str, int] = {}
        history = [dict(expected)]
        for version in range(15):
            store = provider.get_store(version)
            state = dict(expected)
            for _ in range(rng.randrange(40)):
                key = f"k{rng.randrange(30)}"
                if rng.random() < 0.7:
                    state[key] = rng.randrange(1000)
                    store.put((key,), (state[key],))
                else:
                    state.pop(key, None)
                    store.remove((key,))
                assert store.get((key,)) == ((state[key],) if key in state else None)
            assert contents(store) == {(k,): (v,) for k, v in state.items()}
            assert store.metrics.num_keys == len(state)
            store.commit()
            expected = state
            history.append(state)
            if rng.random() < 0.3:
                provider.do_maintenance()
        for version, state in enumerate(history):
            assert totals(provider, version) == state


def contents_of_lists(store: StateStore) -> list[tuple[Any, Any]]:
    """Every pair, for rows that cannot be dictionary keys."""
    return [(pair.key, pair.value) for pair in store.iterator()]


class ProviderConformance(RowContract, BatchContract, RangeContract, LifeContract, TypeContract):
    """Inherit it in a class whose name starts with Test, and give the class a `make_provider`.

    The fixture `make_provider` returns a `MakeProvider`: each call makes and initialises a new
    provider over the same place, which is empty at first. So a second call with the same arguments
    is a restart.

    Class attributes switch off what a provider may lack:

    - `durable`: a new provider finds what another one committed before;
    - `exact_ranges`: `get_range` returns no pair outside the range if there is an index;
    - `big_value_bytes`: the largest value to try.

    A provider that hashes keys overrides `force_collisions`; one that writes files, `list_files`.
    """
