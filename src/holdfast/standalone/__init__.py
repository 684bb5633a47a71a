"""`holdfast.open`: a versioned store without Spark. Open a root, update it, read any version."""

from holdfast.deprecation import moved_names
from holdfast.reading.model import VersionInfo
from holdfast.standalone.opening import open_on, open_versioned_store
from holdfast.standalone.partitions import PartitionedReader, PartitionedStore
from holdfast.standalone.versioned_store import VersionedStore

__all__ = [
    "VersionedStore",
    "PartitionedReader",
    "PartitionedStore",
    "VersionInfo",
    "open_versioned_store",
    "open_on",
]

__getattr__ = moved_names(
    __name__,
    {
        "Database": "holdfast.standalone:VersionedStore",
        "open_database": "holdfast.standalone:open_versioned_store",
    },
)
