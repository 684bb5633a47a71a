"""What the parts of the provider suite have in common."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any, ClassVar, Protocol

import pytest

from holdfast.conf import StateStoreConf
from holdfast.store import ReadStateStore, Row, StateStoreProvider


class MakeProvider(Protocol):
    """Makes providers over one place. A second call with the same arguments is a restart."""

    def __call__(
        self,
        key: str = "user string",
        value: str = "total long",
        *,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        partition_id: int = 0,
        conf: StateStoreConf = StateStoreConf.empty,
    ) -> StateStoreProvider:
        """Make a new provider and initialise it with the arguments."""
        ...


class SuiteBase:
    """The switches and fixtures of the suite."""

    durable: ClassVar[bool] = True
    exact_ranges: ClassVar[bool] = True
    big_value_bytes: ClassVar[int] = 50 << 20

    @pytest.fixture
    def make_provider(self) -> MakeProvider:
        """Makes providers; see `ProviderConformance`."""
        raise NotImplementedError("give the class a fixture named make_provider")

    @pytest.fixture
    def rng(self) -> Random:
        """Random choices, the same in every run."""
        return Random(42)

    def force_collisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Make the provider hash all keys to a few numbers from now on."""
        pytest.skip("the provider does not say how to make its keys collide")

    def list_files(self) -> list[str]:
        """Every file of the providers of this test, including temporary ones."""
        pytest.skip("the provider does not say how to list its files")


def advance(provider: StateStoreProvider, version: int, changes: Mapping[str, int | None]) -> int:
    """Commit the version after `version`: totals by user, None for a removal."""
    store = provider.get_store(version)
    for user, amount in changes.items():
        if amount is None:
            store.remove((user,))
        else:
            store.put((user,), (amount,))
    return store.commit()


def contents(store: ReadStateStore) -> dict[Row, Row]:
    """All pairs as a dict; checks that no key occurs twice."""
    pairs = list(store.iterator())
    found = {pair.key: pair.value for pair in pairs}
    assert len(found) == len(pairs), "a key came twice"
    return found


def totals(provider: StateStoreProvider, version: int) -> dict[str, Any]:
    """A version of a store with the default schemas as a plain dict."""
    return {key[0]: value[0] for key, value in contents(provider.get_read_store(version)).items()}


def total(provider: StateStoreProvider, version: int, user: str) -> Any:
    """One total of a version; None if there is none."""
    found = provider.get_read_store(version).get((user,))
    return None if found is None else found[0]
