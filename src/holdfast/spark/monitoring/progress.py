"""A version's progress, with the fields of Spark's StreamingQueryProgress."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.spark.versions.maintenance import MaintenanceReport
from holdfast.streams.tasks.task import TaskResult
from holdfast.streams.watermark import Watermarks
from holdfast.types import moment_text


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

    @property
    def is_tick(self) -> bool:
        """Whether it is a version without a batch."""
        return self.batch is None


def progress(
    report: VersionReport, query: dict[str, Any], titles: Sequence[str], sink: str
) -> dict[str, Any]:
    """The progress of one version; `query` has id, runId and name, `titles` name the operators.

    Its sources are empty, because Spark reports them only after the batch.
    """
    rows = report.input_rows
    if rows is None:
        first = report.results[0]
        rows = sum(result.rows + result.late_rows for result in first) + report.late_rows
    seconds = sum(report.seconds.values())
    started_ms = time.time_ns() // 1_000_000 - int(seconds * 1000)
    return {
        **query,
        "timestamp": moment_text(started_ms),
        "batchId": report.batch_id,
        "batchDuration": int(seconds * 1000),
        "version": report.version,
        "isTick": report.is_tick,
        "numInputRows": rows,
        "inputRowsPerSecond": rows / seconds if seconds else 0.0,
        "processedRowsPerSecond": rows / seconds if seconds else 0.0,
        "durationMs": {
            "triggerExecution": int(seconds * 1000),
            **{name: int(spent * 1000) for name, spent in report.seconds.items()},
        },
        "eventTime": {"watermark": moment_text(report.marks.evict_ms)},
        "stateOperators": [
            _operator(title, report.results[number], report.late_rows, report.merged.get(number))
            for number, title in enumerate(titles)
        ],
        "sources": [],
        "sink": {"description": sink, "numOutputRows": -1},
        "observedMetrics": {},
    }


def _operator(
    title: str, results: Sequence[TaskResult], observed_late: int, merged: MaintenanceReport | None
) -> dict[str, Any]:
    late = sum(r.late_rows for r in results)
    if title.startswith("sessionWindow"):
        late += observed_late
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
