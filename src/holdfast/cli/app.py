"""Commands and their options. What they do is in `commands`, loaded when one runs."""

from __future__ import annotations

import json as json_module
import sys
import traceback
from importlib.abc import MetaPathFinder
from io import TextIOWrapper
from typing import Annotated

import typer

import holdfast
from holdfast.cli.changes import COMMANDS, Json
from holdfast.cli.completion import offered_operators, offered_stores, offered_versions
from holdfast.cli.exits import Exit

# `commands` and what it needs (Arrow, numpy, rich) are imported inside the commands, so that
# --version, --help and completion answer without them, in a fraction of the time.

_EPILOG = "\n\n".join(["Exit codes", *(f"{code.value}: {code.meaning}" for code in Exit)])

app = typer.Typer(
    name="holdfast",
    help="Inspect and change versioned state: any root, any version, without Spark.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, which can hold state values
    context_settings={"help_option_names": ["-h", "--help"]},
)

RootArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROOT",
        help="A query's checkpoint (checkpointLocation) or its stateLocation, a folder made by "
        "holdfast.open, a provider's folder, a folder with several of those, or a URL.",
        show_default=False,
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="VERSION|TAG",
        help="The version to read.",
        show_default="newest",
        autocompletion=offered_versions,
    ),
]
OperatorOption = Annotated[
    int | None,
    typer.Option(
        "--operator",
        help="Only this operator.",
        show_default=False,
        autocompletion=offered_operators,
    ),
]
Store = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="Only the store with this name.",
        show_default=False,
        autocompletion=offered_stores,
    ),
]
Partition = Annotated[
    int | None, typer.Option("--partition", help="Only this partition.", show_default=False)
]
Full = Annotated[
    bool, typer.Option("--full", help="Show long cells whole instead of cutting them.")
]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {holdfast.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Inspect and change versioned state: any root, any version, without Spark."""


@app.command()
def ls(root: RootArgument, full: Full = False, json: Json = False) -> None:
    """List the stores at a root, or in the folders below it."""
    from holdfast.cli import commands

    commands.run(json, lambda to: commands.ls(to, root), full=full)


@app.command()
def show(
    root: RootArgument,
    at: At = None,
    files: Annotated[
        bool, typer.Option("--files", help="Also show the files that the version is read from.")
    ] = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema", help="Show the columns instead: their types, and how a repair sets them."
        ),
    ] = False,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """Show one version: its commit, stores, schemas, partitions and files."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    if schema:
        commands.run(json, lambda to: commands.schema(to, chosen, at))
    commands.run(json, lambda to: commands.show(to, chosen, at, files))


@app.command()
def history(
    root: RootArgument,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The most to show; 0: all.")] = 20,
    operations: Annotated[
        bool,
        typer.Option("--operations", help="List the operations on the root instead: its journal."),
    ] = False,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """List the versions of a root, newest first."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    if operations:
        commands.run(json, lambda to: commands.operations(to, chosen, limit))
    commands.run(json, lambda to: commands.history(to, chosen, limit))


@app.command()
def get(
    root: RootArgument,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help="The key, one cell for each of its columns, or the first of them for all keys "
            "that begin so; arrays and structs as JSON. Put -- before a cell that starts with a "
            "dash.",
            show_default=False,
        ),
    ] = None,
    key_json: Annotated[
        str | None,
        typer.Option(
            "--key-json",
            metavar="JSON",
            help="The key as a JSON array or object instead, or some of its columns.",
            show_default=False,
        ),
    ] = None,
    at: At = None,
    all_versions: Annotated[
        bool, typer.Option("--history", help="Show every version in which the key changed.")
    ] = False,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    full: Full = False,
    json: Json = False,
) -> None:
    """Print the value of a key, its history, or all keys that begin with some cells."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    wanted = commands.TypedKey(tuple(key or ()), key_json)
    commands.run(json, lambda to: commands.get(to, chosen, wanted, at, all_versions), full=full)


@app.command()
def scan(
    root: RootArgument,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Such as \"total > 100 and user = 'Jade'\"; also or, not, in (…), between … "
            "and …, like, is null. Times are text: '2026-01-31 12:00'.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--prefix",
            metavar="CELL",
            help="Only keys that begin with it; once for each column.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B,…", help="Only these columns.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The most to show; 0: all.")] = 20,
    at: At = None,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    full: Full = False,
    json: Json = False,
) -> None:
    """Print rows of a version, in no particular order."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    commands.run(
        json, lambda to: commands.scan(to, chosen, at, names, where, prefix, limit), full=full
    )


@app.command()
def diff(
    root: RootArgument,
    before: Annotated[
        str | None,
        typer.Argument(
            metavar="FROM",
            help="A version or tag.",
            show_default="the version before TO",
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Argument(metavar="TO", help="A version or tag.", show_default="newest"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="The most to list; 0: all.")] = 20,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    full: Full = False,
    json: Json = False,
) -> None:
    """Compare two versions key by key. Exits with 1 if they differ, as diff does."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    commands.run(json, lambda to: commands.diff(to, chosen, before, after, limit), full=full)


@app.command()
def verify(root: RootArgument, json: Json = False) -> None:
    """Check every byte of every version, including those to fall back on."""
    from holdfast.cli import commands

    commands.run(json, lambda to: commands.verify(to, root))


@app.command()
def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="The root to copy from, or a query's checkpoint. It may be in use.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="An empty place, or one with an unfinished or older copy of FROM.",
            show_default=False,
        ),
    ],
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--versions",
            metavar="3,5..7,newest",
            help="Versions, tags and ranges to copy, with their tags.",
            show_default="all",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be copied, and write nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before writing.")] = False,
    json: Json = False,
) -> None:
    """Copy versions to another root of any kind, and verify every byte there.

    To resume an interrupted copy, run it again; until it is complete, nothing opens it.
    To continue a stream on the copy, keep its checkpoint and set stateLocation to TO.
    """
    from holdfast.cli import commands

    wanted = [part for text in versions or () for part in text.split(",")]
    commands.run(json, lambda to: commands.copy(to, source, target, wanted, dry_run, yes))


@app.command()
def doctor(
    root: Annotated[
        str | None,
        typer.Argument(
            metavar="ROOT",
            help="A root to test: writes, reads back, and checks that a file is created only once. "
            "The files written for this are removed.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine (Python, Java, PySpark, pandas, extras) and, if given, a root."""
    from holdfast.cli import commands

    commands.run(json, lambda to: commands.doctor(to, root))


for _command in COMMANDS:
    app.command()(_command)


class _WithoutPandas(MetaPathFinder):
    """Hides pandas from Arrow, which would import it to build its first array.

    The command line does not need pandas, and importing it takes longer than everything else. This
    process runs nothing else, so it may do without.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("The command line does without pandas.", name=fullname)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.meta_path.insert(0, _WithoutPandas())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for a terminal that lacks characters
    try:
        if "--json" in sys.argv[1:]:
            sys.exit(_main_json())
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(Exit.FAULT)


def _main_json() -> int:
    """With --json, also print typer's own usage errors as JSON."""
    try:
        return int(app(standalone_mode=False) or 0)
    except typer.Abort:
        return Exit.USAGE
    except Exception as error:
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        body = {
            "condition": "STATE_STORE_INVALID_ARGUMENT",
            "message": explain(),
            "exit_code": int(Exit.USAGE),
        }
        typer.echo(json_module.dumps({"error": body}, indent=2, ensure_ascii=False), err=True)
        return Exit.USAGE
