"""The map of the code is true: every package is on it, and whatever it names is there."""

from __future__ import annotations

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
NAMED = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_0-9]+)*/(?:[a-z_0-9]+\.py)?)`", PAGE)))


def test_the_tree_lists_every_package_and_no_other() -> None:
    listed, above = [], ""
    for indent, name in re.findall(r"^( +)([a-z_]+)/", TREE, re.MULTILINE):
        above = name if len(indent) == 2 else above
        listed.append(name if len(indent) == 2 else f"{above}/{name}")
    beside = re.findall(r"(?<=\s)([a-z_]+)/(?=\s)", TREE.splitlines()[1])
    assert sorted({*listed, *beside}) == PACKAGES


@pytest.mark.parametrize("path", NAMED)
def test_what_the_map_names_is_there(path: str) -> None:
    assert (SOURCE / path).exists() or (ROOT / path).exists()


def test_the_map_names_modules() -> None:
    assert len([path for path in NAMED if path.endswith(".py")]) > 25


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md"])
def test_readers_are_led_to_the_map(page: str) -> None:
    assert "architecture.md" in (ROOT / page).read_text()
