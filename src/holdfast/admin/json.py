"""Plans and results of operations on a root, in the shapes that JSON can hold. Keys are stable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from holdfast.admin.copy import CopyPlan, CopyResult
from holdfast.admin.doctor import Check, is_healthy
from holdfast.engine.versions.journal import JournalLine
from holdfast.reading.json import JsonBody


def copy_plan_json(plan: CopyPlan) -> JsonBody:
    """What a copy would do."""
    return asdict(plan)


def copy_result_json(copied: CopyResult) -> JsonBody:
    """What a copy did."""
    return asdict(copied)


def checks_json(checks: Sequence[Check]) -> JsonBody:
    """The results of the doctor, and whether no check failed."""
    return {"healthy": is_healthy(checks), "checks": [asdict(check) for check in checks]}


def journal_json(lines: Sequence[JournalLine]) -> JsonBody:
    """The journal of a root, newest entry first."""
    return {"operations": [{**line.entry.json(), "done": line.is_done} for line in lines]}
