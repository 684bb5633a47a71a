"""A version's progress, with the fields of Spark's StreamingQueryProgress."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.spark.interop.model import EventTimeStats
from holdfast.spark.versions.maintenance import MaintenanceReport
from holdfast.streams.tasks.task import TaskResult
from holdfast.streams.watermark import Watermarks
from holdfast.types import moment_text

_SPARKS_DURATIONS = (
    "addBatch", "commitOffsets", "getBatch", "latestOffset", "queryPlanning", "triggerExecution",
    "walCommit",
)  # fmt: skip
_OF_A_VERSION = (
    "numRowsUpdated", "allUpdatesTimeMs", "numRowsRemoved", "allRemovalsTimeMs", "commitTimeMs",
    "numRowsDroppedByWatermark",
)  # fmt: skip
"""What an operator does in a version, and not between versions."""


@dataclass(frozen=True)
class VersionReport:
    """The facts about one version that its progress reports."""

    version: int
    batch: Mapping[str, Any] | None
    marks: Watermarks
    seconds: Mapping[str, float]
    results: Mapping[int, Sequence[TaskResult]]
    late_rows: int
    merged: Mapping[int, MaintenanceReport]
    """The merged segments that it swapped in, by operator."""
    input_rows: int | None = None
    """How many rows the batch had, if not all of them reach the first operator."""
    batch_id: int = 0
    """What Spark's batch id would be."""
    event_time: EventTimeStats | None = None
    """The event times of its rows, if there were any."""

    @property
    def is_tick(self) -> bool:
        """Whether it is a version without a batch."""
        return self.batch is None


@dataclass(frozen=True)
class ReportedQuery:
    """What the progress of every version of a query says alike.

    `titles` name the operators, and `order` is that in which Spark would list them.
    """

    names: Mapping[str, Any]
    titles: Sequence[str]
    order: Sequence[int]
    has_watermark: bool


def progress(
    report: VersionReport, query: ReportedQuery, sink: str, output_rows: int
) -> dict[str, Any]:
    """The progress of one version, which has put out so many rows, or -1.

    `complete` adds what Spark reports only after the batch.
    """
    rows = report.input_rows
    if rows is None:
        first = report.results[0]
        rows = sum(result.rows + result.late_rows for result in first) + report.late_rows
    seconds = sum(report.seconds.values())
    took_ms = int(seconds * 1000)
    started_ms = time.time_ns() // 1_000_000 - took_ms
    return {
        **query.names,
        "timestamp": moment_text(started_ms),
        "batchId": report.batch_id,
        "batchDuration": took_ms,
        "version": report.version,
        "isTick": report.is_tick,
        "numInputRows": rows,
        "inputRowsPerSecond": rows / seconds if seconds else 0.0,
        "processedRowsPerSecond": rows / seconds if seconds else 0.0,
        "durationMs": {
            **dict.fromkeys(_SPARKS_DURATIONS, 0),
            **{name: int(spent * 1000) for name, spent in report.seconds.items()},
            "addBatch": took_ms,
            "triggerExecution": took_ms,
        },
        **({"eventTime": _event_time(report)} if query.has_watermark else {}),
        "stateOperators": [_operator(report, query, number) for number in query.order],
        "sources": [],
        "sink": {"description": sink, "numOutputRows": output_rows},
        "observedMetrics": {},
    }


def complete(progress: dict[str, Any], told: Mapping[str, Any]) -> None:
    """Add to the progress of a version what Spark's own progress tells of its batch."""
    progress["sources"] = told["sources"]
    progress["observedMetrics"] = told.get("observedMetrics", {})
    spent = told["durationMs"]
    progress["durationMs"] |= {name: spent[name] for name in _SPARKS_DURATIONS if name in spent}
    progress["batchDuration"] = progress["durationMs"]["triggerExecution"]


def idle(last: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """The progress of a trigger that found no data, behind that of the last version."""
    nothing = dict.fromkeys(_OF_A_VERSION, 0)
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    return {
        **last,
        **rates,
        **{name: told[name] for name in ("timestamp", "durationMs", "sources")},
        "batchId": last["batchId"] + 1,
        "batchDuration": told["durationMs"]["triggerExecution"],
        "numInputRows": 0,
        "isTick": False,
        **(
            {"eventTime": {"watermark": last["eventTime"]["watermark"]}}
            if "eventTime" in last
            else {}
        ),
        "stateOperators": [{**operator, **nothing} for operator in last["stateOperators"]],
        "sink": {**last["sink"], "numOutputRows": min(0, last["sink"]["numOutputRows"])},
        "observedMetrics": {},
    }


def _event_time(report: VersionReport) -> dict[str, str]:
    found, seen = {"watermark": moment_text(report.marks.evict_ms)}, report.event_time
    if seen is not None:
        found |= {
            "max": moment_text(seen.max_ms),
            "min": moment_text(seen.min_ms),
            "avg": moment_text(seen.avg_ms),
        }
    return found


def _operator(report: VersionReport, query: ReportedQuery, number: int) -> dict[str, Any]:
    title, results = query.titles[number], report.results[number]
    merged = report.merged.get(number)
    late = sum(r.late_rows for r in results)
    if title.startswith("sessionWindow"):
        late += report.late_rows
    custom = {
        "stateOnCurrentVersionSizeBytes": sum(r.state_bytes for r in results),
        "numCommittedRowsRemoved": sum(r.committed_removals for r in results),
    }
    if title.startswith("dedupe"):
        custom["numDroppedDuplicateRows"] = sum(r.dropped_duplicates for r in results)
    custom |= (merged or MaintenanceReport()).figures()
    for result in results:
        for name, figure in result.custom.items():
            custom[name] = custom.get(name, 0) + figure
    return {
        "operatorId": number,
        "operatorName": title,
        "numRowsTotal": sum(part.num_keys for r in results for part in r.prepared),
        "numRowsUpdated": sum(r.updated for r in results),
        "allUpdatesTimeMs": sum(r.update_ms for r in results),
        "numRowsRemoved": sum(r.removed for r in results),
        "allRemovalsTimeMs": sum(r.removal_ms for r in results),
        "commitTimeMs": sum(r.commit_ms for r in results),
        "memoryUsedBytes": sum(r.memory_bytes for r in results),
        "numRowsDroppedByWatermark": late,
        "numShufflePartitions": len(results),
        "numStateStoreInstances": len(results),
        "customMetrics": custom,
    }
