"""A state store provider of your own: a dict for each version, kept in one Arrow file.

    spark.conf.set("spark.holdfast.providerClass", "dict_provider.DictProvider")

It implements only the row contract: get, put, remove, iterator, commit, abort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow.feather as feather

from holdfast import (
    RowPair,
    StateStore,
    StateStoreConf,
    StateStoreId,
    StateStoreMetrics,
    StateStoreProvider,
)


class DictStore(StateStore):
    def __init__(self, provider: DictProvider, version: int, rows: dict[Any, Any]) -> None:
        self._provider, self._version, self._rows = provider, version, rows
        self._committed = False

    id = property(lambda self: self._provider.state_store_id)
    version = property(lambda self: self._version)
    key_schema = property(lambda self: self._provider.key_schema)
    value_schema = property(lambda self: self._provider.value_schema)
    has_committed = property(lambda self: self._committed)
    metrics = property(lambda self: StateStoreMetrics(len(self._rows), 0, {}))

    def get(self, key: Any) -> Any:
        return self._rows.get(tuple(key))

    def iterator(self) -> Iterator[RowPair]:
        return iter([RowPair(key, value) for key, value in self._rows.items()])

    def put(self, key: Any, value: Any) -> None:
        self._rows[tuple(key)] = tuple(value)

    def remove(self, key: Any) -> None:
        self._rows.pop(tuple(key), None)

    def commit(self) -> int:
        path = self._provider.path(self._version + 1)
        path.parent.mkdir(parents=True, exist_ok=True)
        feather.write_feather(self.scan(), f"{path}.tmp")
        Path(f"{path}.tmp").replace(path)
        self._committed = True
        return self._version + 1

    def abort(self) -> None:
        self._rows = {}


class DictProvider(StateStoreProvider):
    def init(
        self,
        state_store_id: StateStoreId,
        key_schema: Any,
        value_schema: Any,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        store_confs: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
    ) -> None:
        self._id, self.key_schema, self.value_schema = state_store_id, key_schema, value_schema

    state_store_id = property(lambda self: self._id)

    def path(self, version: int) -> Path:
        return Path(self._id.store_checkpoint_location()) / f"{version}.arrow"

    def get_store(self, version: int) -> DictStore:
        if version == 0 or not self.path(version).exists():
            if version:
                raise FileNotFoundError(f"version {version} of {self._id}")
            return DictStore(self, 0, {})
        table = feather.read_table(self.path(version), memory_map=False)
        keys = zip(*(table.column(n).to_pylist() for n in self.key_schema.names), strict=True)
        values = zip(*(table.column(n).to_pylist() for n in self.value_schema.names), strict=True)
        return DictStore(self, version, dict(zip(keys, values, strict=True)))

    def close(self) -> None:
        pass


if __name__ == "__main__":
    # It also works without Spark: make a provider by its name, here for a temporary folder.
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        named = StateStoreConf(provider_class="dict_provider.DictProvider")
        place = StateStoreId(folder, 0, 0)
        made = StateStoreProvider.create_and_init(
            place, "user string", "total long", store_conf=named
        )
        store = made.get_store(0)
        store.put(("Sankar",), (200,))
        print("committed version", store.commit())
        print("Sankar has", made.get_store(1).get(("Sankar",)))
