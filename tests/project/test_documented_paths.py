"""Whatever the documentation ever told users to import or to name in a setting is still there."""

from __future__ import annotations

import importlib
import warnings

import pytest

PATHS = [
    "holdfast.backends.hdfs_backed.HDFSBackedStateStoreProvider",
    "holdfast.admin.plan_copy",
    "holdfast.reading.open_root",
    "holdfast.reading.verify",
    "holdfast.testing.ProviderConformance",
    "holdfast.testing.StateTestDriver",
    "holdfast.testing.StorageConformance",
    "holdfast.testing.faults.Fault",
]
MOVED = {
    "holdfast.Database": "holdfast.VersionedStore",
    "holdfast.database.Database": "holdfast.standalone.VersionedStore",
    "holdfast.database.open_database": "holdfast.standalone.open_versioned_store",
    "holdfast.database.plan_copy": "holdfast.admin.plan_copy",
    "holdfast.engine.versions.VersionLog": "holdfast.engine.versions.log.VersionLog",
    "holdfast.database.VersionInfo": "holdfast.standalone.VersionInfo",
    "holdfast.inspection.HistoryLine": "holdfast.reading.VersionInfo",
    "holdfast.inspection.open_root": "holdfast.reading.open_root",
    "holdfast.inspection.verify": "holdfast.reading.verify",
    "holdfast.inspection.VersionInfo": "holdfast.reading.VersionDetails",
    "holdfast.stores.StateStores": "holdfast.registry.StateStores",
    "holdfast.testing.Windowed": "holdfast.testing.WindowedQuery",
    "holdfast.types.Unrepresentable": "holdfast.types.UnrepresentableValue",
    "holdfast.views.Applied": "holdfast.views.ChangeCounts",
    "holdfast.views.Change": "holdfast.views.ViewChange",
    "holdfast.views.Step": "holdfast.views.ViewStep",
}


def found(path: str) -> object:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("path", PATHS)
def test_a_documented_path_is_there(path: str) -> None:
    with warnings.catch_warnings(action="error"):
        assert found(path) is not None


@pytest.mark.parametrize("room", ["inspection", "database", "stores"])
def test_a_star_import_of_a_room_of_before_gives_what_it_gave(room: str) -> None:
    names: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        exec(f"from holdfast.{room} import *", names)  # noqa: S102 - there is no other form
    expected = {"inspection": "open_root", "database": "plan_copy", "stores": "StateStores"}
    assert expected[room] in names
    assert "moved_names" not in names


@pytest.mark.parametrize("path", MOVED)
def test_a_path_of_before_works_and_says_where_it_is_now(path: str) -> None:
    module, _, name = MOVED[path].rpartition(".")
    with pytest.warns(DeprecationWarning, match=f"Import {name} from {module}:"):
        assert found(path) is found(MOVED[path])
