"""The columnar provider: the conformance suite in every mode, and what is its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from made_providers import collide_keys, providers_at

from holdfast.backends.local import LocalStorage
from holdfast.engine.files.filenames import data_file
from holdfast.engine.storage import TooLarge
from holdfast.errors import Corruption
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
        return providers_at(root, self.settings)

    def force_collisions(self, monkeypatch: pytest.MonkeyPatch) -> None:
        collide_keys(monkeypatch)

    def list_files(self) -> list[str]:
        return sorted(str(path) for path in self._path.rglob("*") if path.is_file())


class TestLocal(EngineConformance):
    pass


class TestInRanges(EngineConformance):
    """Data files are never mapped, as under a limit of the address space."""

    settings: ClassVar[dict[str, Any]] = {"pack_threshold_bytes": 512, "keep_copies": "off"}

    @pytest.fixture(autouse=True)
    def no_room(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = LocalStorage.read

        def refuse(storage: LocalStorage, path: str) -> Any:
            if data_file(path) is not None:
                raise TooLarge(path)
            return read(storage, path)

        monkeypatch.setattr(LocalStorage, "read", refuse)

    def test_altered_block_is_noticed_each_time_it_is_read(
        self, make_provider: MakeProvider, tmp_path: Path
    ) -> None:
        store = make_provider(value="body binary").get_store(0)
        for number in range(40):
            store.put((str(number),), (bytes([number]) * (1 << 20),))
        store.commit()
        reader = make_provider(value="body binary").get_read_store(1)
        assert reader.get(("39",)) == (bytes([39]) * (1 << 20),)
        (delta,) = (tmp_path / "root" / "0" / "0").glob("*.delta")
        content = bytearray(delta.read_bytes())
        for at in range(1 << 19, 39 << 20, 1 << 20):
            content[at] ^= 1
        delta.write_bytes(content)
        with pytest.raises(Corruption, match="does not have its checksum"):
            list(reader.iterator())
        delta.unlink()
        with pytest.raises(Corruption, match="missing"):
            make_provider(value="body binary").get_read_store(1).get(("39",))

    def test_file_that_goes_while_it_is_read_is_an_error_of_ours(
        self, make_provider: MakeProvider, tmp_path: Path
    ) -> None:
        store = make_provider(value="body binary").get_store(0)
        for number in range(40):
            store.put((str(number),), (bytes(1 << 20),))
        store.commit()
        pairs = make_provider(value="body binary").get_read_store(1).iterator()
        next(pairs)
        (delta,) = (tmp_path / "root" / "0" / "0").glob("*.delta")
        delta.unlink()
        with pytest.raises(Corruption, match="the file is missing"):
            list(pairs)

    def test_few_chunks_stay_in_memory(self, make_provider: MakeProvider) -> None:
        store = make_provider(value="body binary").get_store(0)
        for number in range(120):
            store.put((str(number),), (bytes(1 << 20),))
        store.commit()
        reader = make_provider(value="body binary").get_read_store(1)
        asked = pa.table({"user": [str(number) for number in range(0, 240, 2)]})
        assert sum(reader.get_many(asked).column("_found").to_pylist()) == 60
        assert sum(len(pair.value[0]) for pair in reader.iterator()) == 120 << 20
        assert reader.metrics.memory_used_bytes <= 64 << 20


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
