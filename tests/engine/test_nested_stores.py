"""Stores whose directories lie inside each other leave one another's files alone."""

from __future__ import annotations

from pathlib import Path

from holdfast import StateStoreConf, StateStoreId
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.types import parse_schema

AT_ONCE = StateStoreConf(grace_period_ms=0, min_versions_to_retain=2)


def provider(root: Path, store_name: str) -> HDFSBackedStateStoreProvider:
    made = HDFSBackedStateStoreProvider()
    made.init(
        StateStoreId(str(root), 0, 0, store_name),
        parse_schema("k int"),
        parse_schema("v int"),
        store_confs=AT_ONCE,
    )
    return made


def commit(stores: HDFSBackedStateStoreProvider, versions: int) -> None:
    for version in range(versions):
        store = stores.get_store(version)
        store.put((version,), (version,))
        store.commit()


def test_cleanup_of_the_default_store_spares_the_named_one_below_it(tmp_path: Path) -> None:
    default, named = provider(tmp_path, "default"), provider(tmp_path, "left")
    commit(named, 3)
    commit(default, 6)
    default.cleanup()
    assert provider(tmp_path, "left").get_read_store(3).get((1,)) == (1,)
    assert provider(tmp_path, "default").get_read_store(6).get((1,)) == (1,)


def test_cleanup_spares_a_named_store_that_is_in_its_first_commit(tmp_path: Path) -> None:
    default, named = provider(tmp_path, "default"), provider(tmp_path, "left")
    commit(default, 6)
    store = named.get_store(0)
    store.put((1,), (1,))
    (tmp_path / "0/0/left/packs").mkdir(parents=True)
    unfinished = tmp_path / "0/0/left/packs" / f"1-{'0' * 32}.pack"
    unfinished.write_bytes(b"written, its manifest not yet created")
    default.cleanup()
    assert unfinished.exists()
    assert store.commit() == 1
