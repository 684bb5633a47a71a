"""Providers for the provider suite, at any place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.conf import StateStoreConf
from holdfast.engine.hashing import spark_hash
from holdfast.ids import StateStoreId
from holdfast.store import StateStoreProvider
from holdfast.testing import MakeProvider


def providers_at(
    location: str, settings: Mapping[str, Any], options: Mapping[str, str] | None = None
) -> MakeProvider:
    """Makes providers at a location that is reached by `options`; `settings` outdo a test's own."""

    def make(
        key: str = "user string",
        value: str = "total long",
        *,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        partition_id: int = 0,
        conf: StateStoreConf = StateStoreConf.empty,
    ) -> StateStoreProvider:
        return StateStoreProvider.create_and_init(
            StateStoreId(location, 0, partition_id),
            key,
            value,
            key_index_ordinal,
            num_cols_prefix_key,
            replace(conf, **settings),
            options,
        )

    return make


def collide_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the engine hash every key to one of three numbers."""
    real = spark_hash.KeyHasher.hash_columns

    def few(self: Any, columns: Any, num_rows: int | None = None) -> Any:
        return real(self, columns, num_rows) % 3

    monkeypatch.setattr(spark_hash.KeyHasher, "hash_columns", few)
    monkeypatch.setattr(spark_hash, "row_hasher", lambda schema, num_routing: None)
