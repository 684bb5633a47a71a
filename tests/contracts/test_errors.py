"""The error tree: kinds, stable conditions, pickling, and no values in messages."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from holdfast.errors import CONDITIONS, HoldfastError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, HoldfastError) and kind is not HoldfastError
]

SPARKS_OWN = {"ARITHMETIC_OVERFLOW", "ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE"}
"""Conditions Spark itself raises for the same thing."""


def test_the_tree_is_the_one_drawn_in_the_docstring() -> None:
    drawn = re.findall(r"[├└]── (\w+)", errors.__doc__ or "")
    assert sorted(drawn) == sorted(kind.__name__ for kind in KINDS)
    assert all(kind.__bases__[0] is HoldfastError for kind in KINDS)


def test_illegal_state_is_a_runtime_error_and_invalid_argument_a_value_error() -> None:
    assert issubclass(errors.IllegalState, RuntimeError)
    assert issubclass(errors.InvalidArgument, ValueError)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_has_a_listed_condition_of_its_own(kind: type[HoldfastError]) -> None:
    error = kind("what happened")
    assert error.condition == kind.default_condition
    assert error.condition in CONDITIONS
    assert error.message == str(error) == "what happened"
    assert sum(other.default_condition == kind.default_condition for other in KINDS) == 1


def test_conditions_are_stable_names_with_meaning_and_advice() -> None:
    for name, (meaning, advice) in CONDITIONS.items():
        assert re.fullmatch(r"STATE_STORE_[A-Z_]+", name) or name in SPARKS_OWN
        assert meaning.endswith(".")
        assert advice.endswith(".")


def test_unlisted_condition_is_refused() -> None:
    with pytest.raises(KeyError, match="STATE_STORE_NEW"):
        HoldfastError("message", condition="STATE_STORE_NEW")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_survive_pickling_and_copying(kind: type[HoldfastError]) -> None:
    error = kind("what happened", condition="STATE_STORE_READ_ONLY")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(twin) is kind
        assert (str(twin), twin.condition) == ("what happened", "STATE_STORE_READ_ONLY")


def test_every_condition_is_raised_somewhere() -> None:
    source = "".join(
        path.read_text()
        for path in Path(holdfast.__file__).parent.rglob("*.py")
        if path.name != "errors.py"
    )
    defaults = {kind.default_condition for kind in KINDS}
    unused = [name for name in CONDITIONS if name not in defaults and name not in source]
    assert unused == []
