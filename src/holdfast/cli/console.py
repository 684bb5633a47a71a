"""Output for people: tables as wide as the terminal, with colours if it has them.

Output that goes to a file or another program is as wide as its longest row, one line for each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar
from rich.text import Text

from holdfast.admin import CopyPlan, CopyResult
from holdfast.admin.columns import StoreColumns
from holdfast.admin.doctor import Check
from holdfast.admin.plan import OperationPlan, OperationResult
from holdfast.cli.contents import (
    add_segment,
    bounds_of,
    copy_facts,
    files_text,
    history_cells,
    partitions_text,
    place_of,
    removal_of,
    root_facts,
    shown_column,
    texts_of,
    versions_text,
)
from holdfast.cli.grid import Column, Grid, facts, number, wrapping
from holdfast.cli.output import Output, nobody_to_ask, nobody_to_confirm
from holdfast.cli.texts import clean, size_text, spans, time_text
from holdfast.engine.versions.journal import JournalLine
from holdfast.errors import HoldfastError
from holdfast.reading import (
    Diff,
    InspectedStore,
    KeyVersion,
    PartitionChain,
    Progress,
    RootInfo,
    StoreInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading.meanings import timed
from holdfast.store import Row
from holdfast.types import (
    RowCodec,
    Schema,
    StructType,
)

_WIDTH_WHEN_PIPED = 1_000_000
_STYLES = {"added": "green", "changed": "yellow", "removed": "red"}
_SIGNS = {"added": "+", "changed": "~", "removed": "-"}
_WAITS = "removed after"
"""The column for when clean-up may remove a version that is kept for its grace period only."""
_SIDES = ("before", "after")
_STATUS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "failed": ("FAILED", "bold red")}


class ConsoleOutput(Output):
    """Prints tables on stdout; errors and progress go to stderr. `full` cuts no cell."""

    def __init__(self, *, full: bool = False) -> None:
        self._console = _console(stderr=False)
        self._errors = _console(stderr=True)
        self._full = full

    def roots(self, roots: Sequence[RootInfo]) -> None:
        several = len(roots) > 1
        above = os.path.commonpath([root.location for root in roots]) if several else ""
        if several:
            self._note(f"below {above}")
        else:
            self._facts(root_facts(roots[0]))
        self._console.print()
        table = self._grid(
            *([wrapping("root")] if several else []),
            number("operator"),
            wrapping("store"),
            number("partitions"),
            number("version"),
            number("keys"),
            number("size"),
            Column("key", "cut"),
            Column("value", "cut"),
        )
        for root in roots:
            for store in root.stores:
                table.add(
                    *([os.path.relpath(root.location, above)] if several else []),
                    store.operator,
                    store.store,
                    partitions_text(store),
                    root.newest,
                    f"{store.num_keys:,}",
                    size_text(store.size_bytes),
                    store.key_schema.ddl(),
                    store.value_schema.ddl(),
                )
        self._show(table)

    def version(
        self, root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None
    ) -> None:
        named = {
            "root": f"{root.location} ({root.kind})",
            "version": f"{version.version} (of {root.oldest} to {root.newest})",
            "committed": time_text(version.committed_at_ms),
            "writer": f"{version.writer_id or '–'}, epoch {version.epoch}",
            "tags": ", ".join(version.tags) or "–",
        }
        for name, found in (("batch", version.batch), ("watermark", version.watermark)):
            if found is not None:
                told = timed(found)
                named[name] = ", ".join(f"{key}={cell}" for key, cell in told.items())
        self._facts(named)
        for store in version.stores:
            self._store(store)
        for chain in chains or ():
            self._chain(chain)

    def _store(self, store: StoreInfo) -> None:
        self._title(f"operator {store.operator}, store {store.store}")
        named = {"key": store.key_schema.ddl(), "value": store.value_schema.ddl()}
        if store.key_index_ordinal is not None:
            named["index"] = store.key_schema.names[store.key_index_ordinal]
        if store.num_cols_prefix_key:
            named["prefix"] = ", ".join(store.key_schema.names[: store.num_cols_prefix_key])
        self._facts(named)
        bounded = any((part.evict, part.expire) != (None, None) for part in store.partitions)
        bounds = [Column("evicted up to"), Column("expired up to")] if bounded else []
        table = self._grid(*map(number, ("partition", "keys", "segments", "size")), *bounds)
        for part in store.partitions:
            table.add(
                part.partition,
                f"{part.num_keys:,}",
                part.segments,
                size_text(part.size_bytes),
                *(bounds_of(store, part) if bounded else ()),
            )
        self._show(table)

    def _chain(self, chain: PartitionChain) -> None:
        self._title(
            f"files of operator {chain.operator}, store {chain.store}, partition "
            f"{chain.partition}, newest first"
        )
        table = self._grid(
            Column("kind"), *map(number, ("versions", "rows", "removed", "size")), wrapping("file")
        )
        for segment in chain.segments:
            add_segment(table, segment, "")
            for part in segment.fallbacks:
                add_segment(table, part, "  or ")
        self._show(table)

    def columns(self, location: str, version: int, stores: Sequence[StoreColumns]) -> None:
        self._facts({"root": location, "version": str(version)})
        for store in stores:
            self._title(f"operator {store.operator}, store {store.store}")
            table = self._grid(
                Column("column"),
                Column("type"),
                Column("in"),
                wrapping("part of"),
                wrapping("repaired"),
            )
            for column in store.columns:
                table.add(
                    column.name,
                    column.type,
                    column.place,
                    column.aggregate or "–",
                    column.repaired,
                )
            self._show(table)

    def history(self, root: RootInfo, lines: Sequence[VersionInfo]) -> None:
        waits = any(line.removable_from_ms is not None for line in lines)
        table = self._grid(
            number("version"),
            Column("committed"),
            number("keys"),
            number("changed"),
            number("written"),
            number("size"),
            wrapping("tags"),
            *([Column(_WAITS)] if waits else []),
        )
        for line in lines:
            table.add(*history_cells(line), *removal_of(line, waits))
        self._show(table)
        if len(lines) < root.versions:
            self._note(f"{root.versions - len(lines):,} older ones; --limit 0 shows all")

    def value(self, store: InspectedStore, version: int, key: Row, value: Row | None) -> None:
        if value is None:
            self._errors.print(Text(f"There is no such key in version {version}.", "yellow"))
            return
        columns = [shown_column(field) for field in store.value_schema]
        self._lines(
            facts(list(zip(columns, texts_of(store.value_schema, value), strict=True)), self._room)
        )

    def key_history(self, store: InspectedStore, key: Row, lines: Sequence[KeyVersion]) -> None:
        if not lines:
            self._errors.print(Text("No version has such a key.", "yellow"))
            return
        table = self._grid(
            number("version"),
            Column("committed"),
            Column("change"),
            *map(shown_column, store.value_schema),
        )
        for line in lines:
            cells = texts_of(store.value_schema, line.value)
            table.add(
                line.version,
                time_text(line.committed_at_ms),
                line.change,
                *cells,
                style=_STYLES[line.change],
            )
        self._show(table)

    def rows(self, store: InspectedStore, version: int, table: pa.Table, more: bool) -> None:
        fields = store.fields_of(table)
        shown = self._grid(*map(shown_column, fields))
        codec = RowCodec(Schema(StructType(fields)))
        for row in codec.from_arrow(table.columns, table.num_rows):
            shown.add(*texts_of(fields, row))
        self._show(shown)
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        count = f"{rows} of version {version}"
        self._note(f"{count}; there are more: --limit 0 shows all" if more else count)

    def diff(self, store: InspectedStore, diff: Diff) -> None:
        values = [
            shown_column(field, f" {side}") for field in store.value_schema for side in _SIDES
        ]
        table = self._grid(Column(""), *map(shown_column, store.key_schema), *values)
        for change in diff.changes:
            before = texts_of(store.value_schema, change.before)
            after = texts_of(store.value_schema, change.after)
            sides = [cell for pair in zip(before, after, strict=True) for cell in pair]
            keys = texts_of(store.key_schema, change.key)
            first = 1 + len(keys)
            aside = {
                first + 2 * at + side
                for at, pair in enumerate(zip(before, after, strict=True))
                for side in (0, 1)
                if pair[0] == pair[1] or not (change.before, change.after)[side]
            }
            sign, style = _SIGNS[change.change], _STYLES[change.change]
            table.add(sign, *keys, *sides, style=style, aside=aside)
        if diff.changes:
            self._show(table)
        self._note(
            f"version {diff.before} to {diff.after}: {diff.added:,} added, {diff.changed:,} "
            f"changed, {diff.removed:,} removed"
        )
        if len(diff.changes) < diff.total:
            self._note(f"{len(diff.changes):,} of them are listed; --limit 0 lists all")

    def verification(self, results: Sequence[Verification]) -> None:
        for result in results:
            if result.problems:
                table = self._grid(
                    Column("kind"),
                    wrapping("file"),
                    wrapping("needed by versions"),
                    wrapping("problem"),
                )
                for check in result.problems:
                    table.add(check.kind, place_of(check), spans(check.versions), check.problem)
                self._show(table)
            self._verdict(result)

    def _verdict(self, result: Verification) -> None:
        count = f"{files_text(result.file_count)}, {size_text(result.checked_bytes)}"
        others = f"; {files_text(result.other_files)} beside them belong to no version"
        note = others if result.other_files else ""
        if result.intact:
            line = f"{result.location}: {count} checked, all intact"
            self._console.print(Text(f"{line}, versions {spans(result.readable)}{note}", "green"))
            return
        damaged = len({check.path for check in result.problems})
        line = f"{result.location}: {damaged:,} of {count} damaged{note}"
        self._console.print(Text(line, "bold red"))
        self._note(f"versions that can be read: {spans(result.readable) or 'none'}")
        self._note(f"versions that cannot: {spans(result.broken) or 'none'}")

    def copy_plan(self, plan: CopyPlan) -> None:
        self._facts(copy_facts(plan))
        if plan.is_done:
            self._note("all of it is there already; nothing to do")

    def confirm_copy(self, plan: CopyPlan) -> bool:
        if not sys.stdin.isatty():
            raise nobody_to_ask(plan)
        self.copy_plan(plan)
        try:
            return typer.confirm("Copy?", err=True)
        except typer.Abort:
            return False

    def copied(self, copied: CopyResult) -> None:
        if copied.vanished:
            self.warning(
                f"Retention removed {versions_text(copied.vanished)} before they were copied; the "
                "others are whole."
            )
        line = (
            f"{versions_text(copied.versions)} copied and checked: "
            f"{files_text(copied.written_files)} written, {size_text(copied.written_bytes)}"
        )
        if copied.kept_files:
            line += (
                f"; {files_text(copied.kept_files)} there before, {size_text(copied.kept_bytes)}"
            )
        everything = copied.written_files or copied.kept_files
        self._console.print(Text(line if everything else "all of it was there already", "green"))

    def plan(self, plan: OperationPlan) -> None:
        self._facts(dict(plan.lines()))
        self._note("nothing was changed")

    def confirm(self, plan: OperationPlan) -> bool:
        if not sys.stdin.isatty():
            raise nobody_to_confirm(plan)
        self._facts(dict(plan.lines()))
        try:
            return typer.confirm("Do it?", err=True)
        except typer.Abort:
            return False

    def done(self, result: OperationResult) -> None:
        self._console.print(Text(result.summary, "green"))

    def operations(self, lines: Sequence[JournalLine]) -> None:
        table = self._grid(
            number("version"),
            Column("when"),
            Column("what"),
            wrapping("detail"),
            wrapping("who"),
            wrapping("reason"),
        )
        for line in lines:
            entry = line.entry
            table.add(
                entry.version,
                time_text(entry.at_ms),
                entry.kind if line.is_done else Text(f"{entry.kind}, not done", "yellow"),
                ", ".join(f"{name}={cell}" for name, cell in entry.detail.items()),
                entry.by,
                entry.reason or "–",
            )
        self._show(table)

    def checks(self, checks: Sequence[Check]) -> None:
        table = self._grid(Column("check"), Column(""), wrapping("found"), wrapping("what to do"))
        for check in checks:
            word, style = _STATUS[check.status]
            table.add(check.name, Text(word, style), check.found, check.advice)
        self._show(table)

    def warning(self, message: str) -> None:
        self._errors.print(Text.assemble(("Warning: ", "bold yellow"), clean(message)))

    def error(self, error: HoldfastError) -> None:
        self._errors.print(Text.assemble(("Error: ", "bold red"), clean(error.message)))
        self._errors.print(Text(error.condition, "dim"))

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        bar = ProgressBar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
            console=self._errors,
            transient=True,
            disable=not self._errors.is_terminal,
        )
        with bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total, path: bar.update(task, completed=done, total=total)

    def _title(self, text: str) -> None:
        self._console.print(Text(f"\n{text}", "bold"))

    def _note(self, text: str) -> None:
        self._console.print(Text(text, "dim"))

    def _facts(self, named: Mapping[str, str]) -> None:
        self._lines(
            facts([(wrapping(name), clean(fact)) for name, fact in named.items()], self._room)
        )

    def _grid(self, *columns: Column) -> Grid:
        return Grid(columns, full=self._full)

    def _show(self, table: Grid) -> None:
        self._lines(table.lines(self._room))
        if table.has_cut:
            self._note("Long cells are cut; --full shows them whole.")

    def _lines(self, lines: Iterable[Text]) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True)

    @property
    def _room(self) -> int | None:
        """How wide a line may be; None where it does not matter."""
        return None if self._console.width == _WIDTH_WHEN_PIPED else self._console.width


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    piped = not stream.isatty() and "COLUMNS" not in os.environ
    return Console(
        file=stream,
        width=_WIDTH_WHEN_PIPED if piped else None,
        highlight=False,
        soft_wrap=False,
        markup=False,
    )
