"""Output for scripts: one JSON document on stdout, errors on stderr. Its keys are stable."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

import pyarrow as pa

from holdfast.admin import CopyPlan, CopyResult
from holdfast.admin.columns import StoreColumns, columns_json
from holdfast.admin.doctor import Check
from holdfast.admin.json import checks_json, copy_plan_json, copy_result_json, journal_json
from holdfast.admin.plan import OperationPlan, OperationResult
from holdfast.cli.exits import Exit
from holdfast.cli.output import Output, nobody_to_ask, nobody_to_confirm
from holdfast.engine.versions.journal import JournalLine
from holdfast.errors import HoldfastError
from holdfast.reading import (
    Diff,
    InspectedStore,
    KeyVersion,
    PartitionChain,
    Progress,
    RootInfo,
    Verification,
    VersionDetails,
    VersionInfo,
)
from holdfast.reading import json as shapes
from holdfast.store import Row


class JsonOutput(Output):
    """Prints results as JSON. Times are given in milliseconds, and as ISO 8601 in UTC."""

    def roots(self, roots: Sequence[RootInfo]) -> None:
        _print({"roots": [shapes.root_json(root) for root in roots]})

    def version(
        self, root: RootInfo, version: VersionDetails, chains: Sequence[PartitionChain] | None
    ) -> None:
        _print(shapes.version_json(root, version, chains))

    def columns(self, location: str, version: int, stores: Sequence[StoreColumns]) -> None:
        _print(columns_json(location, version, stores))

    def history(self, root: RootInfo, lines: Sequence[VersionInfo]) -> None:
        _print(shapes.history_json(root, lines))

    def value(self, store: InspectedStore, version: int, key: Row, value: Row | None) -> None:
        _print(shapes.value_json(store, version, key, value))

    def key_history(self, store: InspectedStore, key: Row, lines: Sequence[KeyVersion]) -> None:
        _print(shapes.key_history_json(store, key, lines))

    def rows(self, store: InspectedStore, version: int, table: pa.Table, more: bool) -> None:
        _print(shapes.rows_json(store, version, table, more))

    def diff(self, store: InspectedStore, diff: Diff) -> None:
        _print(shapes.diff_json(store, diff))

    def verification(self, results: Sequence[Verification]) -> None:
        _print(shapes.verification_json(results))

    def copy_plan(self, plan: CopyPlan) -> None:
        _print(copy_plan_json(plan))

    def confirm_copy(self, plan: CopyPlan) -> bool:
        raise nobody_to_ask(plan)

    def copied(self, copied: CopyResult) -> None:
        _print(copy_result_json(copied))

    def plan(self, plan: OperationPlan) -> None:
        _print(plan.json())

    def confirm(self, plan: OperationPlan) -> bool:
        raise nobody_to_confirm(plan)

    def done(self, result: OperationResult) -> None:
        _print(result.json())

    def operations(self, lines: Sequence[JournalLine]) -> None:
        _print(journal_json(lines))

    def checks(self, checks: Sequence[Check]) -> None:
        _print(checks_json(checks))

    def warning(self, message: str) -> None:
        return  # stderr is empty or has one error; `verify` reports the same as JSON

    def error(self, error: HoldfastError) -> None:
        body = {
            "condition": error.condition,
            "message": error.message,
            "exit_code": int(Exit.of(error)),
        }
        _print({"error": body}, sys.stderr)

    @contextmanager
    def progress(self, title: str) -> Iterator[Progress]:
        yield lambda done, total, path: None


def _print(body: object, to: TextIO | None = None) -> None:
    stream = to or sys.stdout
    stream.write(json.dumps(body, indent=2, ensure_ascii=False) + "\n")
