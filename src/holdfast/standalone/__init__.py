"""A store for people who just want one: open a root, update it, read any version of it."""

from holdfast.standalone.opening import open_database, open_on
from holdfast.standalone.partitions import PartitionedReader, PartitionedStore
from holdfast.standalone.versioned_store import Database, VersionInfo

__all__ = [
    "Database",
    "PartitionedReader",
    "PartitionedStore",
    "VersionInfo",
    "open_database",
    "open_on",
]
