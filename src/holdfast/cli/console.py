"""Output for people: tables as wide as the terminal, with colours if it has them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import typer
from rich import box
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.admin import CopyPlan, CopyResult
from holdfast.cli.output import Check, Output, nobody_to_ask
from holdfast.errors import HoldfastError
from holdfast.reading import (
    Diff,
    FileCheck,
    InspectedStore,
    KeyVersion,
    PartitionChain,
    Progress,
    RootInfo,
    SegmentFile,
    StoreInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading.cells import cell_text
from holdfast.store import Row
from holdfast.types import RowCodec, Schema, StructType, moment_text

_WIDTH_WHEN_PIPED = 200
_STYLES = {"added": "green", "changed": "yellow", "removed": "red"}
_SIGNS = {"added": "+", "changed": "~", "removed": "-"}
_STATUS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "failed": ("FAILED", "bold red")}


class ConsoleOutput(Output):
    """Prints tables on stdout; errors and progress go to stderr."""

    def __init__(self) -> None:
        self._console = _console(stderr=False)
        self._errors = _console(stderr=True)

    def roots(self, roots: Sequence[RootInfo]) -> None:
        several = len(roots) > 1
        above = os.path.commonpath([root.location for root in roots]) if several else ""
        if several:
            self._note(f"below {above}")
        else:
            self._facts(_root_facts(roots[0]))
        self._console.print()
        table = _table(
            *(["root"] if several else []),
            ">operator",
            "store",
            ">partitions",
            ">version",
            ">keys",
            ">size",
            "key",
            "value",
        )
        for root in roots:
            for store in root.stores:
                _add(
                    table,
                    *([os.path.relpath(root.location, above)] if several else []),
                    store.operator,
                    store.store,
                    _partitions(store),
                    root.newest,
                    f"{store.num_keys:,}",
                    size_text(store.size_bytes),
                    store.key_schema.ddl(),
                    store.value_schema.ddl(),
                )
        self._console.print(table)

    def version(
        self, root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None
    ) -> None:
        facts = {
            "root": f"{root.location} ({root.kind})",
            "version": f"{version.version} (of {root.oldest} to {root.newest})",
            "committed": time_text(version.committed_at_ms),
            "writer": f"{version.writer_id or '–'}, epoch {version.epoch}",
            "tags": ", ".join(version.tags) or "–",
        }
        for name, fact in (("batch", version.batch), ("watermark", version.watermark)):
            if fact is not None:
                facts[name] = ", ".join(f"{key}={cell}" for key, cell in fact.items())
        self._facts(facts)
        for store in version.stores:
            self._store(store)
        for chain in chains or ():
            self._chain(chain)

    def _store(self, store: StoreInfo) -> None:
        self._title(f"operator {store.operator}, store {store.store}")
        facts = {"key": store.key_schema.ddl(), "value": store.value_schema.ddl()}
        if store.key_index_ordinal is not None:
            facts["index"] = store.key_schema.names[store.key_index_ordinal]
        if store.num_cols_prefix_key:
            facts["prefix"] = ", ".join(store.key_schema.names[: store.num_cols_prefix_key])
        self._facts(facts)
        bounded = any((part.evict, part.expire) != (None, None) for part in store.partitions)
        table = _table(
            ">partition", ">keys", ">segments", ">size", *([">evict", ">expire"] if bounded else [])
        )
        for part in store.partitions:
            bounds = ["–" if b is None else b for b in (part.evict, part.expire)]
            _add(
                table,
                part.partition,
                f"{part.num_keys:,}",
                part.segments,
                size_text(part.size_bytes),
                *(bounds if bounded else ()),
            )
        self._console.print(table)

    def _chain(self, chain: PartitionChain) -> None:
        self._title(
            f"files of operator {chain.operator}, store {chain.store}, partition "
            f"{chain.partition}, newest first"
        )
        table = _table("kind", ">versions", ">rows", ">removed", ">size", "file")
        for segment in chain.segments:
            _add_segment(table, segment, "")
            for part in segment.fallbacks:
                _add_segment(table, part, "  or ")
        self._console.print(table)

    def history(self, root: RootInfo, lines: Sequence[VersionInfo]) -> None:
        table = _table(">version", "committed", ">keys", ">changed", ">written", ">size", "tags")
        for line in lines:
            if line.problem is not None:
                _add(table, line.version, "damaged", "", "", "", "", ", ".join(line.tags))
                continue
            _add(
                table,
                line.version,
                time_text(line.committed_at_ms or 0),
                f"{line.num_keys:,}",
                f"{line.changed_rows:,}",
                size_text(line.written_bytes or 0),
                size_text(line.size_bytes or 0),
                ", ".join(line.tags),
            )
        self._console.print(table)
        if len(lines) < root.versions:
            self._note(f"{root.versions - len(lines):,} older ones; --limit 0 shows all")

    def value(self, store: InspectedStore, version: int, key: Row, value: Row | None) -> None:
        if value is None:
            self._errors.print(Text(f"There is no such key in version {version}.", "yellow"))
            return
        self._facts(
            {
                field.name: cell_text(field.type, cell)
                for field, cell in zip(store.value_schema, value, strict=True)
            }
        )

    def key_history(self, store: InspectedStore, key: Row, lines: Sequence[KeyVersion]) -> None:
        if not lines:
            self._errors.print(Text("No version has such a key.", "yellow"))
            return
        table = _table(">version", "committed", "change", *map(_aligned, store.value_schema))
        for line in lines:
            cells = _cells(store.value_schema, line.value)
            _add(
                table,
                line.version,
                time_text(line.committed_at_ms),
                line.change,
                *cells,
                style=_STYLES[line.change],
            )
        self._console.print(table)

    def rows(self, store: InspectedStore, version: int, table: pa.Table, more: bool) -> None:
        fields = store.fields_of(table)
        shown = _table(*(_aligned(field) for field in fields))
        codec = RowCodec(Schema(StructType(fields)))
        for row in codec.from_arrow(table.columns, table.num_rows):
            _add(shown, *(cell_text(f.type, cell) for f, cell in zip(fields, row, strict=True)))
        self._console.print(shown)
        rows = "1 row" if table.num_rows == 1 else f"{table.num_rows:,} rows"
        count = f"{rows} of version {version}"
        self._note(f"{count}; there are more: --limit 0 shows all" if more else count)

    def diff(self, store: InspectedStore, diff: Diff) -> None:
        values = [
            f"{name} {side}" for name in store.value_schema.names for side in ("before", "after")
        ]
        table = _table("", *store.key_schema.names, *values)
        for change in diff.changes:
            before = _cells(store.value_schema, change.before)
            after = _cells(store.value_schema, change.after)
            sides = [cell for pair in zip(before, after, strict=True) for cell in pair]
            keys = _cells(store.key_schema, change.key)
            _add(table, _SIGNS[change.change], *keys, *sides, style=_STYLES[change.change])
        if diff.changes:
            self._console.print(table)
        self._note(
            f"version {diff.before} to {diff.after}: {diff.added:,} added, {diff.changed:,} "
            f"changed, {diff.removed:,} removed"
        )
        if len(diff.changes) < diff.total:
            self._note(f"{len(diff.changes):,} of them are listed; --limit 0 lists all")

    def verification(self, results: Sequence[Verification]) -> None:
        for result in results:
            if result.problems:
                table = _table("kind", "file", "needed by versions", "problem")
                for check in result.problems:
                    _add(table, check.kind, _place(check), spans(check.versions), check.problem)
                self._console.print(table)
            self._verdict(result)

    def _verdict(self, result: Verification) -> None:
        count = f"{len(result.files):,} files, {size_text(result.checked_bytes)}"
        if result.intact:
            line = f"{result.location}: {count} checked, all intact"
            self._console.print(Text(f"{line}, versions {spans(result.readable)}", "green"))
            return
        line = f"{result.location}: {len(result.problems):,} of {count} damaged"
        self._console.print(Text(line, "bold red"))
        self._note(f"versions that can be read: {spans(result.readable) or 'none'}")
        self._note(f"versions that cannot: {spans(result.broken) or 'none'}")

    def copy_plan(self, plan: CopyPlan) -> None:
        self._facts(_copy_facts(plan))
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
                f"Retention removed {_versions(copied.vanished)} before they were copied; the "
                "others are whole."
            )
        line = (
            f"{_versions(copied.versions)} copied and checked: "
            f"{_files(copied.written_files)} written, {size_text(copied.written_bytes)}"
        )
        if copied.kept_files:
            line += f"; {_files(copied.kept_files)} there before, {size_text(copied.kept_bytes)}"
        everything = copied.written_files or copied.kept_files
        self._console.print(Text(line if everything else "all of it was there already", "green"))

    def checks(self, checks: Sequence[Check]) -> None:
        table = _table("check", "", "found", "what to do")
        for check in checks:
            word, style = _STATUS[check.status]
            _add(table, check.name, Text(word, style), check.found, check.advice)
        self._console.print(table)

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

    def _facts(self, facts: Mapping[str, str]) -> None:
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        table.add_column(overflow="fold")
        for name, fact in facts.items():
            table.add_row(Text(clean(name)), Text(clean(fact)))
        self._console.print(table)


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


def _table(*columns: str) -> Table:
    """A table; the columns whose names start with '>' hold numbers."""
    table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False, padding=(0, 1))
    for name in columns:
        table.add_column(
            Text(clean(name.removeprefix(">"))),
            justify="right" if name.startswith(">") else "left",
            overflow="fold",
        )
    return table


def _add(table: Table, *cells: object, style: str | None = None) -> None:
    texts = [cell if isinstance(cell, Text) else Text(clean(str(cell))) for cell in cells]
    table.add_row(*texts, style=style)


def _add_segment(table: Table, segment: SegmentFile, indent: str) -> None:
    place = segment.path if segment.offset is None else f"{segment.path} at {segment.offset:,}"
    versions = str(segment.high) if segment.low == segment.high else f"{segment.low}–{segment.high}"
    _add(
        table,
        f"{indent}{segment.kind}",
        versions,
        f"{segment.rows:,}",
        f"{segment.tombstones:,}",
        size_text(segment.size_bytes),
        place if segment.present else f"{place} (missing or cut)",
        style="red" if not segment.present else "dim" if indent else None,
    )


def _aligned(field: Any) -> str:
    kind = field.type.arrow
    numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return f">{field.name}" if numeric else str(field.name)


def _root_facts(root: RootInfo) -> dict[str, str]:
    tags = ", ".join(f"{name} = {version}" for name, version in sorted(root.tags.items()))
    return {
        "root": f"{root.location} ({root.kind})",
        "versions": f"{root.versions:,}, from {root.oldest} to {root.newest}",
        "committed": time_text(root.committed_at_ms),
        "tags": tags or "–",
    }


def _copy_facts(plan: CopyPlan) -> dict[str, str]:
    tags = ", ".join(f"{name} = {version}" for name, version in sorted(plan.tags.items()))
    there = f"{_files(plan.present_files)}, {size_text(plan.present_bytes)}"
    return {
        "from": plan.source,
        "to": f"{plan.target}{', an unfinished copy' if plan.resumes else ''}",
        "versions": spans(plan.versions),
        "tags": tags or "–",
        "to copy": f"{_files(plan.files)}, {size_text(plan.size_bytes)}",
        "there": f"{there}, to be checked" if plan.present_files else "–",
    }


def _versions(numbers: Sequence[int]) -> str:
    return f"version{'s' if len(numbers) > 1 else ''} {spans(numbers)}"


def _files(count: int) -> str:
    return "1 file" if count == 1 else f"{count:,} files"


def _partitions(store: StoreInfo) -> str:
    """How many partitions a store has, or which one if a provider keeps just that one."""
    if len(store.partitions) == 1 and store.partitions[0].partition:
        return f"#{store.partitions[0].partition}"
    return str(len(store.partitions))


def _cells(schema: Schema, row: Row | None) -> list[str]:
    if row is None:
        return [""] * len(schema)
    return [cell_text(field.type, cell) for field, cell in zip(schema, row, strict=True)]


def _place(check: FileCheck) -> str:
    return check.path if check.offset is None else f"{check.path} at {check.offset:,}"


def clean(text: str) -> str:
    """`text` without control characters: data must not move the cursor or ring a bell."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text
    )


def time_text(at_ms: int) -> str:
    """A time in UTC, to the second."""
    return moment_text(at_ms).replace("T", " ")[: -len(".000Z")] + "Z"


def size_text(size_bytes: int) -> str:
    """A number of bytes in a suitable unit."""
    size, unit = float(size_bytes), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            break
        size /= 1024
    return f"{size_bytes} B" if unit == "B" else f"{size:.1f} {unit}"


def spans(numbers: Sequence[int]) -> str:
    """Ascending numbers as ranges, such as 1–3, 7."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ", ".join(str(low) if low == high else f"{low}–{high}" for low, high in found)
