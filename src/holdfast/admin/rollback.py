"""Going back to an earlier version: the state, its watermarks and timers, and Spark's offsets.

    plan = holdfast.admin.rollback("checkpoint", to=37, reason="the deploy of Tuesday")
    plan.run()

The earlier version becomes the newest one again, as a version of its own: no data is written, and
the versions that are undone stay readable until retention removes them. Committing it is what
decides. Spark's logs are taken back after that, by this command, or by the next start of the query
where a crash came in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

from holdfast import reading
from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.plan import OperationResult
from holdfast.admin.rewind import UNDONE, Rewind, earlier_offsets, finish, plan_rewind
from holdfast.admin.rollback_plan import RollbackPlan
from holdfast.admin.site import Location, Site, open_site
from holdfast.admin.sources import SourceInput, input_again
from holdfast.engine.files.copies import is_there
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.journal import OperationEntry
from holdfast.engine.versions.numbering import Numbering, lost_numbers
from holdfast.errors import Corruption, InvalidArgument
from holdfast.reading import Progress

INTACT = "intact"
"""The newest version of which everything can be read, after damage."""


def rollback(
    location: Location,
    to: int | str | datetime,
    *,
    checkpoint: Location | None = None,
    lose_input: bool = False,
    unchecked_input: bool = False,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    runtime: Runtime | None = None,
) -> RollbackPlan:
    """Plan to go back to an earlier version, with Spark's offsets. Nothing is changed before `run`.

    `location` is a query's checkpoint, its stateLocation, or a store's folder. `to` is a version, a
    tag, a time (the newest version that was committed by then; text in ISO 8601, UTC unless it says
    otherwise), or "intact": the newest version of which every byte can be read. `checkpoint` names
    Spark's checkpoint where the state is elsewhere. `lose_input` allows that input which the undone
    batches had read is gone, and `unchecked_input` that nobody has looked whether it is there.

    A driver that runs stops with Conflict. Sinks keep the rows of undone versions, and get those
    that are made again under new batch ids.

    Raises VersionNotFound without such a version, InvalidArgument for the newest one and for a
    query whose checkpoint is not named, Corruption where files of the version are missing, and
    IllegalState for a checkpoint of another query.
    """
    site = open_site(location, checkpoint, options, runtime)
    return plan_rollback(
        site,
        to,
        lose_input=lose_input,
        unchecked_input=unchecked_input,
        reason=reason,
        progress=progress,
    )


def plan_rollback(
    site: Site,
    to: int | str | datetime,
    *,
    lose_input: bool = False,
    unchecked_input: bool = False,
    reason: str | None = None,
    progress: Progress | None = None,
) -> RollbackPlan:
    """The same for a root that is open."""
    newest = site.newest()
    target = site.versions.load(_chosen(site, to, progress))
    return _Rollback(site, newest, target).plan(lose_input, unchecked_input, reason)


def _chosen(site: Site, to: int | str | datetime, progress: Progress | None) -> int:
    if to == INTACT:
        readable = reading.verify(site.root, progress).readable
        if not readable:
            raise Corruption(
                f"No version of {site.location} can be read whole. Copy the state back from a "
                "backup, or start the query with a new checkpoint."
            )
        return max(readable)
    if isinstance(to, datetime):
        return site.root.at_time(to)
    if isinstance(to, str) and not to.isdecimal() and to not in site.root.tags:
        with suppress(ValueError):
            return site.root.at_time(datetime.fromisoformat(to))
    return site.root.resolve(to)


class _Rollback:
    """One rollback, from its plan to its end."""

    def __init__(self, site: Site, newest: Manifest, target: Manifest) -> None:
        self.site, self._newest, self._target = site, newest, target
        self._highest = site.versions.versions()[-1]
        self._check()

    def _check(self) -> None:
        site, newest, target = self.site, self._newest, self._target
        if target.version == self._highest:
            raise InvalidArgument(
                f"Version {target.version} is the newest one of {site.location}. Nothing was "
                "changed. `holdfast history` lists the versions before it."
            )
        if newest.batch is not None and site.checkpoint is None:
            raise InvalidArgument(
                f"{site.location} is the state of a query, and Spark's offsets have to go back "
                "with it. Nothing was changed. Name the query's checkpoint, by --checkpoint where "
                "its state is elsewhere."
            )
        self._check_checkpoint()
        missing = _missing_files(site, target)
        if missing:
            raise Corruption(
                f"Version {target.version} of {site.location} lacks {len(missing)} of its files, "
                f"such as {missing[0]}. Nothing was changed. `holdfast rollback {site.location} "
                "--to intact` goes back to the newest version that is whole."
            )

    def _check_checkpoint(self) -> None:
        """Refuse a checkpoint that cannot be changed from here, as long as it has to be."""
        checkpoint = self.site.checkpoint
        if checkpoint is None or not isinstance(checkpoint.files, StoredFiles):
            return
        todo = self._rewind()
        if checkpoint.files.storage.read_only and todo != Rewind():
            moves = ", ".join(reversed(todo.moves)) or "none"
            writes = ", ".join(path for path, _ in todo.writes) or "none"
            raise InvalidArgument(
                f"Spark's checkpoint {checkpoint.location} can only be read from here. Nothing was "
                f"changed. Move these entries to {UNDONE}/ by hand, then run the command again: "
                f"{moves}; entries that are missing: {writes}."
            )

    def plan(self, lose_input: bool, unchecked_input: bool, reason: str | None) -> RollbackPlan:
        """The plan of it."""
        site, newest, target = self.site, self._newest, self._target
        inputs: list[SourceInput] = []
        if site.checkpoint is not None:
            names = newest.scope.get("sources", ())
            inputs = input_again(site.checkpoint, target.batch, names, site.options)
        return RollbackPlan(
            root=site.location,
            to=target.version,
            version=self._highest + 1,
            newest=newest.version,
            age_ms=site.age_ms(newest),
            committed_at_ms=target.committed_at_ms,
            operators=len(target.operators),
            partitions=sum(1 for _ in target.partitions()),
            keys_before=_keys(newest),
            keys_after=_keys(target),
            watermark_before_ms=_watermark_of(newest),
            watermark_after_ms=_watermark_of(target),
            batches=tuple(self._rewind().batches),
            inputs=tuple(inputs),
            delivered=max(0, Numbering.of(newest).last - Numbering.of(target).last),
            damaged=tuple(range(newest.version + 1, self._highest + 1)),
            lose_input=lose_input,
            unchecked_input=unchecked_input,
            reason=reason,
            is_stream=site.checkpoint is not None,
            carry_out=self.run,
        )

    def _rewind(self) -> Rewind:
        if self.site.checkpoint is None:
            return Rewind()
        earlier = partial(earlier_offsets, self.site.versions, self._target)
        return plan_rewind(self.site.checkpoint, self._target.batch, earlier)

    def run(self, plan: RollbackPlan) -> OperationResult:
        """Commit it, then take Spark's logs back."""
        site, target = self.site, self._target
        detail: dict[str, Any] = {"from": self._newest.version, "to": target.version}
        if plan.damaged:
            detail["damaged"] = list(plan.damaged)
        entry = site.entry("rollback", plan.version, plan.reason, detail, goes_back=True)
        made = site.carry_out(entry, self._newest, partial(self._publish, entry))
        batches: list[int] = []
        if site.checkpoint is not None:
            batches = list(finish(site.versions, made, site.checkpoint))
        return OperationResult(
            "rollback",
            site.location,
            made.version,
            f"version {target.version} is the newest again, as version {made.version}",
            {**detail, "batches": batches},
        )

    def _publish(self, entry: OperationEntry) -> Manifest:
        """Create the version. The one it goes back to must stay until then."""
        site, mark = self.site, f"rollback-{entry.id}"
        site.versions.tag(mark, self._target.version)
        try:
            return site.versions.publish(
                self._manifest(entry), site.conf_of(self._newest).grace_period_ms, None
            )
        finally:
            site.versions.untag(mark)

    def _manifest(self, entry: OperationEntry) -> Manifest:
        site, newest, target = self.site, self._newest, self._target
        lost = max(lost_numbers(site.storage, newest), self._highest - newest.version)
        numbers = Numbering.of(newest).skipping(lost)
        is_stream = newest.numbering is not None or newest.batch is not None
        tags = {name: at for name, at in site.versions.intact_tags().items()
                if not name.endswith(entry.id)}  # fmt: skip
        return replace(
            target,
            version=entry.version,
            parent=self._highest,
            parent_commit_id=newest.commit_id if newest.version == self._highest else None,
            commit_id=site.runtime.new_id(),
            writer_id=entry.id,
            epoch=newest.epoch + 1,
            committed_at_ms=site.runtime.clock_ms(),
            outbox=(),
            delivered_through=entry.version,
            tags=tags,
            numbering=numbers.json() if is_stream else None,
            retention=newest.retention,
            lineage=newest.lineage + 1,
            operation=entry.json(),
        )


def _missing_files(site: Site, manifest: Manifest) -> list[str]:
    """The files that a version cannot be read without, and that nothing replaces."""
    there = {blob.path for blob in site.storage.list("")}
    missing = []
    for operator, store, part in manifest.partitions():
        directory = manifest.directory(operator, store, part.index)
        for ref in part.segments:
            if is_there(ref.path(directory), there):
                continue
            parts = [each.path(directory) for each in ref.inputs]
            if not parts or not all(is_there(path, there) for path in parts):
                missing.append(ref.path(directory))
    return sorted(missing)


def _keys(manifest: Manifest) -> int:
    return sum(part.num_keys for _, _, part in manifest.partitions())


def _watermark_of(manifest: Manifest) -> int | None:
    found = (manifest.watermark or {}).get("evict_ms")
    return found or None
