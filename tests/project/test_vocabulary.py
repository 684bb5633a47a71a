"""One word, one thing: a public name is defined in one module."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"
DEFINED_TWICE = {
    "log": "every module has a logger of its own",
    "T": "a type variable",
    "Result": "a type variable",
    "fold_ints": "murmur3 and xxh64 have one interface",
    "fold_longs": "murmur3 and xxh64 have one interface",
    "fold_equal_bytes": "murmur3 and xxh64 have one interface",
    "fold_mixed_bytes": "murmur3 and xxh64 have one interface",
    "client_of": "each database has a client of its own",
    "passes": "each client knows which failures pass by themselves",
    "encode": "to bytes: of a message, of a manifest",
    "decode": "from bytes: of a message, of a manifest",
    # cli.app declares the commands whose work the functions of cli.commands do.
    "copy": "a command",
    "diff": "a command",
    "doctor": "a command",
    "get": "a command",
    "history": "a command",
    "ls": "a command",
    "scan": "a command",
    "show": "a command",
    "verify": "a command, and what it calls",
    # cli.changes declares the commands whose plans the functions of holdfast.admin make.
    "fork": "a command, and what makes its plan",
    "tag": "a command, and what makes its plan",
    "rollback": "a command, and what makes its plan",
    "untag": "a command, and what makes its plan",
    "repair": "a command, and what makes its plan",
    "compact": "a command, and what makes its plan",
    "gc": "a command, and what makes its plan",
}


def defined(tree: ast.Module) -> Iterator[str]:
    """The public names of a module that it does not import."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))


def places() -> dict[str, list[str]]:
    found = defaultdict(list)
    for path in sorted(SOURCE.rglob("*.py")):
        for name in set(defined(ast.parse(path.read_text()))):
            if not name.startswith("_"):
                found[name].append(path.relative_to(SOURCE).as_posix())
    return found


def test_no_public_name_is_defined_twice() -> None:
    twice = {name: where for name, where in places().items() if len(where) > 1}
    assert {name: where for name, where in twice.items() if name not in DEFINED_TWICE} == {}


def test_every_exception_is_one() -> None:
    found = places()
    assert [name for name in DEFINED_TWICE if len(found[name]) < 2] == []
