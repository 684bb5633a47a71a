"""Tests of a provider's life: restart, maintenance, metrics, close, large and colliding data."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.conf import StateStoreConf
from holdfast.errors import Closed, InvalidArgument, VersionNotFound
from holdfast.testing._provider_base import (
    MakeProvider,
    SuiteBase,
    advance,
    contents,
    total,
    totals,
)

_EAGER = StateStoreConf(min_deltas_for_snapshot=2, min_versions_to_retain=2, grace_period_ms=0)


class LifeContract(SuiteBase):
    """What happens to a provider and its files over time."""

    def needs_durability(self) -> None:
        """Skip the test for a provider whose state is lost with it."""
        if not self.durable:
            pytest.skip("the provider keeps nothing beyond its own life")

    def test_restarted_provider_finds_every_version(self, make_provider: MakeProvider) -> None:
        self.needs_durability()
        provider = make_provider()
        for version in range(5):
            advance(provider, version, {str(version): version, "all": version})
        provider.close()
        again = make_provider()
        assert again is not provider
        assert totals(again, 5) == {**{str(v): v for v in range(5)}, "all": 4}
        assert totals(again, 2) == {"0": 0, "1": 1, "all": 1}
        advance(again, 5, {"all": 5})
        assert total(make_provider(), 6, "all") == 5

    def test_two_providers_see_each_others_versions(self, make_provider: MakeProvider) -> None:
        self.needs_durability()
        one, other = make_provider(), make_provider()
        advance(one, 0, {"a": 1})
        advance(other, 1, {"a": 2})
        assert total(one, 2, "a") == 2
        advance(one, 2, {"a": 3})
        assert total(other, 3, "a") == 3

    def test_stores_of_other_partitions_are_apart(self, make_provider: MakeProvider) -> None:
        one, other = make_provider(partition_id=0), make_provider(partition_id=1)
        advance(one, 0, {"a": 1})
        assert totals(other, 0) == {}
        advance(other, 0, {"b": 2})
        assert (totals(one, 1), totals(other, 1)) == ({"a": 1}, {"b": 2})

    def test_other_schema_than_the_stored_one_is_refused(self, make_provider: MakeProvider) -> None:
        self.needs_durability()
        advance(make_provider(), 0, {"a": 1})
        with pytest.raises(InvalidArgument, match="total") as caught:
            make_provider(value="total string")
        assert caught.value.condition == "STATE_STORE_SCHEMA_MISMATCH"

    def test_old_version_without_successor_cannot_be_continued(
        self, make_provider: MakeProvider
    ) -> None:
        self.needs_durability()
        provider = make_provider(conf=_EAGER)
        for version in range(6):
            advance(provider, version, {"a": version})
        provider.do_maintenance()
        provider.close()
        again = make_provider(conf=_EAGER)
        store = again.get_store(0)
        store.put(("a",), (-1,))
        with pytest.raises(RuntimeError, match="Error committing version 1 into"):
            store.commit()
        store.abort()
        assert total(again, 6, "a") == 5

    def test_maintenance_changes_no_version(self, make_provider: MakeProvider) -> None:
        provider = make_provider(conf=replace(_EAGER, min_versions_to_retain=50))
        provider.do_maintenance()
        expected: list[dict[str, Any]] = [{}]
        for version in range(20):
            advance(provider, version, {str(version % 7): version, "gone": version})
            expected.append({**expected[-1], str(version % 7): version, "gone": version})
            if version % 4 == 3:
                advance_to = provider.get_store(version + 1)
                advance_to.abort()
                provider.do_maintenance()
        for version, state in enumerate(expected):
            assert totals(provider, version) == state

    def test_maintenance_spares_stores_in_use(self, make_provider: MakeProvider) -> None:
        provider = make_provider(conf=_EAGER)
        advance(provider, 0, {str(i): i for i in range(50)})
        reader = provider.get_read_store(1)
        assert reader.get(("0",)) == (0,)
        pairs = provider.get_read_store(1).iterator()
        for version in range(1, 8):
            advance(provider, version, {"a": version})
            provider.do_maintenance()
        assert len(contents(reader)) == 50
        assert len(list(pairs)) == 50
        assert total(provider, 8, "a") == 7
        assert total(provider, 7, "a") == 6

    def test_removed_keys_stay_removed_through_maintenance(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider(conf=_EAGER)
        advance(provider, 0, {str(i): i for i in range(20)})
        for version in range(1, 11):
            advance(provider, version, {str(version): None})
            provider.do_maintenance()
        left = {"0": 0, **{str(i): i for i in range(11, 20)}}
        assert totals(provider, 11) == left
        assert provider.get_read_store(11).metrics.num_keys == len(left)

    def test_metrics_name_exactly_what_the_provider_supports(
        self, make_provider: MakeProvider
    ) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        store.put(("a",), (1,))
        for reader in (store, provider.get_read_store(0)):
            assert tuple(reader.metrics.custom_metrics) == provider.supported_custom_metrics
            for metric, value in reader.metrics.custom_metrics.items():
                assert metric.kind in ("sum", "size", "timing")
                assert metric.description
                assert value >= 0
            assert reader.metrics.memory_used_bytes >= 0
            own = [metric.name for metric in provider.supported_custom_metrics]
            assert list(reader.metrics.json()) == ["numKeys", "memoryUsedBytes", *own]

    def test_number_of_keys_is_exact_at_every_moment(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        store = provider.get_store(0)
        counts = []
        for user, amount in (("a", 1), ("b", 2), ("a", 3), ("b", None), ("c", None), ("b", 4)):
            if amount is None:
                store.remove((user,))
            else:
                store.put((user,), (amount,))
            counts.append(store.metrics.num_keys)
        assert counts == [1, 2, 2, 1, 1, 2]
        store.commit()
        assert store.metrics.num_keys == 2
        assert provider.get_read_store(1).metrics.num_keys == 2
        assert provider.get_read_store(0).metrics.num_keys == 0

    def test_closed_provider_opens_nothing(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1})
        provider.close()
        provider.close()
        with pytest.raises(Closed):
            provider.get_store(1)
        with pytest.raises(Closed):
            provider.get_read_store(1)

    def test_abort_leaves_no_file(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        advance(provider, 0, {"a": 1})
        before = self.list_files()
        store = provider.get_store(1)
        store.put_many(_many_rows(20_000))
        store.abort()
        assert self.list_files() == before
        with pytest.raises(VersionNotFound):
            provider.get_store(2)

    def test_value_of_many_megabytes_survives(self, make_provider: MakeProvider) -> None:
        provider = make_provider(key="name string", value="body binary")
        body = os.urandom(1 << 20) * (self.big_value_bytes >> 20)
        store = provider.get_store(0)
        store.put(("small",), (b"x",))
        store.put(("large",), (body,))
        store.commit()
        store = provider.get_store(1)
        store.put(("other",), (body[: 1 << 20],))
        store.commit()
        if self.durable:
            provider.close()
            provider = make_provider(key="name string", value="body binary")
        reader = provider.get_read_store(2)
        found = reader.get(("large",))
        assert found is not None
        assert found[0] == body
        assert reader.get(("small",)) == (b"x",)
        assert reader.metrics.num_keys == 3

    def test_many_rows_in_many_versions_are_found(self, make_provider: MakeProvider) -> None:
        provider = make_provider()
        expected: dict[str, int] = {}
        for version in range(6):
            rows = _many_rows(20_000, version * 10_000)
            store = provider.get_store(version)
            store.put_many(rows)
            store.commit()
            expected.update(zip(*rows.to_pydict().values(), strict=True))
            provider.do_maintenance()
        reader = provider.get_read_store(6)
        assert reader.metrics.num_keys == len(expected) == 70_000
        found = reader.get_many(pa.table({"user": pa.array(list(expected))}))
        assert found["total"].to_pylist() == list(expected.values())
        assert reader.scan().num_rows == 70_000

    def test_keys_that_collide_are_told_apart(
        self, make_provider: MakeProvider, monkeypatch: pytest.MonkeyPatch, rng: Any
    ) -> None:
        self.force_collisions(monkeypatch)
        provider = make_provider(conf=replace(_EAGER, min_versions_to_retain=50))
        expected: dict[str, int] = {}
        for version in range(10):
            store = provider.get_store(version)
            for _ in range(15):
                user = str(rng.randrange(40))
                if rng.random() < 0.3:
                    expected.pop(user, None)
                    store.remove((user,))
                else:
                    expected[user] = rng.randrange(100)
                    store.put((user,), (expected[user],))
            batch = {str(rng.randrange(40)): rng.randrange(100) for _ in range(5)}
            twice = [*batch, *batch]
            amounts = [-1] * len(batch) + list(batch.values())
            store.put_many(pa.table({"user": twice, "total": pa.array(amounts, pa.int64())}))
            expected.update(batch)
            assert {u: (store.get((u,)) or [None])[0] for u in expected} == expected
            assert store.metrics.num_keys == len(expected)
            store.commit()
            provider.do_maintenance()
            assert totals(provider, version + 1) == expected
        asked = [str(i) for i in range(50)]
        found = provider.get_read_store(10).get_many(pa.table({"user": asked}))
        assert found["total"].to_pylist() == [expected.get(user) for user in asked]


def _many_rows(count: int, start: int = 0) -> pa.Table:
    users = [f"user-{number}" for number in range(start, start + count)]
    return pa.table({"user": users, "total": pa.array(range(count), pa.int64())})
