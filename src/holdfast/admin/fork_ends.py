"""The two ends of a fork: the version it is made of, and the place it is made at."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.copy_ends import Mark, overlap, way_out
from holdfast.admin.site import Location, Site
from holdfast.backends.locations import open_storage
from holdfast.checkpoint import SparkCheckpoint
from holdfast.engine.files.filenames import COPYING, STATE_FOLDER, operation_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.storage import Storage
from holdfast.engine.versions.journal import OperationEntry
from holdfast.engine.versions.numbering import Numbering
from holdfast.errors import InvalidArgument
from holdfast.schemes import scheme_of


@dataclass(frozen=True)
class ForkTarget:
    """Where a fork goes: its state, and Spark's checkpoint for it unless it is a store."""

    state: Storage
    folder: Storage | None = None
    """The checkpoint as a storage."""

    @property
    def checkpoint(self) -> SparkCheckpoint | None:
        """The checkpoint; None for a standalone store."""
        if self.folder is None:
            return None
        return SparkCheckpoint(StoredFiles(self.folder), self.folder.location)

    @property
    def location(self) -> str:
        """What people call it: the checkpoint, or the root of a store."""
        return (self.state if self.folder is None else self.folder).location

    @property
    def has_own_place(self) -> bool:
        """Whether the state is elsewhere than where a query looks for it by itself."""
        return self.folder is not None and self._below() != f"{STATE_FOLDER}/"

    def others(self) -> list[str]:
        """The files at both places, except a mark."""
        found = [blob.path for blob in self.state.list("") if blob.path != COPYING]
        return [f"{self.state.location}/{path}" for path in found] + self.in_checkpoint()

    def in_checkpoint(self) -> list[str]:
        """The files of the checkpoint, except those of the state."""
        if self.folder is None:
            return []
        below = self._below()
        return [
            f"{self.folder.location}/{blob.path}"
            for blob in self.folder.list("")
            if below is None or not blob.path.startswith(below)
        ]

    def _below(self) -> str | None:
        """Where in the checkpoint the state is; None where it is elsewhere."""
        assert self.folder is not None
        start = f"{self.folder.location.rstrip('/')}/"
        where = f"{self.state.location.rstrip('/')}/"
        return where.removeprefix(start) if where.startswith(start) else None


@dataclass(frozen=True)
class ForkFacts:
    """What a fork was begun with. Its mark has it, so that every run makes the same one."""

    entry: OperationEntry
    """In the journal of the source."""
    version: int
    commit_id: str
    """Those of the version it is made of."""
    new_commit_id: str
    state_id: str
    query_id: str | None
    """Of Spark's new query; None for a store."""

    @property
    def tag(self) -> str:
        """The tag that keeps the version in the source while its files are brought."""
        return f"{TAG_PREFIX}{self.entry.id}"

    def mark(self) -> Mark:
        """The mark of the unfinished fork."""
        body = {
            "entry": self.entry.json(),
            "version": self.version,
            "commit_id": self.commit_id,
            "state_id": self.state_id,
            "query_id": self.query_id,
        }
        return Mark(self.entry.id, {self.version + 1: self.new_commit_id}, body)

    @classmethod
    def of(cls, mark: Mark) -> ForkFacts:
        """What `mark` gave. Requires: it is the mark of a fork."""
        body: Mapping[str, Any] = mark.fork or {}
        return cls(
            OperationEntry.of(body["entry"]),
            body["version"],
            body["commit_id"],
            mark.versions[body["version"] + 1],
            body["state_id"],
            body["query_id"],
        )

    def own_entry(self, source: str) -> OperationEntry:
        """The entry in the journal of the fork."""
        return replace(
            self.entry,
            version=self.version + 1,
            makes_version=True,
            is_attempt=False,
            detail={"from": source, "forked": self.version},
        )

    def manifest(self, base: Manifest, source: str, writer_id: str, now_ms: int) -> Manifest:
        """The first version of the fork. It brings the sink nothing, and takes no number."""
        batch = base.batch
        numbering = base.numbering
        if self.query_id is not None:
            batch = None if batch is None else {**batch, "query_id": self.query_id}
            numbering = Numbering.of(base).json()
        return replace(
            base,
            version=base.version + 1,
            parent=base.version,
            parent_commit_id=base.commit_id,
            commit_id=self.new_commit_id,
            writer_id=writer_id,
            epoch=base.epoch + 1,
            committed_at_ms=now_ms,
            scope={**base.scope, "id": self.state_id},
            batch=batch,
            outbox=(),
            delivered_through=base.version + 1,
            tags={},
            numbering=numbering,
            operation=self.own_entry(source).json(),
        )


TAG_PREFIX = "fork-"


def open_target(
    site: Site,
    new_checkpoint: Location,
    state_location: Location | None,
    options: Mapping[str, str] | None,
) -> ForkTarget:
    """Open the place a fork is to be made at. Raises InvalidArgument where it cannot be there."""
    where = os.fspath(new_checkpoint)
    if is_query(site):
        target = _query_target(site, where, state_location, options)
    elif state_location is None:
        target = ForkTarget(_opened(where, options))
    else:
        raise InvalidArgument(
            f"{site.location} is a store, whose fork is a root of its own. Leave the state "
            "location out, and name the root as the new place."
        )
    _check_apart(site, target)
    return target


