"""The place of `holdfast.standalone` and `holdfast.admin` before they were rooms."""

from holdfast.deprecation import moved

__getattr__ = moved(__name__, {
    "Database": "holdfast.standalone",
    "VersionInfo": "holdfast.standalone",
    "PartitionedReader": "holdfast.standalone",
    "PartitionedStore": "holdfast.standalone",
    "open_database": "holdfast.standalone",
    "open_on": "holdfast.standalone",
    "Copied": "holdfast.admin",
    "Copying": "holdfast.admin",
    "CopyPlan": "holdfast.admin",
    "plan_copy": "holdfast.admin",
})  # fmt: skip
