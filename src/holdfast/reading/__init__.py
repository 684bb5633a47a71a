"""Looking into state: any root, any version, without Spark, a JVM or a write.

    root = open_root("totals")
    root.info().stores, root.history()
    root.store().get(("Sankar",), at=1)
    root.store().diff(1, 2).changes
    verify(root).problems

A root is a store made by `holdfast.open`, the state of a query, or the folder of a provider
used alone; `open_roots` also takes a folder that holds several of those.
"""

from holdfast.reading.find import open_root, open_roots
from holdfast.reading.live import LiveState, choose_store, read_state
from holdfast.reading.model import (
    Change,
    Diff,
    FileCheck,
    KeyVersion,
    PartitionChain,
    PartitionInfo,
    RootInfo,
    SegmentFile,
    StoreInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading.root import Root
from holdfast.reading.store import InspectedStore
from holdfast.reading.verification import Progress, verify
from holdfast.reading.where import parse_where

__all__ = [
    "open_root",
    "open_roots",
    "read_state",
    "choose_store",
    "verify",
    "parse_where",
    "LiveState",
    "Root",
    "InspectedStore",
    "Progress",
    "RootInfo",
    "VersionDetails",
    "VersionInfo",
    "StoreInfo",
    "PartitionInfo",
    "PartitionChain",
    "SegmentFile",
    "KeyVersion",
    "Change",
    "Diff",
    "FileCheck",
    "Verification",
]
