"""Going back to an earlier version: the state, its watermarks and timers, and Spark's offsets.

    plan = holdfast.admin.rollback("checkpoint", to=37, reason="the deploy of Tuesday")
    plan.run()

The earlier version becomes the newest one again, as a version of its own: no data is written, and
the versions that are undone stay readable until retention removes them. Committing it is what
decides. Spark's logs are taken back after that, by this command, or by the next start of the query
where a crash came in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from holdfast import reading
from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.plan import Lines, OperationPlan, OperationResult, driver_line
from holdfast.admin.rewind import UNDONE, Rewind, earlier_offsets, finish, plan_rewind
from holdfast.admin.site import Location, Site, open_site
from holdfast.admin.sources import SourceInput, Standing, input_again
from holdfast.engine.files.copies import is_there
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.journal import OperationEntry
from holdfast.engine.versions.numbering import Numbering, lost_numbers
from holdfast.errors import Corruption, HoldfastError, InvalidArgument, VersionNotFound
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody

INTACT = "intact"
"""The newest version of which everything can be read, after damage."""
_REFUSALS: Mapping[Standing, Callable[[SourceInput], str]] = {
    "lost for good": lambda each: (
        f"Source {each.source} ({each.kind}) gives its rows only once: those of the undone batches "
        "would be lost. Nothing was changed. Start the query with a new checkpoint instead, or "
        "allow it with --lose-input."
    ),
    "gone": lambda each: (
        f"Source {each.source} ({each.kind}) lacks {len(each.gone)} of the files that would come "
        f"again, such as {each.gone[0]}. Nothing was changed. Bring them back, or continue without "
        "them with --lose-input."
    ),
    "not checked": lambda each: (
        f"Source {each.source} ({each.kind}) could not be asked whether it still has what would "
        "come again. Nothing was changed. Check that yourself, then allow it with "
        "--unchecked-input."
    ),
}
"""What is said of input that does not come again for certain."""


@dataclass(frozen=True)
class RollbackPlan(OperationPlan):
    """A rollback: what state, Spark's checkpoint, sources and sink will be like afterwards."""

    root: str
    to: int
    """The version to go back to."""
    version: int
    """The version that it becomes."""
    newest: int
    """The newest version that can be read now."""
    age_ms: int
    """How long ago that was committed."""
    committed_at_ms: int
    """When the version to go back to was committed."""
    operators: int
    partitions: int
    keys_before: int
    keys_after: int
    watermark_before_ms: int | None
    watermark_after_ms: int | None
    batches: tuple[int, ...]
    """Spark's batches that are taken back."""
    inputs: tuple[SourceInput, ...]
    """What the sources bring again."""
    delivered: int
    """How many of the versions that are undone have put out rows, as far as is known."""
    damaged: tuple[int, ...] = ()
    """Versions above the newest readable one."""
    lose_input: bool = False
    unchecked_input: bool = False
    reason: str | None = None
    kind: str = "rollback"
    fences: bool = True
    job: _Rollback = field(repr=False, compare=False, kw_only=True)

    def lines(self) -> Lines:
        at = datetime.fromtimestamp(self.committed_at_ms / 1000, UTC)
        undone = f"{self.to + 1} to {self.newest}" if self.to < self.newest - 1 else self.newest
        found = [
            ("rollback", f"version {self.to} of {at:%Y-%m-%d %H:%M:%S}Z becomes version "
                         f"{self.version}"),
            ("state", f"{_count(self.operators, 'operator')}, "
                      f"{_count(self.partitions, 'partition')}, {self.keys_before:,} → "
                      f"{self.keys_after:,} keys; no data is written"),
        ]  # fmt: skip
        if self.to < self.newest:
            found.append(("versions", f"{undone} stay readable until retention removes them"))
        if self.damaged:
            found.append(("damaged", ", ".join(map(str, self.damaged))))
        if self.watermark_before_ms is not None or self.watermark_after_ms is not None:
            found.append(
                ("watermark", f"{_time(self.watermark_before_ms)} → "
                              f"{_time(self.watermark_after_ms)}")
            )  # fmt: skip
        if self.job.site.checkpoint is not None:
            found += self._query_lines()
        found.append(driver_line(self.age_ms))
        refused = self.refusal()
        return found if refused is None else [*found, ("refused", refused.message)]

    def _query_lines(self) -> list[tuple[str, str]]:
        taken = _spans(self.batches)
        found = [
            ("spark", f"batches {taken} are taken back; their entries move to holdfast-undone"
                      if self.batches else "no batch is taken back"),
        ]  # fmt: skip
        found += [(f"source {each.source}", each.line()) for each in self.inputs]
        if self.delivered:
            found.append(
                ("sink", f"the output of {_count(self.delivered, 'version')} was delivered; those "
                         "rows stay where they are")
            )  # fmt: skip
        found.append(("view", "a view of this state is filled again at the next start"))
        return found

    def refusal(self) -> HoldfastError | None:
        allowed = {"there"}
        if self.lose_input:
            allowed |= {"gone", "lost for good"}
        if self.unchecked_input:
            allowed.add("not checked")
        refused = [each for each in self.inputs if each.standing not in allowed]
        return InvalidArgument(_REFUSALS[refused[0].standing](refused[0])) if refused else None

    def json(self) -> JsonBody:
        skipped = {"job", "inputs"}
        names = [name for name in self.__dataclass_fields__ if name not in skipped]
        refused = self.refusal()
        return {
            **{name: getattr(self, name) for name in names},
            "inputs": [each.json() for each in self.inputs],
            "refused": None if refused is None else refused.message,
        }

    def run(self, progress: Progress | None = None) -> OperationResult:
        refused = self.refusal()
        if refused is not None:
            raise refused
        return self.job.run(self)


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
        return _at_time(site, to)
    if isinstance(to, str) and not to.isdecimal() and to not in site.root.tags:
        with suppress(ValueError):
            return _at_time(site, datetime.fromisoformat(to))
    return site.root.resolve(to)


def _at_time(site: Site, moment: datetime) -> int:
    """The newest version that was committed by a time."""
    wanted = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    limit_ms = int(wanted.timestamp() * 1000)
    for manifest in site.versions.intact():
        if manifest.committed_at_ms <= limit_ms:
            return manifest.version
    raise VersionNotFound(
        f"{site.location} has no version from {wanted.isoformat()} or before. `holdfast history` "
        "lists the versions with their times."
    )


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
            job=self,
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


def _time(moment_ms: int | None) -> str:
    if moment_ms is None:
        return "none"
    try:
        return f"{datetime.fromtimestamp(moment_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"
    except (ValueError, OverflowError, OSError):
        return f"{moment_ms} ms"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _spans(batches: tuple[int, ...]) -> str:
    if not batches:
        return "none"
    return str(batches[0]) if len(batches) == 1 else f"{batches[0]} to {batches[-1]}"
