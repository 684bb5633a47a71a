"""The contracts alone: a provider of plain dicts passes the suite by the default batch methods."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from made_providers import providers_at

from holdfast.conf import StateStoreConf
from holdfast.errors import (
    Closed,
    Conflict,
    HoldfastError,
    IllegalState,
    InvalidArgument,
    VersionNotFound,
)
from holdfast.ids import StateStoreId
from holdfast.store import (
    Row,
    RowPair,
    StateStore,
    StateStoreCustomMetric,
    StateStoreMetrics,
    StateStoreProvider,
)
from holdfast.testing import MakeProvider, ProviderConformance
from holdfast.types import RowCodec, Schema

PUTS = StateStoreCustomMetric("puts", "rows put since the store was opened")
State = dict[Any, RowPair]


class DictStore(StateStore):
    """A version as a dict. Implements the row contract and nothing else."""

    id: StateStoreId = None  # type: ignore[assignment]  # set below; properties would be longer
    version: int = 0  # type: ignore[assignment]
    key_schema: Schema = None  # type: ignore[assignment]
    value_schema: Schema = None  # type: ignore[assignment]

    def __init__(self, provider: DictProvider, version: int) -> None:
        self._provider, self.version, self.id = provider, version, provider.state_store_id
        self.key_schema, self.value_schema = provider.schemas
        self._keys, self._values = map(RowCodec, provider.schemas)
        self._rows, self._ended, self._puts = dict(provider.versions[version]), "", 0

    def get(self, key: Any) -> Row | None:
        found = self._readable().get(self._keys.hashable(self._keys.encode(key)))
        return None if found is None else self._values.encode(found.value)

    def iterator(self) -> Iterator[RowPair]:
        return iter(list(self._readable().values()))

    def put(self, key: Any, value: Any) -> None:
        self._check("put")
        row = self._keys.encode(key)
        self._puts += 1
        frozen = self._keys.hashable(row)
        kept = self._rows[frozen].key if frozen in self._rows else row
        self._rows[frozen] = RowPair(_positive(kept), self._values.encode(value))

    def remove(self, key: Any) -> None:
        self._check("remove")
        self._rows.pop(self._keys.hashable(self._keys.encode(key)), None)

    def commit(self) -> int:
        self._check("commit")
        new = self.version + 1
        try:
            if new in self._provider.versions:
                raise Conflict(f"Version {new} exists.")
        except Conflict as error:
            raise IllegalState(f"Error committing version {new} into {self}") from error
        self._provider.versions[new], self._ended = self._rows, "committed"
        return new

    def abort(self) -> None:
        self._ended = self._ended or "aborted"

    @property
    def has_committed(self) -> bool:
        return self._ended == "committed"

    @property
    def metrics(self) -> StateStoreMetrics:
        return StateStoreMetrics(len(self._rows), 0, {PUTS: self._puts})

    def _readable(self) -> State:
        if self._ended == "aborted":
            raise Closed("The store was aborted.")
        return self._rows

    def _check(self, what: str) -> None:
        if self._ended:
            raise IllegalState(f"Cannot {what} after already committed or aborted")


class DictProvider(StateStoreProvider):
    """Versions as dicts, gone with the provider."""

    supported_custom_metrics = (PUTS,)
    state_store_id: StateStoreId = None  # type: ignore[assignment]

    def init(
        self,
        state_store_id: StateStoreId,
        key_schema: Schema,
        value_schema: Schema,
        key_index_ordinal: int | None = None,
        num_cols_prefix_key: int = 0,
        store_confs: StateStoreConf = StateStoreConf.empty,
        hadoop_conf: Mapping[str, str] | None = None,
    ) -> None:
        self.state_store_id, self.schemas = state_store_id, (key_schema, value_schema)
        self.versions: dict[int, State] = {0: {}}
        self._closed = False

    def get_store(self, version: int) -> StateStore:
        if self._closed:
            raise Closed("The provider is closed.")
        if version < 0:
            raise InvalidArgument(f"A version is 0 or above, not {version}.")
        if version not in self.versions:
            raise VersionNotFound(f"There is no version {version}.")
        return DictStore(self, version)

    def close(self) -> None:
        self._closed = True


def _positive(cell: Any) -> Any:
    """A key without negative zeros."""
    if isinstance(cell, (tuple, list)) and type(cell) in (tuple, list):
        return type(cell)(map(_positive, cell))
    return cell + 0.0 if isinstance(cell, float) else cell


class TestDictProvider(ProviderConformance):
    durable: ClassVar[bool] = False
    exact_ranges: ClassVar[bool] = False

    @pytest.fixture
    def make_provider(self) -> MakeProvider:
        return providers_at("nowhere", {"provider_class": f"{__name__}.DictProvider"})


def make_dict_provider(**shape: Any) -> DictProvider:
    provider = DictProvider()
    provider.init(StateStoreId("nowhere", 0, 0), *map(_schema, ("k string", "v long")), **shape)
    return provider


def _schema(ddl: str) -> Schema:
    from holdfast.types import parse_schema

    return parse_schema(ddl)


def test_maintenance_is_a_no_op_by_default() -> None:
    provider = make_dict_provider()
    provider.do_maintenance()
    assert provider.versions == {0: {}}


def test_read_store_is_the_store_by_default() -> None:
    assert isinstance(make_dict_provider().get_read_store(0), DictStore)


def test_custom_metrics_are_empty_by_default() -> None:
    class Plain(DictProvider):
        supported_custom_metrics = StateStoreProvider.supported_custom_metrics  # type: ignore[assignment]

    assert Plain().supported_custom_metrics == ()


def test_default_range_is_everything() -> None:
    store = make_dict_provider(key_index_ordinal=0).get_store(0)
    store.put(("a",), (1,))
    assert [pair.key for pair in store.get_range("x", "y")] == [("a",)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("no.such.module.Provider", "cannot be loaded"),
        ("holdfast.store.NoSuchClass", "cannot be loaded"),
        ("Provider", "cannot be loaded"),
        ("holdfast.conf.StateStoreConf", "is not a subclass"),
    ],
)
def test_provider_class_that_is_none_is_refused_by_name(name: str, reason: str) -> None:
    conf = StateStoreConf(provider_class=name)
    with pytest.raises(InvalidArgument, match=reason) as caught:
        StateStoreProvider.create_and_init(
            StateStoreId("r", 0, 0), "k int", "v int", store_conf=conf
        )
    assert name in str(caught.value)
    assert caught.value.condition == "STATE_STORE_INVALID_SETTING"


def test_schemas_are_taken_in_every_form() -> None:
    conf = StateStoreConf(provider_class=f"{__name__}.DictProvider")
    arrow = pa.schema([pa.field("k", pa.string())])
    json = {"type": "struct", "fields": [{"name": "v", "type": "long", "nullable": True}]}
    provider = StateStoreProvider.create_and_init(
        StateStoreId("r", 0, 0), arrow, json, store_conf=conf
    )
    store = provider.get_store(0)
    store.put({"k": "a"}, {"v": 1})
    assert store.get(("a",)) == (1,)


def test_metrics_speak_sparks_names() -> None:
    metrics = StateStoreMetrics(3, 10, {PUTS: 5})
    assert metrics.json() == {"numKeys": 3, "memoryUsedBytes": 10, "puts": 5}
    assert PUTS.kind == "sum"


def test_every_error_of_the_default_methods_is_ours() -> None:
    store = make_dict_provider().get_store(0)
    for call in (
        lambda: store.put_many(pa.table({"k": ["a"]})),
        lambda: store.get_many(pa.table({"v": [1]})),
        lambda: store.remove_many(pa.table({"v": [1]})),
        lambda: list(store.prefix_scan(("a", "b"))),
    ):
        with pytest.raises(HoldfastError):
            call()
