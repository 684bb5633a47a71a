"""What the tests of forks share: ends in memory that fail as one, and what a fork must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from copies import RUNTIME, blobs
from made_up_streams import QUERY, offsets_text

from holdfast import reading
from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.fork import ForkPlan, plan_fork
from holdfast.admin.fork_ends import ForkTarget
from holdfast.admin.site import Site
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.checkpoint import SparkCheckpoint
from holdfast.engine.files.filenames import COPYING
from holdfast.engine.storage import Storage
from holdfast.engine.versions.journal import Journal
from holdfast.engine.versions.log import VersionLog
from holdfast.reading import Root
from holdfast.testing.faults import CRASHES, Call, Fault, FaultyStorage


class SharingStorage(MemoryStorage):
    """Blobs in memory that others of the kind may have as well, as files have several links."""

    def adopt(self, source: Storage, path: str) -> bool:
        if not isinstance(source, SharingStorage):
            return False
        self.store(path, source.read(path))
        return True


@dataclass
class Ends:
    """A stream's checkpoint and state in memory, and the places of its fork."""

    source: MemoryStorage
    checkpoint: MemoryStorage
    state: MemoryStorage
    folder: MemoryStorage

    @classmethod
    def of(cls, stream: Path, kind: Callable[[str], MemoryStorage] = MemoryStorage) -> Ends:
        ends = cls(*(kind(name) for name in ("source", "cp", "fork", "fork-cp")))
        for path, data in blobs(LocalStorage(stream)).items():
            inside = path.removeprefix("holdfast/")
            place = ends.checkpoint if inside == path else ends.source
            place.create_if_absent(inside, data)
        return ends

    def plan(self, at: int | None = None, faults: Faults | None = None) -> ForkPlan:
        """A plan with these faults, in one thread, so that a run is the same every time."""
        wrap = (lambda storage: storage) if faults is None else faults.wrap
        source, folder = wrap(self.source), wrap(self.folder)
        old = wrap(self.checkpoint)
        checkpoint = SparkCheckpoint(StoredFiles(old), old.location)
        site = Site(Root(source), RUNTIME, checkpoint)
        plan = plan_fork(site, ForkTarget(wrap(self.state), folder), at)
        plan.job.threads = 1
        return plan


class Faults:
    """The calls to several storages counted as one: a fault at one call, none after a crash."""

    def __init__(self, number: int = 0, fault: Fault = Fault.CRASH_BEFORE) -> None:
        self._number, self._fault = number, fault
        self.calls: list[Call] = []
        self._storages: list[FaultyStorage] = []

    def wrap(self, storage: Storage) -> Storage:
        self._storages.append(FaultyStorage(storage, self._plan))
        return self._storages[-1]

    def _plan(self, call: Call) -> Fault | None:
        self.calls.append(call)
        is_over = len(self.calls) > self._number > 0 and self._fault in CRASHES
        if is_over:
            return Fault.CRASH_BEFORE
        return self._fault if len(self.calls) == self._number else None


def found_at(ends: Ends) -> str:
    """What anybody finds at the places of a fork: it is one of three."""
    listed = [blob.path for blob in ends.state.list("")]
    if COPYING in listed:
        return "unfinished"
    if not listed:
        assert ends.folder.list("") == []
        return "nothing"
    return "whole"


def check_fork(ends: Ends, version: int) -> None:
    """A whole fork of a version, at whose source nothing is left of the making."""
    batch = version - 1
    root = Root(ends.state)
    assert root.versions == (version + 1,)
    assert reading.verify(root).intact
    made, base = root.manifest(version + 1), VersionLog(ends.source, RUNTIME).load(version)
    assert made.operators == base.operators
    assert (made.parent, made.parent_commit_id) == (version, base.commit_id)
    assert made.delivered_through == version + 1
    assert made.outbox == ()
    query_id = json.loads(bytes(ends.folder.read("metadata")))["id"]
    assert query_id != QUERY
    assert made.batch == (None if base.batch is None else {**base.batch, "query_id": query_id})
    state_id = bytes(ends.folder.read("holdfast-state")).decode().strip()
    assert state_id == made.scope["id"] != base.scope["id"]
    expected = {f"offsets/{n}": offsets_text(n) for n in (batch - 1, batch) if n >= 0}
    if batch >= 0:
        expected[f"commits/{batch}"] = 'v1\n{"nextBatchWatermarkMs":0}'
    theirs = blobs(ends.checkpoint)
    logs = {path: data for path, data in theirs.items() if path.startswith("sources/")}
    expected |= {path: data.decode() for path, data in logs.items() if "/." not in path}
    found = {path: data.decode() for path, data in blobs(ends.folder).items()}
    assert {p: t for p, t in found.items() if p not in ("metadata", "holdfast-state")} == expected
    assert VersionLog(ends.source, RUNTIME).tags() == {}
    [own] = Journal(VersionLog(ends.state, RUNTIME)).lines()
    assert (own.is_done, own.entry.kind, own.entry.version) == (True, "fork", version + 1)
    done = [
        line.entry for line in Journal(VersionLog(ends.source, RUNTIME)).lines() if line.is_done
    ]
    assert [entry.id for entry in done] == [own.entry.id]
