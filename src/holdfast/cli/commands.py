"""What the commands do: open a root, read, pass results to an Output, and set the exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer

from holdfast import reading
from holdfast.admin import plan_copy
from holdfast.admin.columns import store_columns
from holdfast.admin.doctor import examine, is_healthy
from holdfast.backends.locations import open_storage
from holdfast.cli.as_json import JsonOutput
from holdfast.cli.console import ConsoleOutput
from holdfast.cli.exits import Exit
from holdfast.cli.output import Output
from holdfast.engine.versions.journal import Journal
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.reading import InspectedStore, Root
from holdfast.reading.cells import first_cells, parse_json_cells, parse_row
from holdfast.reading.lists import ListCounter, counted_changes, in_order
from holdfast.reading.reader import VersionReader
from holdfast.schemes import scheme_of
from holdfast.types import RowCodec, Schema


@dataclass(frozen=True, slots=True)
class Selection:
    """A location, and the options that select something in it."""

    location: str
    operator: int | None = None
    store: str | None = None
    partition: int | None = None

    def open_root(self) -> Root:
        """The root that the options select."""
        return reading.open_root(self.location, self.operator, self.store, self.partition)

    def open_store(self) -> InspectedStore:
        """The one store that the options select."""
        return self.open_root().store(self.operator, self.store, self.partition)


@dataclass(frozen=True, slots=True)
class TypedKey:
    """A key as the user typed it: cell by cell, or as JSON."""

    cells: tuple[str, ...]
    as_json: str | None

    def cells_of(self, keys: Schema) -> dict[str, Any]:
        """The cells that were typed, by the names of their columns."""
        if (self.as_json is None) == (not self.cells):
            raise InvalidArgument(
                f"Give the key ({keys.ddl()}), or the first of its columns, either cell by cell or "
                "as --key-json."
            )
        if self.as_json is not None:
            return parse_json_cells(keys, self.as_json)
        if len(self.cells) > len(keys):
            return dict(zip(keys.names, parse_row(keys, self.cells), strict=True))
        return first_cells(keys, self.cells)


def run(json: bool, command: Callable[[Output], Exit], *, full: bool = False) -> None:
    """Run a command, print its error if there is one, and exit with the exit code.

    Tables for people cut long cells unless they are to be `full`.
    """
    output: Output = JsonOutput() if json else ConsoleOutput(full=full)
    warnings = _Warnings(output)
    log = logging.getLogger("holdfast")
    log.addHandler(warnings)
    try:
        code = command(output)
    except HoldfastError as error:
        output.error(error)
        code = Exit.of(error)
    except KeyboardInterrupt:
        code = Exit.INTERRUPTED
    finally:
        log.removeHandler(warnings)
    raise typer.Exit(int(code))


class _Warnings(logging.Handler):
    """Prints what the engine logs at WARNING or above, each message once."""

    def __init__(self, output: Output) -> None:
        super().__init__(logging.WARNING)
        self._output = output
        self._told: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if message not in self._told:
            self._told.add(message)
            self._output.warning(message)


def ls(output: Output, location: str) -> Exit:
    """List roots and stores."""
    output.roots([root.info() for root in reading.open_roots(location)])
    return Exit.OK


def show(output: Output, chosen: Selection, at: str | None, files: bool) -> Exit:
    """Show one version."""
    root = chosen.open_root()
    version = root.version(at, chosen.operator, chosen.store, chosen.partition)
    chains = None
    if files:
        chains = root.chains(version.version, chosen.operator, chosen.store, chosen.partition)
    output.version(root.info(), version, chains)
    return Exit.OK


def schema(output: Output, chosen: Selection, at: str | None) -> Exit:
    """Show the columns of the stores of one version."""
    root = chosen.open_root()
    version = root.version(at, chosen.operator, chosen.store, chosen.partition).version
    stores = store_columns(root.manifest(version), chosen.operator, chosen.store)
    output.columns(root.location, version, stores)
    return Exit.OK


def history(output: Output, chosen: Selection, limit: int) -> Exit:
    """List the versions."""
    root = chosen.open_root()
    lines = root.history(chosen.operator, chosen.store, chosen.partition, limit or None)
    output.history(root.info(), lines)
    return Exit.OK


def operations(output: Output, chosen: Selection, limit: int) -> Exit:
    """List the operations on a root."""
    root = chosen.open_root()
    output.operations(Journal(root.log).lines()[: limit or None])
    return Exit.OK


def get(
    output: Output, chosen: Selection, key: TypedKey, at: str | None, all_versions: bool
) -> Exit:
    """Print one key."""
    store = chosen.open_store()
    version = store.root.resolve(at)
    reader = store.at(version)
    cells = key.cells_of(store.key_schema)
    lists = ListCounter.of(reader)
    if len(cells) < len(store.key_schema):
        return _get_part(output, store, reader, cells, all_versions)
    typed = RowCodec(store.key_schema).encode(tuple(cells[name] for name in store.key_schema.names))
    row = typed if lists is None else lists.stored(typed)
    if all_versions:
        lines = [] if row is None else store.key_history(row)
        output.key_history(store, typed, lines)
        return Exit.OK if lines else Exit.NOT_FOUND
    value = None if row is None else store.get(row, version)
    output.value(store, version, typed, value)
    return Exit.NOT_FOUND if value is None else Exit.OK


def _get_part(
    output: Output,
    store: InspectedStore,
    reader: VersionReader,
    cells: Mapping[str, Any],
    all_versions: bool,
) -> Exit:
    """Print every key that has some cells, in the order of the keys."""
    if all_versions:
        raise InvalidArgument(
            f"--history is that of one key; give all of ({store.key_schema.ddl()})."
        )
    found = in_order(reader.scan(prefix=cells), store.key_schema)
    lists = ListCounter.of(reader)
    output.rows(store, reader.version, found if lists is None else lists.counted(found), more=False)
    return Exit.OK if found.num_rows else Exit.NOT_FOUND


def scan(
    output: Output,
    chosen: Selection,
    at: str | None,
    columns: list[str] | None,
    where: str | None,
    prefix: list[str] | None,
    limit: int,
) -> Exit:
    """Print rows."""
    store = chosen.open_store()
    version = store.root.resolve(at)
    reader = store.at(version)
    wanted = first_cells(store.key_schema, prefix) if prefix else None
    lists = ListCounter.of(reader)
    read = columns
    if lists is not None and columns is not None and lists.position in columns:
        read = list(dict.fromkeys([*columns, *store.key_schema.names]))
    if limit:
        table, more = store.head(limit, version, read, where, wanted)
    else:
        table, more = reader.scan(read, where, wanted), False
    if lists is not None and lists.position in table.column_names:
        table = lists.counted(table)
    table = table if columns is None else table.select(columns)
    output.rows(store, version, table, more)
    return Exit.OK


def diff(
    output: Output, chosen: Selection, before: str | None, after: str | None, limit: int
) -> Exit:
    """Compare two versions."""
    store = chosen.open_store()
    newer = store.root.resolve(after)
    older = store.root.before(newer) if before is None else store.root.resolve(before)
    found = counted_changes(store, store.diff(older, newer, limit or None))
    output.diff(store, found)
    return Exit.FOUND if found.total else Exit.OK


def verify(output: Output, location: str) -> Exit:
    """Check every byte."""
    results = []
    for root in reading.open_roots(location):
        with output.progress(f"verify {root.location}") as progress:
            results.append(reading.verify(root, progress))
    output.verification(results)
    return Exit.OK if all(result.intact for result in results) else Exit.FOUND


def check_lasting(target: str) -> None:
    """Refuse to write to the memory of this process."""
    if (scheme := scheme_of(target)) is not None and not scheme.is_lasting:
        raise InvalidArgument(
            f"{target} would be in the memory of this command and end with it. Name a place that "
            "stays."
        )


def copy(
    output: Output, source: str, target: str, wanted: list[str], dry_run: bool, yes: bool
) -> Exit:
    """Copy versions from one root to another."""
    check_lasting(target)
    root = reading.open_root(source)
    copying = plan_copy(root.storage, open_storage(target), wanted)
    if dry_run:
        output.copy_plan(copying.plan)
        return Exit.OK
    if not yes and not copying.plan.is_done and not output.confirm_copy(copying.plan):
        return Exit.INTERRUPTED
    with output.progress(f"copy to {copying.plan.target}") as progress:
        copied = copying.run(progress)
    output.copied(copied)
    return Exit.OK


def doctor(output: Output, location: str | None) -> Exit:
    """Check this machine and, where given, a root."""
    checks = examine(location)
    output.checks(checks)
    return Exit.OK if is_healthy(checks) else Exit.FOUND
