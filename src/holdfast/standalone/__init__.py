"""`holdfast.open`: a versioned store without Spark. Open a root, update it, read any version."""

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
