"""Forks: a version of a query or store becomes one of its own, which continues beside it.

plan = holdfast.admin.fork("checkpoint", "checkpoint-of-the-fix", at=37)
plan.run().detail["query_id"]

The files of a version never change and have names that nobody else uses, so on one file system a
fork shares them by hard links, and on S3 the server copies them. Either side may remove its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.copy_ends import End, way_out
from holdfast.admin.copy_files import needed_files
from holdfast.admin.copy_transfer import Transfer
from holdfast.admin.fork_ends import (
    ForkFacts,
    ForkTarget,
    check_free,
    check_options,
    open_target,
    options_for,
    unfinished,
)
from holdfast.admin.fork_run import ForkRun, new_facts
from holdfast.admin.plan import Lines, OperationPlan, OperationResult
from holdfast.admin.site import Location, Site, open_site
from holdfast.admin.source_logs import check_source_logs
from holdfast.admin.sources import SourceInput, input_again
from holdfast.admin.turn import Turn
from holdfast.checkpoint import OffsetEntry
from holdfast.engine.files.filenames import manifest_path
from holdfast.engine.files.manifest import Manifest, delivered_notes
from holdfast.engine.storage import Storage
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import InvalidArgument, VersionNotFound
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody
from holdfast.reading.words import amount, size_text, time_text
from holdfast.schemes import LOCAL, S3, scheme_of

_NO_SOURCE = "no data so far"


@dataclass(frozen=True)
class ForkPlan(OperationPlan):
    """A fork to be made."""

    root: str
    version: int
    """The version that it is made of; its own first one has the next number."""
    checkpoint: str | None
    """The new checkpoint; None for the fork of a store."""
    state: str
    """The root of the fork."""
    files: int
    size_bytes: int
    moves_bytes: bool
    """Whether the bytes of the files are read and written. If not, they are shared or copied by
    the server, as far as that can be known before."""
    is_delivered: bool
    """Whether the sink is known to have the version."""
    inputs: tuple[SourceInput, ...]
    """What the sources bring again, to the fork alone."""
    resumes: bool
    """Whether it finishes a fork that another run has begun."""
    reason: str | None = None
    kind: str = "fork"
    fences: bool = False
    job: ForkRun = field(repr=False, compare=False, kw_only=True)
    begun: ForkFacts | None = field(repr=False, compare=False, kw_only=True)

    @property
    def _base(self) -> Manifest:
        return self.job.base

    def lines(self) -> Lines:
        to = self.state if self.checkpoint is None else self.checkpoint
        own = self.job.target.has_own_place
        lines = [
            (
                "version",
                f"{self.version} of {time_text(self._base.committed_at_ms)}; the fork "
                f"begins with version {self.version + 1}",
            ),
            (
                "to",
                f"{to}{', state in ' + self.state if own else ''}"
                f"{', where an unfinished fork is resumed' if self.resumes else ''}",
            ),
            ("state", _state_text(self._base)),
            (
                "files",
                f"{amount(self.files, 'file')}, {size_text(self.size_bytes)}, " + self._way(),
            ),
        ]
        if self.checkpoint is None:
            return lines
        return [*lines, *self._query_lines()]

    def _way(self) -> str:
        if self.moves_bytes:
            return "copied and checked"
        is_local = scheme_of(self.state) is LOCAL
        return "linked: no bytes are written" if is_local else "copied by the server"

    def _query_lines(self) -> Lines:
        batch = self._base.batch
        query = "a new one, whose id is made when this is run; the original is not disturbed"
        sink = f"the fork delivers what comes after version {self.version}"
        if not self.is_delivered:
            sink = (
                f"version {self.version} may not be delivered yet: the original delivers it, the "
                "fork does not"
            )
        before = [("batch", "none so far: the sources are read from their beginning")]
        if batch is not None:
            last, offsets = int(batch["id"]), _offsets_text(str(batch["offsets"]))
            before = [("batch", f"the fork begins with {last + 1}, after {offsets}")]
        again = [(f"source {each.source}", each.line()) for each in self.inputs]
        return [*before, *again, ("sink", sink), ("query", query)]

    def json(self) -> JsonBody:
        names = (
            "kind",
            "root",
            "version",
            "checkpoint",
            "state",
            "files",
            "size_bytes",
            "moves_bytes",
            "is_delivered",
            "resumes",
            "fences",
            "reason",
        )
        batch = self._base.batch
        facts = {"batch_id": None, "offsets": None}
        if batch is not None:
            facts = {"batch_id": batch["id"], "offsets": batch.get("offsets")}
        inputs = [each.json() for each in self.inputs]
        return {name: getattr(self, name) for name in names} | facts | {"inputs": inputs}

    def run(self, progress: Progress | None = None) -> OperationResult:
        """Make the fork. Running the same command again after a crash resumes it.

        Raises Conflict where another run is at it, VersionNotFound where retention was faster, and
        Corruption for a damaged file that has to be copied.
        """
        site, target = self.job.site, self.job.target
        facts = self.begun or new_facts(site, target, self._base, self.reason)
        done = self.job.run(facts, progress or (lambda done, total, path: None))
        detail: JsonBody = {
            "forked": self.version,
            "version": self.version + 1,
            "state": self.state,
            "checkpoint": self.checkpoint,
            "query_id": facts.query_id,
            **_counts(done),
        }
        return OperationResult(self.kind, self.root, None, self._summary(facts), detail)

    def _summary(self, facts: ForkFacts) -> str:
        made = f"version {self.version} is forked"
        if self.checkpoint is None:
            return f"{made}: open it with holdfast.open({self.state!r})"
        own = f" and stateLocation to {self.state}" if self.job.target.has_own_place else ""
        return (
            f"{made} as query {facts.query_id}: in its script, set checkpointLocation to "
            f"{self.checkpoint}{own}"
        )


def fork(
    location: Location,
    new_checkpoint: Location,
    at: int | str | None = None,
    *,
    state_location: Location | None = None,
    checkpoint: Location | None = None,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
) -> ForkPlan:
    """Plan to make a query, or a store, of its own out of a version.

    `location` is a query's checkpoint or its stateLocation, or a store's folder; for a
    stateLocation, `checkpoint` names Spark's checkpoint. `new_checkpoint` is the checkpoint of the
    fork, or the root of a forked store: an empty place, or one with the same fork unfinished, which
    is resumed. `at` is a version or a tag, the newest by default. The state of the fork is in its
    checkpoint, unless `state_location` names another root for it. `options` say how the roots are
    reached. It works beside a stream.

    Raises InvalidArgument for a place that is not empty or inside of the other, VersionNotFound
    without such a version, and IllegalState for a checkpoint of another query.
    """
    check_options(options, [location, new_checkpoint, state_location, checkpoint])
    site = open_site(location, checkpoint, options_for(os.fspath(location), options))
    site = replace(site, options=dict(options or {}))
    return plan_fork(site, open_target(site, new_checkpoint, state_location, options), at, reason)


def plan_fork(
    site: Site, target: ForkTarget, at: int | str | None = None, reason: str | None = None
) -> ForkPlan:
    """Plan a fork of an opened root to an opened place."""
    turn = Turn(target.state, "fork")
    begun = unfinished(target, turn.mark, site)
    if begun is None:
        check_free(target)
        base = site.root.manifest(site.root.resolve(at))
    else:
        base = _begun_base(site, target, begun, at)
    _check_sources(site, base)
    sizes = End.of(site.storage, []).sizes
    files = needed_files({base.version: base}, None, sizes)
    return ForkPlan(
        root=site.location,
        version=base.version,
        checkpoint=None if target.folder is None else target.folder.location,
        state=target.state.location,
        files=len(files),
        size_bytes=sum(sizes.get(file.path, file.least_bytes) for file in files),
        moves_bytes=not _are_near(site.storage, target.state),
        is_delivered=_is_delivered(site, base),
        inputs=_inputs(site, base),
        resumes=begun is not None,
        reason=reason,
        job=ForkRun(site, target, base, turn),
        begun=begun,
    )


def _inputs(site: Site, base: Manifest) -> tuple[SourceInput, ...]:
    if site.checkpoint is None:
        return ()
    names = base.scope.get("sources", ())
    return tuple(input_again(site.checkpoint, base.batch, names, site.options))


def _begun_base(site: Site, target: ForkTarget, begun: ForkFacts, at: int | str | None) -> Manifest:
    """The version that an unfinished fork is made of."""
    is_named = at is None or str(at) == str(begun.version)
    if not is_named and site.root.resolve(at) != begun.version:
        raise InvalidArgument(
            f"{target.location} holds an unfinished fork of version {begun.version}. Finish it by "
            "leaving --at out, or name another place."
        )
    if begun.version in site.root.versions:
        return site.root.manifest(begun.version)
    made = manifest_path(begun.version + 1)
    if target.state.size(made) is None:
        raise VersionNotFound(
            f"Version {begun.version} of {site.location} is gone, of which {target.state.location} "
            f"holds an unfinished fork. {way_out(target.state.location)}"
        )
    log = VersionLog(target.state, site.runtime)
    return replace(log.load(begun.version + 1), version=begun.version)


def _check_sources(site: Site, base: Manifest) -> None:
    """Refuse a version after which no query knows where to continue."""
    if site.checkpoint is None:
        return
    if base.batch is not None and not base.batch.get("offsets"):
        raise InvalidArgument(
            f"Version {base.version} of {site.location} does not say how far its sources were "
            "read, so that no query can continue from it. Choose another version."
        )
    assert isinstance(site.checkpoint.files, StoredFiles)
    offsets = None if base.batch is None else str(base.batch["offsets"])
    check_source_logs(site.checkpoint.files.storage, offsets)


def _is_delivered(site: Site, base: Manifest) -> bool:
    """Whether the sink is known to have a version. Nothing is committed over one that it lacks."""
    if site.checkpoint is None or base.version < site.newest().version:
        return True
    if base.version == 0 or (base.delivered_through or 0) >= base.version:
        return True
    if any(site.storage.size(path) is not None for path in delivered_notes(base)):
        return True
    if base.batch is None or not site.checkpoint.is_committed(int(base.batch["id"])):
        return False
    before = base.version - 1  # without data it has the batch of the one before
    return before in site.root.versions and site.root.manifest(before).batch != base.batch


def _are_near(source: Storage, target: Storage) -> bool:
    """Whether files probably get to the target without their bytes being read."""
    here, there = scheme_of(source.location), scheme_of(target.location)
    if here is LOCAL and there is LOCAL:
        return _device(source.location) == _device(target.location)
    return here is S3 and there is S3


def _device(path: str) -> int | None:
    """The disk that a path is on, or would be on."""
    while path != os.path.dirname(path) and not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev


def _counts(done: Transfer | None) -> JsonBody:
    if done is None:
        return {"adopted_files": 0, "written_files": 0, "kept_files": 0}
    return {
        "adopted_files": done.adopted.files,
        "written_files": done.written.files,
        "kept_files": done.kept.files,
    }


def _state_text(base: Manifest) -> str:
    partitions = [entry for _, _, entry in base.partitions()]
    keys = sum(entry.num_keys for entry in partitions)
    return (
        f"{amount(len(base.operators), 'operator')}, {amount(len(partitions), 'partition')}, "
        f"{amount(keys, 'key')}"
    )


def _offsets_text(text: str) -> str:
    found = OffsetEntry.parse(text).sources.values()
    return "; ".join(offset or _NO_SOURCE for offset in found) or _NO_SOURCE
