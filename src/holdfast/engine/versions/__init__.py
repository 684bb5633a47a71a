"""The versions of a root: committed, claimed, merged and removed."""

from __future__ import annotations

import warnings
from typing import Any


def __getattr__(name: str) -> Any:
    """The name by which `holdfast.engine.versions` was known before it had modules."""
    if name != "VersionLog":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from holdfast.engine.versions.log import VersionLog

    warnings.warn(
        "Import VersionLog from holdfast.engine.versions.log: the next release has it there only.",
        DeprecationWarning,
        stacklevel=2,
    )
    return VersionLog
