"""What happened in a world, and what must hold of it: kept beside the product, by simple means."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.conf import StateStoreConf
from holdfast.engine.files.filenames import claim_number, manifest_path, manifest_version
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.files.manifest_codec import decode
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import HoldfastError
from holdfast.ids import StateStoreId
from holdfast.spark.sinks.sink import OutputBatch
from holdfast.streams.watermark import Watermarks
from holdfast.types import parse_schema
from simulation.operators import DELAY_MS, Row, State, Total, advance
from simulation.spark import Run, end_of

if TYPE_CHECKING:
    from simulation.world import Application, World


class Broken(AssertionError):
    """A promise does not hold."""


@dataclass
class Version:
    """A version that was committed, and what it has to hold by the model."""

    manifest: Manifest
    parent: Version | None
    state: Mapping[int, Total] = field(default_factory=dict)
    out: Counter[Row] = field(default_factory=Counter)
    end: int = 0
    """How far it has read the source."""

    @property
    def number(self) -> int:
        return self.manifest.version

    @property
    def delivers(self) -> bool:
        return self.number > 0 and self.manifest.operation is None

    @property
    def batch_id(self) -> int:
        assert self.manifest.numbering is not None
        return int(self.manifest.numbering["last"])


class Journal:
    """Hears of every commit and every delivery, and holds each to what must be true then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rings = False
        self.head: Version | None = None
        """The newest version."""
        self._strays: set[str] = set()
        """Versions that a driver which slept has left among removed ones; nobody builds on them."""
        self._delivered: set[str] = set()
        """The commit ids of versions that the sink has taken."""
        self._rows_of: dict[int, Counter[Row]] = {}
        """By batch id what function sinks got."""
        self._newest_id: dict[str, int] = {}
        """By application the newest batch id that its sink got."""
        self.claimant: Application | None = None
        """Who has claimed the root last."""
        self._runs: dict[str, Run] = {}
        """By writer of versions the run it belongs to."""
        self._lost: dict[str, Version] = {}
        """Versions that were given up, by commit id."""
        self._confirmed: set[str] = set()
        """The commit ids of versions whose driver was told that they stay."""
        self._unplugged: set[str] = set()
        """Those of versions that went with the power before anybody was told of them."""
        self._excused: set[str] = set()
        """Those of versions that were undone before their sink had them."""
        self.counts: Counter[str] = Counter()

    def hold(self, is_so: object, promise: str) -> None:
        """End the world if a promise does not hold."""
        if not is_so:
            self._world.scheduler.fail(promise)

    # -- commits -------------------------------------------------------------------------------

    def created(self, by: Application, path: str, data: bytes) -> None:
        """A blob was created by create-if-absent."""
        if claim_number(path) is not None:
            self.claimant = by
        if manifest_version(path) is None:
            return
        manifest = decode(data, path)
        head = self.head
        if head is None:
            self.hold(manifest.version == 0, f"version {manifest.version} came first")
            self.head = Version(manifest, None)
            return
        if manifest.parent_commit_id != head.manifest.commit_id:
            what = f"version {manifest.version} was built on another than the newest, {head.number}"
            self.hold(manifest.version < head.number, what)
            self._strays.add(manifest.commit_id)
            return
        self.hold(manifest.version == head.number + 1, f"{manifest.version} after {head.number}")
        if manifest.operation is not None:
            self.head = self._gone_back(manifest, head)
            return
        is_known = not head.delivers or head.manifest.commit_id in self._delivered
        self.hold(is_known, f"version {manifest.version} was committed over an undelivered one")
        run = self._runs.setdefault(manifest.writer_id, by.run)
        self.hold(not run.has_failed, f"version {manifest.version} is of a query that had failed")
        self.hold(not run.is_over, f"version {manifest.version} is of a query that had ended")
        self.head = self._next(run, manifest, head)

    def _gone_back(self, manifest: Manifest, head: Version) -> Version:
        """The version of a rollback by the model: what it goes back to, once more."""
        self.counts["rollbacks"] += 1
        assert manifest.operation is not None
        target: Version | None = head
        while target is not None and target.number != manifest.operation["detail"]["to"]:
            target = target.parent
        assert target is not None
        self._excused.add(head.manifest.commit_id)
        self.hold(manifest.batch == target.manifest.batch, "a rollback has another batch")
        self.hold(manifest.watermark == target.manifest.watermark, "it has other watermarks")
        self.hold(manifest.numbering == head.manifest.numbering, "it has other batch ids")
        return Version(manifest, head, state=target.state, end=target.end)

    def confirmed(self, path: str, data: bytes) -> None:
        """A storage has said that a blob was created."""
        if manifest_version(path) is not None:
            self._confirmed.add(decode(data, path).commit_id)

    def power_lost(self) -> None:
        """What was not synced is gone."""
        self.counts["power failures"] += 1
        while (head := self.head) is not None:
            if self._world.blobs.size(manifest_path(head.number)) is not None:
                return
            commit_id = head.manifest.commit_id
            self.hold(commit_id not in self._confirmed, f"the commit of {head.number} is gone")
            self.counts["versions lost with the power"] += 1
            self._unplugged.add(commit_id)
            self._lost[commit_id] = head
            self.head = head.parent

    def _next(self, run: Run, manifest: Manifest, head: Version) -> Version:
        """The version by the model: its rows, watermarks, state and output."""
        version = Version(manifest, head, end=head.end)
        before, stored = Watermarks.of(head.manifest.watermark), Watermarks.of(manifest.watermark)
        is_batch = manifest.batch != head.manifest.batch
        self.counts["batches" if is_batch else "ticks"] += 1
        rows: list[Row] = []
        marks = before.following(stored.clock_ms)
        if is_batch:
            assert manifest.batch is not None
            version.end = end_of(manifest.batch["offsets"])
            rows = [row for chunk in self._world.source[head.end : version.end] for row in chunk]
            settings = json.loads(manifest.batch["offsets"].splitlines()[1])
            marks = before.following(settings["batchTimestampMs"])
            if not run.has_had_batch:
                marks = marks.restarted()
            largest = max((moment for _, _, moment in rows), default=None)
            marks = marks.observed([largest], [DELAY_MS])
        elif not run.has_had_batch:
            marks = before.waiting(stored.clock_ms)
        self.hold(version.end > head.end or not is_batch, "a batch went back in its source")
        self.hold(marks == stored, f"watermarks of {manifest.version}: {stored}, not {marks}")
        state, out = advance(head.state, rows, marks, rings=self.rings)
        version.state, version.out = state, Counter(out)
        last = head.batch_id
        self.hold(version.batch_id > last, f"batch id {version.batch_id} after {last}")
        used = self._rows_of.get(version.batch_id, version.out)
        self.hold(used == version.out, f"batch id {version.batch_id} comes with other rows")
        return version

    def given_up(self) -> None:
        """Somebody has taken the newest version away."""
        assert self.head is not None
        self.counts["given up"] += 1
        self._lost[self.head.manifest.commit_id] = self.head
        self.head = self.head.parent

    def put_back(self, head: Version | None) -> None:
        """Somebody has put everything back to a version."""
        self.counts["put back"] += 1
        version = self.head
        while version is not None and version is not head:
            self._lost[version.manifest.commit_id] = version
            version = version.parent
        self.head = head

    # -- deliveries ----------------------------------------------------------------------------

    def got(self, by: Application, batch: OutputBatch, rows: list[Row]) -> None:
        """A function of the user's was called with these rows."""
        known = self._rows_of.setdefault(batch.batch_id, Counter(rows))
        self.hold(known == Counter(rows), f"batch id {batch.batch_id} came with other rows")
        expected = self._find(batch.commit_id)
        if expected is not None:
            is_right = Counter(rows) == expected.out
            self.hold(is_right, f"version {batch.version} came as {rows}, not {expected.out}")
        newest = self._newest_id.get(by.name, -1)
        self.hold(batch.batch_id >= newest, f"batch id {batch.batch_id} came after {newest}")
        self._newest_id[by.name] = batch.batch_id

    def delivered(self, batch: OutputBatch) -> None:
        """A sink has taken a version, and said so."""
        self.counts["deliveries"] += 1
        self._delivered.add(batch.commit_id)

    def _find(self, commit_id: str) -> Version | None:
        found = (each for each in self._history() if each.manifest.commit_id == commit_id)
        return next(found, None)

    def is_in_files(self, commit_id: str) -> bool:
        """Whether a file sink has the rows of a version, by itself or by a twin that was lost."""
        version = self._find(commit_id)
        assert version is not None
        same = [version, *self._twins(version)]
        return any(each.manifest.commit_id in self._delivered for each in same)

    # -- looking at what is there --------------------------------------------------------------

    def check_state(self) -> None:
        """The two newest versions open, and hold what they have to."""
        head, log = self.head, VersionLog(self._world.blobs, self._world.runtime)
        if head is None:
            return
        self.hold(log.newest() == head.number, f"{log.newest()} is newest, not {head.number}")
        # Retention may have left one version beside the one that was given up.
        given_up = [lost for key, lost in self._lost.items() if key not in self._unplugged]
        is_only_one = any(lost.parent is head for lost in given_up)
        for version in (head, None if is_only_one else head.parent):
            if version is None:
                continue
            try:
                stored = log.load(version.number)
                found = self._read(log, version.number)
            except HoldfastError as error:
                self.hold(False, f"version {version.number} does not open: {error!r}")
                return
            is_same = stored.commit_id == version.manifest.commit_id
            self.hold(is_same, f"version {version.number} is another one")
            self.hold(
                found == version.state,
                f"version {version.number} holds {found}, not {version.state}",
            )

    def _read(self, log: VersionLog, version: int) -> State:
        found: dict[int, Total] = {}
        for partition in range(2):
            provider = HDFSBackedStateStoreProvider(prepares_only=True, versions=log)
            store_id = StateStoreId(self._world.blobs.location, 0, partition)
            values = parse_schema("total long, last_ms long, due_ms long")
            provider.init(store_id, parse_schema("k long"), values, None, 0, StateStoreConf.empty)
            store = provider.get_read_store(version)
            found |= {pair.key[0]: Total(*pair.value) for pair in store.iterator()}
        return found

    def check_files(self, texts: Mapping[str, str], folder: str, *, is_end: bool) -> None:
        """A file sink has each row of each version once, and at the end those of all."""
        found: dict[str, Counter[Row]] = {}
        for path, text in texts.items():
            if path.startswith(f"{folder}/part-"):
                commit = path.partition(".")[0].split("-")[-2]
                rows = [tuple(json.loads(line)) for line in text.splitlines()]
                found.setdefault(commit, Counter()).update(rows)
        versions = [each for each in self._history() if each.delivers]
        for version in versions:
            commit_id = version.manifest.commit_id
            rows = found.get(commit_id[:12], Counter())
            for twin in self._twins(version):
                rows = rows + found.get(twin.manifest.commit_id[:12], Counter())
            is_whole = rows == version.out
            has_to_be = is_end and commit_id not in self._excused
            if has_to_be or commit_id in self._delivered:
                self.hold(
                    is_whole,
                    f"version {version.number} is in the files as {rows}, not {version.out}",
                )

    def _history(self) -> Iterator[Version]:
        """Every version up to the first, newest first."""
        version = self.head
        while version is not None:
            yield version
            version = version.parent

    def _twins(self, version: Version) -> list[Version]:
        """Versions that were given up, and that the same batch has made again."""
        manifest = version.manifest
        if version.parent is None or manifest.batch == version.parent.manifest.batch:
            return []
        return [
            lost
            for lost in self._lost.values()
            if lost is not version
            and lost.parent is version.parent
            and lost.manifest.batch == manifest.batch
        ]

    def check_end(self) -> None:
        """Every row is in the newest version, and every version in the sink."""
        head = self.head
        assert head is not None
        total = len(self._world.source)
        self.hold(head.end == total, f"{head.end} of {total} chunks were read")
        for version in self._history():
            commit_id = version.manifest.commit_id
            is_there = commit_id in self._delivered or commit_id in self._excused
            self.hold(
                is_there or not version.delivers, f"version {version.number} was never delivered"
            )
