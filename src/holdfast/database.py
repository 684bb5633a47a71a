"""The place of `holdfast.standalone` and `holdfast.admin` before they were rooms."""

from holdfast.deprecation import moved_names as _moved_names

_MOVED = {
    "Database": "holdfast.standalone:VersionedStore",
    "VersionInfo": "holdfast.standalone",
    "PartitionedReader": "holdfast.standalone",
    "PartitionedStore": "holdfast.standalone",
    "open_database": "holdfast.standalone:open_versioned_store",
    "open_on": "holdfast.standalone",
    "Copied": "holdfast.admin:CopyResult",
    "Copying": "holdfast.admin:CopyJob",
    "CopyPlan": "holdfast.admin",
    "plan_copy": "holdfast.admin",
}  # fmt: skip
__all__ = list(_MOVED)
__getattr__ = _moved_names(__name__, _MOVED)
