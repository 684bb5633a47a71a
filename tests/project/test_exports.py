"""Pins the public names."""

from __future__ import annotations

import holdfast
import holdfast.testing


def test_public_names_are_these_and_all_exist() -> None:
    assert sorted(holdfast.__all__) == [
        "ArithmeticOverflow", "Closed", "Conflict", "Corruption", "DEFAULT_STORE_NAME",
        "HoldfastError",
        "IllegalState", "InvalidArgument", "LiveState", "ReadStateStore", "RowPair", "StateStore",
        "StateStoreConf", "StateStoreCustomMetric", "StateStoreId", "StateStoreMetrics",
        "StateStoreProvider", "StateStoreProviderId", "StateStores", "Unavailable",
        "VersionInfo", "VersionNotFound", "VersionedStore", "addListener", "open", "read",
        "removeListener", "stateful", "streams",
    ]  # fmt: skip
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)


def test_public_names_of_testing_exist() -> None:
    assert {"MakeProvider", "ProviderConformance", "StorageConformance"} <= set(
        holdfast.testing.__all__
    )
    assert all(getattr(holdfast.testing, name) for name in holdfast.testing.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(holdfast, "nonsense")
    assert not hasattr(holdfast.testing, "nonsense")
