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
from holdfast.cli.exits import Exit

# `commands` and all it needs (Arrow, numpy, rich) are imported inside the commands: --version,
# --help and completion answer without them, in a fraction of the time.

_EPILOG = "\n\n".join(["Exit codes", *(f"{code.value}: {code.meaning}" for code in Exit)])

app = typer.Typer(
    name="holdfast",
    help="Look into versioned state: any root, any version, without Spark. Only copy writes.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # they would print local variables, which hold state
    context_settings={"help_option_names": ["-h", "--help"]},
)

RootArgument = Annotated[
    str,
    typer.Argument(
        metavar="ROOT",
        help="A folder made by holdfast.open, a query's <checkpointLocation>/holdfast, a "
        "provider's folder, a folder with several of those, or a URL.",
        show_default=False,
    ),
]
At = Annotated[
    str | None,
    typer.Option(
        "--at", metavar="VERSION|TAG", help="The version to look at.", show_default="newest"
    ),
]
OperatorOption = Annotated[
    int | None, typer.Option("--operator", help="Only this operator.", show_default=False)
]
Store = Annotated[
    str | None, typer.Option("--store", help="Only the store of this name.", show_default=False)
]
Partition = Annotated[
    int | None, typer.Option("--partition", help="Only this partition.", show_default=False)
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON for scripts; errors too, on stderr.")
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
    """Look into versioned state: any root, any version, without Spark. Only copy writes."""


@app.command()
def ls(root: RootArgument, json: Json = False) -> None:
    """List the stores at a root, or in the folders below it."""
    from holdfast.cli import commands

    commands.run(json, lambda to: commands.ls(to, root))


@app.command()
def show(
    root: RootArgument,
    at: At = None,
    files: Annotated[
        bool, typer.Option("--files", help="Show the chain of files the version loads from.")
    ] = False,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """Show one version: its commit, stores, schemas, partitions and files."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    commands.run(json, lambda to: commands.show(to, chosen, at, files))


@app.command()
def history(
    root: RootArgument,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 20,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """List the versions there are, newest first."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    commands.run(json, lambda to: commands.history(to, chosen, limit))


@app.command()
def get(
    root: RootArgument,
    key: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY",
            help="The key, one cell for each of its columns; arrays and structs as JSON. Put -- "
            "before a cell that starts with a dash.",
            show_default=False,
        ),
    ] = None,
    key_json: Annotated[
        str | None,
        typer.Option(
            "--key-json",
            metavar="JSON",
            help="The key as a JSON array or object instead; null is null.",
            show_default=False,
        ),
    ] = None,
    at: At = None,
    all_versions: Annotated[
        bool, typer.Option("--history", help="Every version in which it changed.")
    ] = False,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """Print the value of one key, or how it changed from version to version."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    wanted = commands.TypedKey(tuple(key or ()), key_json)
    commands.run(json, lambda to: commands.get(to, chosen, wanted, at, all_versions))


@app.command()
def scan(
    root: RootArgument,
    where: Annotated[
        str | None,
        typer.Option(
            "--where",
            metavar="FILTER",
            help="Such as \"total > 100 and user = 'Jade'\"; also or, not, in (…), is null.",
            show_default=False,
        ),
    ] = None,
    prefix: Annotated[
        list[str] | None,
        typer.Option(
            "--prefix",
            metavar="CELL",
            help="Only keys that begin with it; once for each column of the store's prefix.",
            show_default=False,
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", metavar="A,B,…", help="Only these columns.", show_default=False),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="At most so many; 0: all.")] = 20,
    at: At = None,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """Print rows of a version, in no promised order."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    names = None if columns is None else [name.strip() for name in columns.split(",")]
    commands.run(json, lambda to: commands.scan(to, chosen, at, names, where, prefix, limit))


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
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="List at most so many; 0: all.")
    ] = 20,
    operator: OperatorOption = None,
    store: Store = None,
    partition: Partition = None,
    json: Json = False,
) -> None:
    """Compare two versions key by key. Ends with 1 where they differ, as diff does."""
    from holdfast.cli import commands

    chosen = commands.Selection(root, operator, store, partition)
    commands.run(json, lambda to: commands.diff(to, chosen, before, after, limit))


@app.command()
def verify(root: RootArgument, json: Json = False) -> None:
    """Check every byte of every version, those to fall back on included."""
    from holdfast.cli import commands

    commands.run(json, lambda to: commands.verify(to, root))


@app.command()
def copy(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FROM",
            help="The root to copy from, or the checkpoint of a query. It may be in use.",
            show_default=False,
        ),
    ],
    target: Annotated[
        str,
        typer.Argument(
            metavar="TO",
            help="An empty place, or one with an unfinished or an older copy of FROM.",
            show_default=False,
        ),
    ],
    versions: Annotated[
        list[str] | None,
        typer.Option(
            "--versions",
            metavar="3,5..7,newest",
            help="Versions, tags and ranges to copy, with their tags.",
            show_default="all there are",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be copied, and write nothing.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before writing.")] = False,
    json: Json = False,
) -> None:
    """Copy versions to another root, of any kind, and check every byte there.

    Run again, it goes on where it was. A stream goes on there with the same checkpoint and
    stateLocation set to TO. Until the copy is whole, nothing opens it.
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
            help="A root to try: writing, reading back, and that a file is created only once. "
            "What is written for it is removed again.",
            show_default=False,
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine: Python, Java, PySpark, pandas, the extras, and a root."""
    from holdfast.cli import commands

    commands.run(json, lambda to: commands.doctor(to, root))


class _WithoutPandas(MetaPathFinder):
    """Hides pandas from Arrow, which imports it, where installed, to build its first array.

    We need none of it, and it takes longer than all the rest. The process is ours alone.
    """

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("The command line does without pandas.", name=fullname)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    sys.meta_path.insert(0, _WithoutPandas())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without our characters
    try:
        if "--json" in sys.argv[1:]:
            sys.exit(_main_json())
        app()
    except Exception:
        traceback.print_exc()
        sys.exit(Exit.FAULT)


def _main_json() -> int:
    """With --json, what typer itself refuses is JSON too."""
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
