"""What people are shown of roots, stores, versions and files, cell by cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from holdfast.admin import CopyPlan
from holdfast.cli.grid import Column, Grid, number
from holdfast.cli.texts import one_line, size_text, spans, time_text
from holdfast.reading import FileCheck, PartitionInfo, RootInfo, SegmentFile, StoreInfo, VersionInfo
from holdfast.reading.cells import field_text
from holdfast.reading.meanings import bound_text
from holdfast.store import Row
from holdfast.types import MILLISECONDS, Field, IntervalType, TimeType, moment_text

_WHOLE = {"boolean", "date", "timestamp", "timestamp_ntz"}
"""Types besides numbers whose cells are short, and would mislead where they were cut."""


def add_segment(table: Grid, segment: SegmentFile, indent: str) -> None:
    """Add the row of a segment; one to fall back on has an indent."""
    place = segment.path if segment.offset is None else f"{segment.path} at {segment.offset:,}"
    versions = str(segment.high) if segment.low == segment.high else f"{segment.low}–{segment.high}"
    table.add(
        f"{indent}{segment.kind}",
        versions,
        f"{segment.rows:,}",
        f"{segment.tombstones:,}",
        size_text(segment.size_bytes),
        place if segment.present else f"{place} (missing or cut)",
        style="red" if not segment.present else "dim" if indent else None,
    )


def shown_column(field: Field, suffix: str = "") -> Column:
    """The column of a table for a column of a store; text and nested values may be cut."""
    name, kind = one_line(field.name) + suffix, field.type.arrow
    if field.meaning == MILLISECONDS:
        return Column(name)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return number(name)
    is_short = isinstance(field.type, (TimeType, IntervalType)) or str(field.type) in _WHOLE
    return Column(name, "whole" if is_short else "cut")


def bounds_of(store: StoreInfo, part: PartitionInfo) -> tuple[str, str]:
    """Up to where a partition's keys are evicted, and up to when its entries have expired."""
    evicted = "–" if part.evict is None else bound_text(store, part.evict)
    return evicted, "–" if part.expire is None else moment_text(part.expire)


def history_cells(line: VersionInfo) -> list[str]:
    """The cells of a version in a history; a damaged one has no figures."""
    figures = ["damaged", "", "", "", ""]
    if line.problem is None:
        figures = [
            time_text(line.committed_at_ms or 0),
            f"{line.num_keys:,}",
            f"{line.changed_rows:,}",
            size_text(line.written_bytes or 0),
            size_text(line.size_bytes or 0),
        ]
    return [str(line.version), *figures, ", ".join(line.tags)]


def removal_of(line: VersionInfo, waits: bool) -> list[str]:
    """When a version may be removed, where the table has a column for that."""
    at_ms = line.removable_from_ms
    return [] if not waits else ["" if at_ms is None else time_text(at_ms)]


def texts_of(fields: Iterable[Field], row: Row | None) -> list[str]:
    """The cells of a row as a table shows them; none of them where there is no row."""
    if row is None:
        return ["" for _ in fields]
    return [field_text(field, cell) for field, cell in zip(fields, row, strict=True)]


def root_facts(root: RootInfo) -> dict[str, str]:
    """What there is to know about a root, by what it is called."""
    tags = ", ".join(f"{name} = {version}" for name, version in sorted(root.tags.items()))
    return {
        "root": f"{root.location} ({root.kind})",
        "versions": f"{root.versions:,}, from {root.oldest} to {root.newest}",
        "committed": time_text(root.committed_at_ms),
        "tags": tags or "–",
    }


def copy_facts(plan: CopyPlan) -> dict[str, str]:
    """What a copy would bring, from where and to where."""
    tags = ", ".join(f"{name} = {version}" for name, version in sorted(plan.tags.items()))
    there = f"{files_text(plan.present_files)}, {size_text(plan.present_bytes)}"
    return {
        "from": plan.source,
        "to": f"{plan.target}{', an unfinished copy' if plan.resumes else ''}",
        "versions": spans(plan.versions),
        "tags": tags or "–",
        "to copy": f"{files_text(plan.files)}, {size_text(plan.size_bytes)}",
        "there": f"{there}, to be checked" if plan.present_files else "–",
    }


def versions_text(numbers: Sequence[int]) -> str:
    """Some versions, as spans of their numbers."""
    return f"version{'s' if len(numbers) > 1 else ''} {spans(numbers)}"


def files_text(count: int) -> str:
    """A number of files."""
    return "1 file" if count == 1 else f"{count:,} files"


def partitions_text(store: StoreInfo) -> str:
    """How many partitions a store has, or which one if a provider keeps just that one."""
    if len(store.partitions) == 1 and store.partitions[0].partition:
        return f"#{store.partitions[0].partition}"
    return str(len(store.partitions))


def place_of(check: FileCheck) -> str:
    """The file that was checked, or the place in a pack."""
    return check.path if check.offset is None else f"{check.path} at {check.offset:,}"
