"""The map of the code is true: every package is on it, and whatever it names is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TREE = PAGE.partition("```\n")[2].partition("```")[0]
PACKAGES = sorted(
    path.parent.relative_to(SOURCE).as_posix()
    for path in SOURCE.rglob("__init__.py")
    if path.parent != SOURCE
)
MODULES = sorted(SOURCE.parent.rglob("*.py"))
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*/(?:[a-z_0-9]+\.py)?)`", PAGE)))


def test_the_tree_lists_every_package_and_no_other() -> None:
    listed, above = [], ""
    for indent, name in re.findall(r"^( +)([a-z_]+)/", TREE, re.MULTILINE):
        above = name if len(indent) == 2 else above
        listed.append(name if len(indent) == 2 else f"{above}/{name}")
    beside = re.findall(r"(?<=\s)([a-z_]+)/(?=\s)", TREE.splitlines()[1])
    assert sorted({*listed, *beside}) == PACKAGES


def test_the_tree_lists_every_module_beside_the_packages() -> None:
    listed = re.findall(r"^  ([a-z][a-z_/ ]*?)(?:  |$)", TREE, re.MULTILINE)
    names = {name for line in listed for name in line.split() if not name.endswith("/")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert names == modules


@pytest.mark.parametrize("path", NAMED)
def test_what_the_map_names_is_there(path: str) -> None:
    assert (SOURCE / path).exists() or (ROOT / path).exists()


def test_the_map_names_modules() -> None:
    assert len([path for path in NAMED if path.endswith(".py")]) > 25


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md"])
def test_readers_are_led_to_the_map(page: str) -> None:
    assert "architecture.md" in (ROOT / page).read_text()


@pytest.mark.parametrize(
    "path", MODULES, ids=lambda path: path.relative_to(SOURCE.parent).as_posix()
)
def test_a_module_and_its_functions_can_be_read_at_once(path: Path) -> None:
    text = path.read_text()
    assert text.count("\n") <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            last = node.end_lineno or node.lineno
            code = [line for line in node.body if not _is_text(line)]
            length = last - code[0].lineno + 1 if code else 0
            assert length <= 40, f"{node.name} has {length} lines"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def test_only_tables_of_data_are_kept_from_the_formatter() -> None:
    folders = ("src", "tests", "dev", "benchmarks", "examples")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    found = {path: _laid_out_by_hand(path.read_text()) for path in paths}
    places = [f"{path.relative_to(ROOT)}:{line}" for path, lines in found.items() for line in lines]
    assert places == []
    assert sum("# fmt: skip" in path.read_text() for path in paths) > 50


_TABLES = (ast.List, ast.Tuple, ast.Set, ast.Dict, ast.DictComp, ast.Compare, ast.Yield)
_OF_TABLES = ("parametrize", "frozenset", "dict", "moved_names")


def _laid_out_by_hand(text: str) -> list[int]:
    """The lines with `# fmt: skip` where something else ends than a table, or a call with one."""
    marked = {
        number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# fmt: skip")
    }
    ends: dict[int, list[ast.expr]] = {number: [] for number in marked}
    for node in ast.walk(ast.parse(text)) if marked else ():
        if isinstance(node, ast.expr) and node.end_lineno in marked:
            ends[node.end_lineno].append(node)
    return sorted(number for number, nodes in ends.items() if not _is_table(nodes))


def _is_table(ending: list[ast.expr]) -> bool:
    """Whether the largest of the expressions that end on one line is a table."""
    if not ending:
        return False
    last = max(node.end_col_offset or 0 for node in ending)
    largest = min(
        (node for node in ending if node.end_col_offset == last),
        key=lambda node: (node.lineno, node.col_offset),
    )
    if not isinstance(largest, ast.Call):
        return isinstance(largest, _TABLES)
    displays = all(isinstance(each, _TABLES) for each in largest.args) and not largest.keywords
    return displays or ast.unparse(largest.func).rpartition(".")[2] in _OF_TABLES
