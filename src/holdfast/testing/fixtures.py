"""Fixtures for tests of processors and windowed queries; pytest finds them by itself.

def test_totals_grow(state_driver):
    driver = state_driver(Totals(), "id", "id string, v long", "id string, total long")
    assert driver.push([("a", 3)]) == [Row(id="a", total=3)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from holdfast.testing.driver import StateTestDriver


@pytest.fixture
def state_driver() -> Iterator[Callable[..., StateTestDriver]]:
    """Makes drivers with the arguments of `StateTestDriver`, and closes them after the test."""
    made: list[StateTestDriver] = []

    def make(*given: Any, **named: Any) -> StateTestDriver:
        # imported late: pytest loads this module at every start, even if no test needs a driver
        from holdfast.testing.driver import StateTestDriver

        made.append(StateTestDriver(*given, **named))
        return made[-1]

    yield make
    for driver in made:
        driver.close()
