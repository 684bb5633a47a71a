"""A store for people who just want one: open a root, update it, read any version of it."""

from holdfast.database.copying import Copied, Copying, CopyPlan, plan_copy
from holdfast.database.facade import Database, VersionInfo
from holdfast.database.opening import open_database, open_on
from holdfast.database.partitioned import PartitionedReader, PartitionedStore

__all__ = [
    "Copied",
    "Copying",
    "CopyPlan",
    "Database",
    "PartitionedReader",
    "PartitionedStore",
    "VersionInfo",
    "open_database",
    "open_on",
    "plan_copy",
]
