"""Writes what of docs/ comes from the code: errors.md, settings.md, cli.md, a table in streams.md.

python dev/gen_docs.py            write them
python dev/gen_docs.py --check    say which ones differ, and exit with 1 if any does
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
TABLE_OPENS = "<!-- The functions, written by `make docs-generated`; edit the code instead. -->\n"
TABLE_CLOSES = "<!-- End of the functions. -->\n"
NOTE = "<!-- Written by `make docs-generated`; edit the code instead. -->\n\n"


def errors_page() -> str:
    """The error classes and every condition."""
    from holdfast import errors

    classes = [
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type)
        and issubclass(cls, errors.HoldfastError)
        and cls is not errors.HoldfastError
    ]
    lines = [
        "# Errors",
        "",
        "Every error Holdfast raises on purpose is a `holdfast.errors.HoldfastError`.",
        "Its class says what to do next, its `condition` is a stable name that scripts may match",
        "on, and its message names the store and the version. No message holds a value of the",
        "state.",
        "",
        "| class | also a | meaning |",
        "|---|---|---|",
    ]
    for cls in classes:
        also = [
            base.__name__ for base in cls.__bases__ if not issubclass(base, errors.HoldfastError)
        ]
        lines.append(
            f"| `{cls.__name__}` | {', '.join(f'`{name}`' for name in also) or '–'} "
            f"| {first_line(cls.__doc__)} |"
        )
    lines += ["", "## Conditions", ""]
    for condition, (what, then) in errors.CONDITIONS.items():
        raised_by = [f"`{c.__name__}`" for c in classes if c.default_condition == condition]
        lines += [f"### {condition}", "", cell(what), ""]
        if raised_by:
            lines += [f"Default of {', '.join(raised_by)}.", ""]
        lines += [f"**What to do:** {cell(then)}", ""]
    return page(lines)


def settings_page() -> str:
    """Every setting with both of its names."""
    from holdfast import conf, schemes

    reaching = [f"`{each.name}.…`" for each in schemes.SCHEMES if each.is_set_in_spark]
    lines = [
        "# Settings",
        "",
        "A store takes its settings as a `holdfast.StateStoreConf`; those of a Spark session are",
        "read by `StateStoreConf.from_spark(conf)` under their Spark names. A setting of ours that",
        "is unknown or does not fit its type is refused by name.",
        "",
        "Durations are written like `60s`, `5min` or a number of milliseconds, sizes like `256k`,",
        "`1m` or a number of bytes.",
        "",
        "A stream takes those of `spark.holdfast.` as options of its writer, too, by the name in",
        "the column *option* or by the whole one, in any case. An option goes before the session's",
        "setting, for its query alone. So do the options that say how a database is reached:",
        f"{' and '.join(reaching)} for a root, `view.…` for a view. An option that starts",
        "with `spark.holdfast.` and is no setting is refused; other names are the sink's.",
        "",
        "| setting | in Spark | option | type | default | what it does |",
        "|---|---|---|---|---|---|",
    ]
    for setting in conf.SETTINGS:
        lines.append(
            f"| `{setting.name}` | `{setting.spark_name}` "
            f"| {f'`{setting.option}`' if setting.option else '–'} | {setting.type} "
            f"| `{setting.default}` | {cell(setting.help)} |"
        )
    return page(lines)


def cli_page() -> str:
    """The help text of every command."""
    import typer.main

    from holdfast import cli

    lines = [
        "# Command line",
        "",
        "The command line starts neither Spark nor a JVM. What follows is what `--help` prints.",
        "",
    ]
    for path in command_paths(typer.main.get_command(cli.app), ()):
        title = " ".join(("holdfast", *path))
        lines += [f"## {title}", "", "```text", help_text(path), "```", ""]
    return page(lines)


def streams_page() -> str:
    """The page as it is, with the table of aggregate functions as it should be."""
    from holdfast.streams.aggregates.functions import FUNCTIONS

    lines = ["| function | other names | value depends on the order of rows | sliding windows |"]
    lines.append("|---|---|---|---|")
    for function in sorted(FUNCTIONS, key=lambda function: function.name):
        others = ", ".join(f"`{name}`" for name in function.names[1:]) or "–"
        order = "yes" if function.by_order else "–"
        lines.append(
            f"| `{function.name}` | {others} | {order} "
            f"| {'by panes' if function.by_pane else 'row by row'} |"
        )
    before, opening, rest = (DOCS / "streams.md").read_text().partition(TABLE_OPENS)
    _, closing, after = rest.partition(TABLE_CLOSES)
    return f"{before}{opening}\n" + "\n".join(lines) + f"\n\n{closing}{after}"


def command_paths(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield path
    for name, child in getattr(command, "commands", {}).items():
        if not child.hidden:
            yield from command_paths(child, (*path, name))


def help_text(path: tuple[str, ...]) -> str:
    """What `holdfast PATH --help` prints on a plain terminal of 96 columns."""
    start = "import sys; sys.argv[0] = 'holdfast'; from holdfast.cli import main; main()"
    plain = {
        "COLUMNS": "96",
        "TERMINAL_WIDTH": "96",
        "TERM": "dumb",
        "NO_COLOR": "1",
        "PYTHONUTF8": "1",
        # Otherwise the help offers completion or not, depending on the shell one comes from.
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    kept = {k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "PYTHONPATH"}}
    done = subprocess.run(
        [sys.executable, "-c", start, *path, "--help"],
        env={**kept, **plain},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.strip("\n").splitlines())


def page(lines: list[str]) -> str:
    return NOTE + "\n".join(lines).rstrip() + "\n"


def cell(text: str) -> str:
    """`text` on one line that a Markdown table can hold."""
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")


def first_line(doc: str | None) -> str:
    return cell((doc or "").strip().split("\n\n")[0])


PAGES: dict[str, Callable[[], str]] = {
    "errors.md": errors_page,
    "settings.md": settings_page,
    "cli.md": cli_page,
    "streams.md": streams_page,
}


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    stale = []
    for name, make in PAGES.items():
        text, target = make(), DOCS / name
        if target.exists() and target.read_text() == text:
            continue
        stale.append(name)
        if not check:
            target.write_text(text)
    if stale:
        print(("differs: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
