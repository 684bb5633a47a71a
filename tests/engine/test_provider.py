"""The columnar provider: the conformance suite in every mode, and what is its own."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from holdfast.conf import StateStoreConf
from holdfast.engine import hashing
from holdfast.ids import StateStoreId
from holdfast.store import StateStoreProvider
from holdfast.testing import MakeProvider, ProviderConformance

_names = itertools.count()


class EngineConformance(ProviderConformance):
    """The suite over the file-backed provider with some settings."""

    settings: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def root(self, tmp_path: Path) -> str:
        self._path = tmp_path / "root"
        return str(self._path)

    @pytest.fixture
    def make_provider(self, root: str) -> MakeProvider:
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
                StateStoreId(root, 0, partition_id),
                key,
                value,
                key_index_ordinal,
                num_cols_prefix_key,
                replace(conf, **self.settings),
            )

        return make

    def force_collisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = hashing.KeyHasher.hash_columns

        def few(self: Any, columns: Any, num_rows: int | None = None) -> Any:
            return real(self, columns, num_rows) % 3

        monkeypatch.setattr(hashing.KeyHasher, "hash_columns", few)
        monkeypatch.setattr(hashing, "row_hasher", lambda schema, num_routing: None)

    def list_files(self) -> list[str]:
        return sorted(str(path) for path in self._path.rglob("*") if path.is_file())


class TestLocal(EngineConformance):
    pass


class TestMemory(EngineConformance):
    @pytest.fixture
    def root(self) -> str:
        return f"memory://conformance-{next(_names)}"

    def list_files(self) -> list[str]:
        pytest.skip("a memory root has no temporary files")


class TestLz4(TestMemory):
    settings: ClassVar[dict[str, Any]] = {"compression": "lz4"}


class TestZstdReopenedEachTime(TestMemory):
    settings: ClassVar[dict[str, Any]] = {
        "compression": "zstd",
        "max_versions_to_retain_in_memory": 0,
    }


class TestWithoutPacks(TestMemory):
    settings: ClassVar[dict[str, Any]] = {"pack_threshold_bytes": 0}
