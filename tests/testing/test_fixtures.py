"""The pytest fixture, used as in a project of somebody else's."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
PLUGIN = "holdfast.testing.fixtures"
ROOT = Path(__file__).resolve().parents[2]

THEIR_TEST = """
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

from holdfast.backends.memory import MemoryStorage
from holdfast.testing import WindowedQuery

made = []


class Totals(StatefulProcessor):
    def init(self, handle):
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key, rows, timerValues):
        total = (self.total.get() or (0,))[0] + sum(row.v for row in rows)
        self.total.update((total,))
        yield Row(id=key[0], total=total)


def test_totals_grow(state_driver):
    driver = state_driver(Totals(), "id", "id string, v long", "id string, total long")
    driver.push([("a", 1)])
    assert driver.push([("a", 2)]) == [Row(id="a", total=3)]
    made.append(driver.location)


def test_a_windowed_query_counts(state_driver):
    driver = state_driver(WindowedQuery("id", aggs={"n": "count(*)"}), schema="id string, v long")
    other = state_driver(WindowedQuery([], aggs={"n": "count(*)"}), schema="v long")
    assert driver.push([("a", 1), ("a", 2)]) == [Row(id="a", n=2)]
    assert other.push([(1,)]) == [Row(n=1)]
    made.extend([driver.location, other.location])


def test_drivers_are_closed_after_their_test():
    kept = [MemoryStorage.named(place.removeprefix("memory://")).list("") for place in made]
    assert kept == [[], [], []]
"""


def test_drivers_are_made_by_a_fixture_and_closed_after_each_test(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(THEIR_TEST)
    done = _pytest(tmp_path, "-p", "no:randomly")
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_the_fixture_is_listed_with_what_it_does(tmp_path: Path) -> None:
    done = _pytest(tmp_path, "--fixtures")
    assert "state_driver" in done.stdout
    assert "closes them after the test" in done.stdout


def test_pytest_starts_without_arrow_numpy_and_pyspark_for_it() -> None:
    code = f"import pytest, sys, {PLUGIN}; print({{m.partition('.')[0] for m in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "'holdfast'" in loaded
    assert not {name for name in ("pyarrow", "numpy", "pyspark") if f"'{name}'" in loaded}


def test_the_package_offers_it_to_pytest() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"holdfast": PLUGIN}


def _pytest(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    # An installation older than the fixture offers none by itself.
    if not entry_points(group="pytest11", name="holdfast"):
        arguments = ("-p", PLUGIN, *arguments)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
    )
