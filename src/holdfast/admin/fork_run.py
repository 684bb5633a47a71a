"""Makes a fork: the files of a version, Spark's checkpoint, and the version that begins it.

In this order, so that a crash anywhere leaves what cannot be opened and is resumed: an entry in the
source's journal, the mark of the unfinished fork, a tag that keeps the version in the source, the
files, the checkpoint, the manifest, and then tag and mark go.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from uuid import UUID

from holdfast.admin.checkpoint_files import StoredFiles
from holdfast.admin.copy_ends import End, read_mark
from holdfast.admin.copy_files import NeededFile, needed_files
from holdfast.admin.copy_transfer import Transfer
from holdfast.admin.fork_ends import TAG_PREFIX, ForkFacts, ForkTarget, check_free, options_for
from holdfast.admin.rewind import earlier_offsets, plan_rewind, rewind
from holdfast.admin.site import Site
from holdfast.admin.source_logs import copy_source_logs
from holdfast.admin.turn import Turn
from holdfast.backends.locations import open_storage
from holdfast.checkpoint import METADATA, NOTE, SparkCheckpoint
from holdfast.engine.files.filenames import manifest_path, tag_path
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.files.manifest_codec import encode
from holdfast.engine.versions.journal import Journal, OperationEntry
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Conflict, Corruption, HoldfastError, InvalidArgument, VersionNotFound
from holdfast.reading import Progress
from holdfast.schemes import LOCAL, scheme_of

_THREADS = 4
_LEAST_SWEEP_AGE_S = 60.0
"""A temporary file younger than this may belong to a run that does not know yet that it is over."""
_TAG = re.compile(rf"{TAG_PREFIX}(?P<id>[0-9a-f]{{32}})")


@dataclass
class ForkRun:
    """One run of a fork of `base`. `turn` says whether it is the first one."""

    site: Site
    target: ForkTarget
    base: Manifest
    turn: Turn
    threads: int = _THREADS

    def run(self, facts: ForkFacts, progress: Progress) -> Transfer | None:
        """Make the fork that was begun with `facts`; how its files came, if that was left to do.

        Raises Conflict where another run is at it or something else writes to the place.
        """
        self._remove_leftovers(facts)
        self._take_turn(facts)
        transfer = None
        if not self._is_made(facts):
            transfer = self._bring(facts, progress)
            if self.target.checkpoint is not None:
                self._make_checkpoint(facts, self.target.checkpoint)
            self._check_whole()
            self._publish(facts)
        self.site.storage.delete(tag_path(facts.tag))
        self.site.journal.done(facts.entry)
        self.turn.end()
        return transfer

    # -- whose turn it is ----------------------------------------------------------------------

    def _take_turn(self, facts: ForkFacts) -> None:
        if self.turn.resumes:
            self.turn.resume()
            return
        check_free(self.target)
        self.site.journal.begin(facts.entry)
        try:
            self.turn.begin(self.site.location, facts.mark())
        except Conflict:
            self.site.journal.give_up(facts.entry)
            raise
        try:
            check_free(self.target)  # nobody can open it any more
            self._tag(facts)
        except (InvalidArgument, VersionNotFound):
            self.turn.end()
            self.site.journal.give_up(facts.entry)
            raise

    def _tag(self, facts: ForkFacts) -> None:
        """Keep the version in the source until all of its files are here."""
        self.site.versions.tag(facts.tag, self.base.version)

    def _remove_leftovers(self, facts: ForkFacts) -> None:
        """Remove tags of forks that were given up: their mark is gone, or another one's."""
        log = self.site.versions
        tagged = {match["id"] for match in map(_TAG.fullmatch, log.intact_tags()) if match}
        if not tagged - {facts.entry.id}:
            return
        with suppress(Corruption):  # a damaged entry of the journal: nobody knows whose tags
            for line in self.site.journal.lines():
                entry = line.entry
                if entry.id in tagged - {facts.entry.id} and self._is_given_up(entry):
                    self.site.storage.delete(tag_path(f"{TAG_PREFIX}{entry.id}"))

    def _is_given_up(self, entry: OperationEntry) -> bool:
        """Whether an unfinished fork is surely not there any more."""
        where = str(entry.detail.get("to"))
        scheme = scheme_of(where)
        is_elsewhere = scheme is LOCAL and entry.by.rpartition("@")[2] != socket.gethostname()
        if is_elsewhere or scheme is None or not scheme.is_lasting:
            return False
        try:
            storage = open_storage(where, options_for(where, self.site.options)).source
            mark = read_mark(storage)
        except HoldfastError:
            return False
        return mark is None or mark.copy_id != entry.id

    # -- the state -----------------------------------------------------------------------------

    def _bring(self, facts: ForkFacts, progress: Progress) -> Transfer:
        """Bring every file of the version."""
        source, version = self.site.storage, self.base.version
        self._tag(facts)
        there = End.of(source, [version])
        files = needed_files({version: self.base}, None, there.sizes)
        transfer = Transfer(
            source,
            self.target.state,
            there.sizes,
            set(),
            threads=self.threads,
            check=self.turn.check,
            has_moved_on=lambda: False,
            adopts=True,
        )
        total = sum(transfer.size(file) for file in files)
        transfer.bring(files, progress, total)
        if transfer.vanished:
            raise VersionNotFound(
                f"Version {version} of {self.site.location} was removed while it was forked, "
                "although it was tagged. Start afresh with another version and an empty place."
            )
        return transfer

    def _check_whole(self) -> None:
        """Check that the fork has every file of the version, in full length."""
        sizes = {blob.path: blob.size for blob in self.target.state.list("")}
        for file in self._needed():
            if sizes.get(file.path, -1) < file.least_bytes:
                raise Conflict(
                    f"{file.path} disappeared from {self.target.state.location} while the fork was "
                    "made: another process writes there. Stop it, then run the fork again."
                )

    def _needed(self) -> list[NeededFile]:
        return needed_files({self.base.version: self.base}, None)

    # -- Spark's checkpoint --------------------------------------------------------------------

    def _make_checkpoint(self, facts: ForkFacts, checkpoint: SparkCheckpoint) -> None:
        """Make the checkpoint of a query that has done the version's batch. The note comes first:
        with it, the checkpoint belongs to the fork's state and to no other.
        """
        self._write(checkpoint, NOTE, f"{facts.state_id}\n")
        source, folder = self.site.checkpoint, self.target.folder
        assert source is not None and folder is not None  # noqa: PT018
        assert isinstance(source.files, StoredFiles)
        batch = self.base.batch
        offsets = None if batch is None else str(batch["offsets"])
        if self.turn.resumes:
            folder.sweep(_LEAST_SWEEP_AGE_S)
        copy_source_logs(source.files.storage, folder, offsets)
        if batch is not None:
            plan = plan_rewind(checkpoint, batch, partial(self._earlier, source))
            if plan.moves:
                raise self._in_use(f"{checkpoint.location}/{plan.moves[0]}")
            rewind(checkpoint, plan, facts.entry.id)
        self._write(checkpoint, METADATA, f'{{"id":"{facts.query_id}"}}')

    def _earlier(self, source: SparkCheckpoint) -> str | None:
        assert self.base.batch is not None
        found = source.offsets(int(self.base.batch["id"]) - 1)
        return found or earlier_offsets(self.site.versions, self.base)

    def _write(self, checkpoint: SparkCheckpoint, path: str, text: str) -> None:
        if checkpoint.files.create_if_absent(path, text):
            return
        if checkpoint.files.read_text(path) != text:
            raise self._in_use(f"{checkpoint.location}/{path}")

    def _in_use(self, path: str) -> Conflict:
        return Conflict(
            f"{path} was written by somebody else while the fork was made. Stop whoever uses that "
            "checkpoint, and fork to an empty place."
        )

    # -- the version ---------------------------------------------------------------------------

    def _is_made(self, facts: ForkFacts) -> bool:
        """Whether the fork has its version; then it has all of its files."""
        path = manifest_path(self.base.version + 1)
        return (
            self.turn.resumes and self.target.state.size(path) is not None and self._is_own(facts)
        )

    def _is_own(self, facts: ForkFacts) -> bool:
        return self._log.load(self.base.version + 1).commit_id == facts.new_commit_id

    @property
    def _log(self) -> VersionLog:
        return VersionLog(self.target.state, self.site.runtime)

    def _publish(self, facts: ForkFacts) -> None:
        self.turn.check()
        runtime, journal = self.site.runtime, Journal(self._log)
        entry = facts.own_entry(self.site.location)
        journal.begin(entry)
        manifest = facts.manifest(
            self.base, self.site.location, runtime.new_id(), runtime.clock_ms()
        )
        path = manifest_path(manifest.version)
        is_new = self.target.state.create_if_absent(path, encode(manifest))
        if not is_new and not self._is_own(facts):
            raise Conflict(
                f"{self.target.state.location}/{path} was written by somebody else while the fork "
                "was made. Fork to an empty place."
            )
        journal.done(entry)


def new_facts(site: Site, target: ForkTarget, base: Manifest, reason: str | None) -> ForkFacts:
    """What a fork that begins now is made with."""
    detail = {"forked": base.version, "to": target.state.location}
    query_id = None
    if target.folder is not None:
        query_id = str(UUID(hex=site.runtime.new_id(), version=4))
        detail |= {"checkpoint": target.folder.location, "query_id": query_id}
    newest = site.versions.newest()
    entry = site.entry(
        "fork", base.version if newest is None else newest, reason, detail, makes_version=False
    )
    return ForkFacts(
        replace(entry, is_attempt=True),
        base.version,
        base.commit_id,
        site.runtime.new_id(),
        site.runtime.new_id(),
        query_id,
    )
