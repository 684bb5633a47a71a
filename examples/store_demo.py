"""A store in a local folder, step by step: commit, crash, reload, look back, tag, inspect files.

python examples/store_demo.py            in a temporary folder, removed at the end
python examples/store_demo.py FOLDER     in a new folder that stays
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
from rich.console import Console
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

import holdfast
from holdfast.reading import open_root, verify

console = Console(width=None if sys.stdout.isatty() else 80, highlight=False)

# Run in another process: it stops where the data of version 3 is on disk and its manifest is not,
# the worst moment there is, and waits there to be killed.
CRASH = """
import sys, time
import holdfast
from holdfast.engine.versions.log import VersionLog

def stop_here(*_):
    print("about to create the manifest", flush=True)
    time.sleep(600)

VersionLog.publish = stop_here
with holdfast.open(sys.argv[1]).update() as store:
    store.put(("Sankar",), (9_999_999,))
    store.put(("Nobody",), (1,))
"""


def main() -> None:
    console.print(Text("Holdfast: versioned state that survives a crash", "bold"))
    if len(sys.argv) > 1:
        demo(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        demo(Path(folder) / "totals")


def demo(root: Path) -> None:
    title(1, "A store: what each user has spent. A folder; no server, no JVM.")
    code(
        'db = holdfast.open("totals", key="user string", value="total long",\n'
        "                   partitions=2)"
    )
    db = holdfast.open(
        root,
        key="user string",
        value="total long",
        partitions=2,
        conf={"pack_threshold_bytes": 4096},
    )

    title(2, "Put and commit. Leaving the block makes a version, whole or not.")
    code('with db.update() as store:\n    store.put(("Sankar",), (200,))')
    with db.update() as store:
        store.put(("Sankar",), (200,))
    code(
        "with db.update() as store:      # a million rows as one Arrow batch\n"
        "    store.put_many(table)\n"
        '    store.put(("Sankar",), (500,))'
    )
    users = 1_000_000
    table = pa.table({"user": [f"user-{n}" for n in range(users)], "total": range(users)})
    started = time.perf_counter()
    with db.update() as store:
        store.put_many(table)
        store.put(("Sankar",), (500,))
    took = time.perf_counter() - started
    say(f"version {db.version}, {users:,} users in {took:.2f} s, on disk and durable")
    db.close()

    title(3, "Crash. A process writing version 3 is killed before its manifest.")
    crash(root)
    left = orphans(root)
    say(f"killed by SIGKILL; it left {', '.join(map(short, left))}, which no version names", "red")

    title(4, "Reload. No repair, no replay: files are mapped, not loaded.")
    started = time.perf_counter()
    db = holdfast.open(root)
    total = db.get(("Sankar",))
    took = (time.perf_counter() - started) * 1000
    code('db = holdfast.open("totals")\ndb.version, db.get(("Sankar",)), db.get(("Nobody",))')
    say(f"{(db.version, total, db.get(('Nobody',)))}    in {took:.0f} ms")

    title(5, "Look back. Every version stays readable; a tag keeps one for good.")
    code('db.at(1).get(("Sankar",)), db.at(2).get(("Sankar",))\ndb.tag("before-the-crash")')
    db.tag("before-the-crash")
    say(f"{(db.at(1).get(('Sankar',)), db.at(2).get(('Sankar',)))}    tags: {db.tags}")
    with db.update() as store:
        store.put(("Sankar",), (800,))
        store.remove(("user-7",))
    diff = open_root(root).store().diff("before-the-crash", None)
    code("holdfast diff totals before-the-crash")
    for change in diff.changes:
        say(f"{change.key[0]}: {change.before} became {change.after}")

    title(6, "The files are Arrow. Plain pyarrow reads them, so others can.")
    files(root)
    newest = max(root.glob("0/*/*.delta"), key=lambda path: path.stat().st_size)
    code(f'pyarrow.ipc.open_file("{newest.relative_to(root.parent).as_posix()[:30]}…").read_all()')
    read = pa.ipc.open_file(pa.memory_map(str(newest))).read_all()
    say(f"{read.num_rows:,} rows, columns {', '.join(read.column_names)}")

    title(7, "Verify. Every byte of every version has a checksum.")
    code("holdfast verify totals")
    result = verify(open_root(root))
    versions = ", ".join(map(str, result.readable))
    say(
        f"{len(result.files)} files, {result.checked_bytes / 1e6:.0f} MB: all intact, versions "
        f"{versions} open",
        "green" if result.intact else "red",
    )
    db.close()


def crash(root: Path) -> None:
    """Let another process commit, and kill it in the middle."""
    command = [sys.executable, "-c", CRASH, str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "about to create the manifest\n"
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


def orphans(root: Path) -> list[Path]:
    """Data files that no version names."""
    opened = open_root(root)
    named = set().union(*(opened.manifest(version).files() for version in opened.versions))
    data = [path.relative_to(root) for path in root.rglob("*-*.*") if path.is_file()]
    return [path for path in data if path.as_posix() not in named]


def short(path: Path) -> str:
    name = path.as_posix()
    return name if len(name) < 30 else f"{name[:16]}…{path.suffix}"


def files(root: Path) -> None:
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("file")
    table.add_column("bytes", justify="right")
    table.add_column("what it is")
    meaning = {
        "versions": "manifest: this version exists",
        "packs": "small deltas together",
        "tags": "a name for a version",
    }
    left = orphans(root)
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        name = path.relative_to(root)
        what = meaning.get(name.parts[0], f"{path.suffix[1:]} of partition {name.parent}")
        if name in left:
            what = "left by the crash, cleaned up later"
        size = f"{path.stat().st_size:,}"
        table.add_row(short(name), size, what, style="red" if name in left else None)
    console.print(table)


def title(number: int, text: str) -> None:
    console.print()
    console.print(Rule(Text(f"{number}  {text}", "bold cyan"), align="left", style="cyan"))


def code(text: str) -> None:
    lexer = "console" if text.startswith("holdfast") else "python"
    shown = f"$ {text}" if lexer == "console" else text
    console.print(Syntax(shown, lexer, theme="ansi_dark", background_color="default"))


def say(text: str, style: str = "green") -> None:
    console.print(Text(f"  → {text}", style))


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    os.environ.setdefault("PYTHONUTF8", "1")
    main()
