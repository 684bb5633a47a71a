"""Faults that were mended, put back into the product's code one at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

from simulation.scenario import Theme

from holdfast.backends import local
from holdfast.backends.local import LocalStorage
from holdfast.engine.versions import delivered
from holdfast.engine.versions.claims import Claims
from holdfast.spark.interop import local_names
from holdfast.spark.running import ticks
from holdfast.spark.running.run import Outcome, Turns
from holdfast.spark.sinks import plans
from holdfast.spark.sinks.plans import FilePlan, Plans
from holdfast.spark.sinks.sink import OutputBatch
from holdfast.spark.versions import delivery
from holdfast.spark.versions.delivery import DeliveryLog
from holdfast.spark.versions.loop import VersionLoop
from holdfast.streams.version import Schedule

Patch = tuple[object, str, Any]


def _is_idle_by_flags(status: Mapping[str, Any]) -> bool:
    """A query that is starting, or has failed, shows the same two flags as an idle one."""
    return not (status["isDataAvailable"] or status["isTriggerActive"])


def _plan_of_number(self: Plans, batch: OutputBatch) -> FilePlan | None:
    return self._read(f"{batch.version}.plan")


def _create_in_place(self: LocalStorage, path: str, data: bytes) -> bool:
    """An exclusive `open` shows a part of the file, and leaves it where the process dies."""
    target = self._absolute(path)
    local._make_directory(target.rpartition("/")[0])
    try:
        local._write_durably(target, data)
    except FileExistsError:
        return False
    local.sync_directory(target.rpartition("/")[0])
    return True


_ALWAYS = property(lambda self: True, lambda self, value: None)
_ENDED_ONLY = property(lambda self: self.has_ended or self.is_stopping)

MUTATIONS: dict[tuple[str, Theme], list[Patch]] = {
    ("a tick overtakes the replay", Theme.SINKS): [
        (ticks, "is_idle", _is_idle_by_flags),
        (Schedule, "has_run", _ALWAYS),
        (DeliveryLog, "is_lacking", lambda self, manifest, before: False),
    ],
    ("a tick by the clock overtakes the replay", Theme.SINKS): [
        (ticks, "is_idle", _is_idle_by_flags),
        (DeliveryLog, "is_lacking", lambda self, manifest, before: False),
    ],
    ("the watermark moves before the first batch of a run", Theme.SINKS): [
        (Schedule, "has_run", _ALWAYS)
    ],
    ("plans and notes are known by version alone", Theme.REPAIR): [
        (plans, "_name", lambda version, commit_id: f"{version}.plan"),
        (Plans, "find", _plan_of_number),
        (delivery, "delivered_path", lambda version, commit_id: f"delivered/{version}"),
        (delivered, "delivered_notes", lambda manifest: [f"delivered/{manifest.version}"]),
    ],
    ("a failed query commits a tick", Theme.SINKS): [
        (ticks, "is_idle", _is_idle_by_flags),
        (Outcome, "is_over", _ENDED_ONLY),
    ],
    ("a function that stops its query waits for itself", Theme.SINKS): [
        (Turns, "making", lambda self: nullcontext()),
    ],
    ("what a sink has is not synced", Theme.DISK): [(local_names, "_sync", lambda path: None)],
    ("a plan is synced before the files that it names", Theme.DISK): [
        (local_names, "sync_files", lambda folder, names: None),
    ],
    ("the names of what was written are not synced", Theme.DISK): [
        (local, "sync_directory", lambda directory: None),
    ],
    ("a manifest has its name before it is written", Theme.DISK): [
        (LocalStorage, "create_if_absent", _create_in_place),
    ],
    ("who continues is raced for", Theme.DUEL): [
        (Claims, "take", lambda self: None),
        (VersionLoop, "catch_up", lambda self: None),
    ],
}


@contextmanager
def mutated(fault: tuple[str, Theme]) -> Iterator[None]:
    """Have a fault back while the context lasts."""
    with ExitStack() as stack:
        for target, attribute, twin in MUTATIONS[fault]:
            create = not hasattr(target, attribute)  # an attribute of instances
            stack.enter_context(mock.patch.object(target, attribute, twin, create=create))
        yield
