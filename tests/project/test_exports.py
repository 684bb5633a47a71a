"""Pins the public names."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
import holdfast.testing


def test_public_names_are_these_and_all_exist() -> None:
    assert sorted(holdfast.__all__) == [
        "ArithmeticOverflow", "Closed", "Conflict", "Corruption", "DEFAULT_STORE_NAME",
        "HoldfastError",
        "IllegalState", "InvalidArgument", "LiveState", "ReadStateStore", "RowPair", "StateStore",
        "StateStoreConf", "StateStoreCustomMetric", "StateStoreId", "StateStoreMetrics",
        "StateStoreProvider", "StateStoreProviderId", "StateStores", "Unavailable",
        "VersionInfo", "VersionNotFound", "VersionedStore", "addListener", "open", "read",
        "removeListener", "stateful", "streams",
    ]  # fmt: skip
    assert all(getattr(holdfast, name) is not None for name in holdfast.__all__)


def undocumented(found: Any, name: str) -> Iterator[str]:
    """What lacks a docstring of a public object and, for a class, of its public methods."""
    if not inspect.getdoc(found):
        yield name
    for member in dir(found) if inspect.isclass(found) and found.__module__ != "builtins" else ():
        part = inspect.getattr_static(found, member)
        is_ours = isinstance(part, property) or inspect.isroutine(getattr(found, member))
        if not member.startswith("_") and is_ours and not inspect.getdoc(getattr(found, member)):
            yield f"{name}.{member}"


@pytest.mark.parametrize("name", sorted({*holdfast.__all__} - {"DEFAULT_STORE_NAME"}))
def test_a_public_name_and_its_methods_are_documented(name: str) -> None:
    assert list(undocumented(getattr(holdfast, name), name)) == []


@pytest.mark.parametrize("name", ["open", "read", "stateful", "addListener", "removeListener"])
def test_the_docstring_of_a_public_function_names_every_parameter(name: str) -> None:
    function = getattr(holdfast, name)
    told = inspect.getdoc(function) or ""
    named = inspect.signature(function).parameters
    assert [parameter for parameter in named if f"`{parameter}`" not in told] == []


def test_public_names_of_testing_exist() -> None:
    assert {"MakeProvider", "ProviderConformance", "StorageConformance"} <= set(
        holdfast.testing.__all__
    )
    assert all(getattr(holdfast.testing, name) for name in holdfast.testing.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(holdfast, "nonsense")
    assert not hasattr(holdfast.testing, "nonsense")
