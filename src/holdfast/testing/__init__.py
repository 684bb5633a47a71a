"""Tests for your own code: suites to inherit for a backend or a provider, and a test driver.

    from holdfast.testing import StorageConformance


    class TestMyStorage(StorageConformance):
        @pytest.fixture
        def storage(self):
            return MyStorage(...)

`StorageConformance` tests a storage backend, and `ProviderConformance` a state store provider. Both
need pytest, which is imported when one of them is first used.
`StateTestDriver` runs a StatefulProcessor or a `WindowedQuery` without Spark, for unit tests.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.deprecation import moved_names

if TYPE_CHECKING:
    from holdfast.testing.driver import StateTestDriver
    from holdfast.testing.provider_suite import MakeProvider, ProviderConformance
    from holdfast.testing.storage_suite import StorageConformance
    from holdfast.testing.windowed import WindowedQuery

__all__ = [
    "MakeProvider",
    "ProviderConformance",
    "StateTestDriver",
    "StorageConformance",
    "WindowedQuery",
]

_DRIVERS = {
    "StateTestDriver": "holdfast.testing.driver",
    "WindowedQuery": "holdfast.testing.windowed",
}
_SUITES = {
    "MakeProvider": "holdfast.testing.provider_suite",
    "ProviderConformance": "holdfast.testing.provider_suite",
    "StorageConformance": "holdfast.testing.storage_suite",
}
_PARTS = (
    "storage_suite",
    "provider_suite",
    "_provider_base",
    "_batch_suite",
    "_life_suite",
    "_range_suite",
    "_type_suite",
)


def _loaded(name: str) -> Any:
    if name in _DRIVERS:
        return getattr(import_module(_DRIVERS[name]), name)
    if name not in _SUITES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pytest

    # pytest explains a failed assert only in modules it may rewrite
    pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
    found = getattr(import_module(_SUITES[name]), name)
    globals()[name] = found
    return found


__getattr__ = moved_names(__name__, {"Windowed": "holdfast.testing:WindowedQuery"}, _loaded)
