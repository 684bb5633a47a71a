"""The place of `holdfast.reading` before it had this name."""

from holdfast.deprecation import moved_names as _moved_names

_MOVED = {
    "open_root": "holdfast.reading",
    "open_roots": "holdfast.reading",
    "read_state": "holdfast.reading",
    "choose_store": "holdfast.reading",
    "verify": "holdfast.reading",
    "parse_where": "holdfast.reading",
    "LiveState": "holdfast.reading",
    "Root": "holdfast.reading",
    "InspectedStore": "holdfast.reading",
    "Progress": "holdfast.reading",
    "RootInfo": "holdfast.reading",
    "VersionInfo": "holdfast.reading:VersionDetails",
    "StoreInfo": "holdfast.reading",
    "PartitionInfo": "holdfast.reading",
    "HistoryLine": "holdfast.reading:VersionInfo",
    "PartitionChain": "holdfast.reading",
    "SegmentFile": "holdfast.reading",
    "KeyVersion": "holdfast.reading",
    "Change": "holdfast.reading",
    "Diff": "holdfast.reading",
    "FileCheck": "holdfast.reading",
    "Verification": "holdfast.reading",
}  # fmt: skip
__all__ = list(_MOVED)
__getattr__ = _moved_names(__name__, _MOVED)
