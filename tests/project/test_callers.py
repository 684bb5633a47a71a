"""What nobody uses is a defect: every setting is read somewhere, every class has a caller."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from holdfast.conf import SETTINGS

SOURCES = {
    path: path.read_text()
    for path in sorted((Path(__file__).parents[2] / "src" / "holdfast").rglob("*.py"))
}
WORDS = Counter(word for text in SOURCES.values() for word in re.findall(r"\w+", text))
CLASSES = sorted(
    (node.name, "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]))
    for text in SOURCES.values()
    for node in ast.walk(ast.parse(text))
    if isinstance(node, ast.ClassDef)
)


def test_sources_are_found() -> None:
    assert len(SOURCES) > 50
    assert len(CLASSES) > 100


@pytest.mark.parametrize("setting", [setting.name for setting in SETTINGS])
def test_every_setting_is_read_somewhere(setting: str) -> None:
    users = [path.name for path, text in SOURCES.items() if re.search(rf"\.{setting}\b", text)]
    assert users not in ([], ["conf.py"])


def test_every_class_is_mentioned_outside_itself() -> None:
    unused = [name for name, body in CLASSES if WORDS[name] == re.findall(r"\w+", body).count(name)]
    assert unused == []
