"""Holdfast: versioned, fault-tolerant state for PySpark streams, open to everyone as Arrow.

    db = holdfast.open("totals", key="user string", value="total long")
    with db.update() as store:
        store.put(("Sankar",), (200,))
    db.at(1).get(("Sankar",))

Names load when they are first used, so that the command line starts without Arrow.
"""

from __future__ import annotations

import importlib
import logging
import sys
from typing import TYPE_CHECKING, Any

if sys.platform == "win32":
    raise ImportError(
        "Holdfast does not run on Windows: its commit relies on POSIX links and renames. Use "
        "Linux, macOS or WSL."
    )

from holdfast.deprecation import moved_names
from holdfast.errors import (
    ArithmeticOverflow,
    Closed,
    Conflict,
    Corruption,
    HoldfastError,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)
from holdfast.ids import DEFAULT_STORE_NAME, StateStoreId, StateStoreProviderId

if TYPE_CHECKING:
    from holdfast.conf import StateStoreConf
    from holdfast.reading import LiveState, VersionInfo
    from holdfast.reading import read_state as read
    from holdfast.registry import StateStores
    from holdfast.spark import addListener, removeListener, stateful
    from holdfast.spark import query_manager as streams
    from holdfast.standalone import VersionedStore
    from holdfast.standalone import open_versioned_store as open  # noqa: A004 - the name is holdfast.open
    from holdfast.store import (
        ReadStateStore,
        RowPair,
        StateStore,
        StateStoreCustomMetric,
        StateStoreMetrics,
        StateStoreProvider,
    )

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_STORE_NAME",
    "ArithmeticOverflow",
    "Closed",
    "Conflict",
    "Corruption",
    "HoldfastError",
    "IllegalState",
    "InvalidArgument",
    "LiveState",
    "ReadStateStore",
    "RowPair",
    "StateStore",
    "StateStoreConf",
    "StateStoreCustomMetric",
    "StateStoreId",
    "StateStoreMetrics",
    "StateStoreProvider",
    "StateStoreProviderId",
    "StateStores",
    "Unavailable",
    "VersionInfo",
    "VersionNotFound",
    "VersionedStore",
    "addListener",
    "open",
    "read",
    "removeListener",
    "stateful",
    "streams",
]

_LAZY = {
    "LiveState": "reading",
    "ReadStateStore": "store",
    "RowPair": "store",
    "StateStore": "store",
    "StateStoreConf": "conf",
    "StateStoreCustomMetric": "store",
    "StateStoreMetrics": "store",
    "StateStoreProvider": "store",
    "StateStores": "registry",
    "VersionInfo": "reading",
    "VersionedStore": "standalone",
    "addListener": "spark",
    "open": "standalone:open_versioned_store",
    "read": "reading:read_state",
    "removeListener": "spark",
    "stateful": "spark",
    # Not `spark:query_manager`: importing the package of this name would replace it.
    "streams": "",
}


def _loaded(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    if not _LAZY[name]:
        return importlib.import_module(f"holdfast.{name}")
    module, _, attribute = _LAZY[name].partition(":")
    found = getattr(importlib.import_module(f"holdfast.{module}"), attribute or name)
    globals()[name] = found
    return found


__getattr__ = moved_names(__name__, {"Database": "holdfast:VersionedStore"}, _loaded)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


logging.getLogger("holdfast").addHandler(logging.NullHandler())