def is_query(site: Site) -> bool:
    """Whether a root is the state of a query, and not a store that is used without Spark."""
    scope = site.root.newest_readable().scope
    return site.checkpoint is not None or "query" in (scope.get("kind"), site.root.kind)


def _query_target(
    site: Site,
    where: str,
    state_location: Location | None,
    options: Mapping[str, str] | None,
) -> ForkTarget:
    if site.checkpoint is None:
        raise InvalidArgument(
            f"{site.location} is the state of a query whose checkpoint is elsewhere. Name it as "
            "well, with --checkpoint (checkpoint= in Python)."
        )
    scheme = scheme_of(where)
    if scheme is not None and (scheme.is_database or not scheme.is_lasting):
        raise InvalidArgument(
            f"{where} cannot be the checkpoint of a query: Spark keeps it in a file system. Name a "
            "folder, and the place of the state with --state-location."
        )
    folder = _opened(where, options)
    state_at = os.fspath(state_location or f"{folder.location.rstrip('/')}/{STATE_FOLDER}")
    scheme = scheme_of(state_at)
    if scheme is not None and not scheme.is_lasting:
        raise InvalidArgument(
            f"{state_at} cannot hold the state of a forked query: it would end with this process. "
            "Name a place that stays."
        )
    state = _opened(state_at, options)
    if overlap(folder.location, state.location) and not state.location.startswith(
        f"{folder.location.rstrip('/')}/"
    ):
        raise InvalidArgument(
            f"The checkpoint {folder.location} cannot be inside of the state {state.location}. "
            "Name another place for one of them."
        )
    return ForkTarget(state, folder)


def _opened(where: str, options: Mapping[str, str] | None) -> Storage:
    storage = open_storage(where, options_for(where, options)).source
    if storage.read_only:
        raise InvalidArgument(
            f"{storage.location} can only be read from here. Nothing was changed. Name a place "
            "that Holdfast writes to.",
            condition="STATE_STORE_READ_ONLY",
        )
    return storage


def options_for(where: str, options: Mapping[str, str] | None) -> dict[str, str]:
    """Those of the options that lead to a place: the two ends may be of different kinds."""
    scheme = scheme_of(where)
    if scheme is None or scheme.options is None:
        return dict(options or {})
    return {name: text for name, text in (options or {}).items() if name in scheme.options}


def check_options(options: Mapping[str, str] | None, places: Sequence[Location | None]) -> None:
    """Refuse an option that none of the places takes."""
    known = [options_for(os.fspath(place), options) for place in places if place is not None]
    for name in options or {}:
        if not any(name in each for each in known):
            raise InvalidArgument(
                f"None of the places of the fork has an option {name!r}. Nothing was changed. "
                "Correct its name, or leave it out."
            )


def _check_apart(site: Site, target: ForkTarget) -> None:
    """Refuse a fork that would be inside of what it is made of, or the other way round."""
    sources = [site.location]
    if site.checkpoint is not None:
        sources.append(site.checkpoint.location)
    targets = [each for each in (target.folder, target.state) if each is not None]
    for source in sources:
        for each in targets:
            if overlap(source, each.location):
                raise InvalidArgument(
                    f"{source} and {each.location} are the same place, or one inside the other. "
                    "Name another place."
                )


def check_free(target: ForkTarget) -> None:
    """Refuse a place with anything in it but the mark of a fork that has just begun."""
    if found := target.others():
        raise InvalidArgument(
            f"Nothing was forked: {target.location} is not empty, it has {found[0]}. Name an empty "
            "place."
        )


def unfinished(target: ForkTarget, mark: Mark | None, site: Site) -> ForkFacts | None:
    """What the unfinished fork at a place was begun with; None where there is none.

    Raises InvalidArgument for an unfinished copy, or an unfinished fork of something else.
    """
    if mark is None:
        return None
    if mark.fork is None:
        raise _not_ours(target, "an unfinished copy")
    facts = ForkFacts.of(mark)
    where = None if target.folder is None else target.folder.location
    if facts.entry.detail.get("checkpoint") != where:
        raise _not_ours(target, "an unfinished fork with another checkpoint")
    noted = operation_path(facts.entry.version, facts.entry.id)
    if site.storage.size(noted) is None:
        raise _not_ours(target, "an unfinished fork of another root")
    checkpoint = target.checkpoint
    is_noted = checkpoint is None or checkpoint.state_id() == facts.state_id
    if not is_noted and (found := target.in_checkpoint()):
        raise _not_ours(target, f"an unfinished fork, and {found[0]} is not part of it")
    return facts


def _not_ours(target: ForkTarget, what: str) -> InvalidArgument:
    return InvalidArgument(
        f"Nothing was forked: {target.state.location} holds {what}. "
        f"{way_out(target.state.location)}"
    )
