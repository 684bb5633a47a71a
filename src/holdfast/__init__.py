"""Holdfast: versioned, fault-tolerant state for PySpark streams, open to everyone as Arrow.

db = holdfast.open("totals", key="user string", value="total long")
with db.update() as store:
store.put(("Sankar",), (200,))
db.at(1).get(("Sankar",))
"""

from __future__ import annotations

import logging
import sys

if sys.platform == "win32":
    raise ImportError(
        "Holdfast does not run on Windows: its commit relies on POSIX links and renames. Use "
        "Linux, macOS or WSL."
    )

from holdfast.conf import StateStoreConf
from holdfast.database import Database, VersionInfo
from holdfast.database import open_database as open  # noqa: A004 - the public name is holdfast.open
from holdfast.errors import (
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
from holdfast.store import (
    ReadStateStore,
    RowPair,
    StateStore,
    StateStoreCustomMetric,
    StateStoreMetrics,
    StateStoreProvider,
)
from holdfast.stores import StateStores

__version__ = "0.1.0"

__all__ = [
    "DEFAULT_STORE_NAME",
    "Closed",
    "Conflict",
    "Corruption",
    "Database",
    "HoldfastError",
    "IllegalState",
    "InvalidArgument",
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
    "open",
]

logging.getLogger("holdfast").addHandler(logging.NullHandler())
