"""docs/requirements.md names tests that exist, and claims nothing without one."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "requirements.md"
TEST_ID = re.compile(r"tests/[\w/]+\.py(?:::\w+)*")


def rows() -> list[list[str]]:
    """The cells of every row: requirement, tests, measured, status."""
    found = []
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and cells[0] != "requirement" and not set(cells[0]) <= {"-"}:
            found.append(cells)
    return found


@cache
def shipped() -> dict[str, ast.ClassDef]:
    """The classes of `holdfast.testing`, whose tests others inherit."""
    files = (ROOT / "src" / "holdfast" / "testing").glob("*.py")
    nodes = [node for path in files for node in ast.parse(path.read_text()).body]
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def methods(node: ast.ClassDef, known: dict[str, ast.ClassDef]) -> set[str]:
    """The methods of a class and of those of its bases that are known."""
    found = {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
    bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
    return found.union(*(methods(known[base], known) for base in bases if base in known))


@cache
def names_in(path: Path) -> frozenset[str]:
    """The functions and classes of a test file, methods as Class::method, inherited ones too."""
    names = set()
    body = ast.parse(path.read_text()).body
    known = shipped() | {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{name}" for name in methods(node, known)}
        # A Hypothesis machine is collected through `TestX = Machine.TestCase`.
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return frozenset(names)


def missing(test_ids: list[str]) -> list[str]:
    """Those of `test_ids` that name no test."""
    absent = []
    for test_id in test_ids:
        file, _, name = test_id.partition("::")
        path = ROOT / file
        if not path.is_file() or (name and name not in names_in(path)):
            absent.append(test_id)
    return absent


def test_every_named_test_exists() -> None:
    assert missing(TEST_ID.findall(PAGE.read_text())) == []


def test_a_test_that_does_not_exist_is_noticed() -> None:
    here = "tests/project/test_requirements.py"
    assert missing([here, f"{here}::test_every_named_test_exists"]) == []
    local = "tests/engine/test_provider.py::TestLocal"
    assert missing([f"{local}::test_version_zero_is_empty"]) == []
    assert missing([f"{local}::test_nothing"]) == [f"{local}::test_nothing"]
    assert missing([f"{here}::test_nothing", "tests/test_absent.py::test_a"]) == [
        f"{here}::test_nothing",
        "tests/test_absent.py::test_a",
    ]


def test_rows_are_complete() -> None:
    assert len(rows()) > 200
    assert [row for row in rows() if len(row) != 4 or not all(row)] == []


def test_no_row_stands_twice() -> None:
    requirements = [row[0] for row in rows()]
    assert sorted({r for r in requirements if requirements.count(r) > 1}) == []


def test_status_is_holds_or_a_reason() -> None:
    for requirement, *_, status in rows():
        assert status == "holds" or re.fullmatch(r"not yet: \S.*", status), requirement


def test_nothing_holds_without_a_test_or_a_measurement() -> None:
    unproven = [
        requirement
        for requirement, tests, measured, status in rows()
        if status == "holds"
        and not TEST_ID.search(tests)
        and not re.search(r"`[^`]+`: \S", measured)
    ]
    assert unproven == []
