"""Plans: which files belong to a version, decided once for every attempt to deliver it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from holdfast.errors import IllegalState
from holdfast.spark.interop import seam
from holdfast.spark.sinks.sink import OutputBatch

_PLAN = re.compile(r"(?P<version>\d+)(\.(?P<commit>[^.]+))?\.plan")
_FOLDER = re.compile(r"(?P<version>\d+)-.*")
_KEPT = 10
"""How many versions keep their plans: a late writer that finds a newer plan has to stop."""


@dataclass(frozen=True)
class FilePlan:
    """The final name of each file written aside, both as relative paths."""

    files: Mapping[str, str]
    made_from: str | None = None
    commit_id: str | None = None
    """None if the plan was not made by a delivery of that version."""

    @classmethod
    def parse(cls, text: str) -> FilePlan:
        """What `Plans.create` wrote."""
        body = json.loads(text)
        return cls(body["files"], body.get("made_from"), body.get("commit_id"))


class Plans:
    """The plans of one query, in the folder of its sink that also holds files written aside.

    A plan is named by version and commit id, because a version of the same number can have other
    rows: after a checkpoint was restored from a copy, or a damaged version was made again. Plans
    of earlier releases have no commit id.
    """

    def __init__(self, session: SparkSession, folder: str) -> None:
        self._session, self.folder = session, folder

    def find(self, batch: OutputBatch) -> FilePlan | None:
        """The plan of a version; None if it was not delivered yet.

        It survives a power failure. Raises IllegalState if a later version was delivered already,
        or if nothing shows whether the version's rows are there.
        """
        plan = self._found(batch)
        if plan is not None:  # whoever made it may have died before it was synced
            seam.files.make_durable(self._session, self.folder, [])
        return plan

    def _found(self, batch: OutputBatch) -> FilePlan | None:
        listed = self._listed()
        if (batch.version, batch.commit_id) in listed:
            return self._read(_name(batch.version, batch.commit_id))
        for version, commit_id in listed:
            if version == batch.version and commit_id is not None and batch.made_from is not None:
                plan = self._read(_name(version, commit_id))
                if plan is not None and plan.made_from == batch.made_from:
                    return plan  # the manifest was lost, and Spark replayed the batch
        newest = max((version for version, _ in listed), default=0)
        if not batch.has_commit_id and (batch.version, None) in listed:
            if newest > batch.version:
                raise self._doubt(batch, f"{batch.version}.plan")
            return self._read(_name(batch.version, None))
        self._check_not_overtaken(batch, newest)
        if batch.version <= newest - _KEPT and not batch.is_new and not self._has_before(batch):
            raise self._doubt(batch, "*.plan")
        return None

    def create(self, batch: OutputBatch, files: Mapping[str, str]) -> FilePlan | None:
        """Create the plan of a version; return None if there is one already.

        Raises IllegalState if a later version has been delivered meanwhile.
        """
        listed = self._listed()
        self._check_not_overtaken(batch, max((version for version, _ in listed), default=0))
        body = {
            "version": batch.version,
            "commit_id": batch.commit_id,
            "made_from": batch.made_from,
            "files": dict(files),
        }
        path = f"{self.folder}/{_name(batch.version, batch.commit_id)}"
        if seam.files.create_if_absent(self._session, path, json.dumps(body, sort_keys=True)):
            return FilePlan(files, batch.made_from, batch.commit_id)
        return None

    def tidy(self, version: int, plan: FilePlan) -> None:
        """Remove files written aside, also by crashed deliveries, and old plans."""
        own = {source.partition("/")[0] for source in plan.files}
        over: list[tuple[int, str]] = []
        for name in seam.files.list_names(self._session, self.folder):
            if match := _PLAN.fullmatch(name):
                is_over = int(match["version"]) <= version - _KEPT
            elif match := _FOLDER.fullmatch(name):
                is_over = name in own or int(match["version"]) < version
            else:
                continue
            if is_over:
                over.append((int(match["version"]), name))
        for _, name in sorted(over):
            seam.files.delete(self._session, f"{self.folder}/{name}")

    def _listed(self) -> set[tuple[int, str | None]]:
        found = map(_PLAN.fullmatch, seam.files.list_names(self._session, self.folder))
        return {(int(match["version"]), match["commit"]) for match in found if match}

    def _read(self, name: str) -> FilePlan | None:
        text = seam.files.read_text(self._session, f"{self.folder}/{name}")
        return None if text is None else FilePlan.parse(text)

    def _has_before(self, batch: OutputBatch) -> bool:
        """Whether the plan of the version before exists: then this one's would exist as well.

        That is so because the oldest plans are removed first. A plan that a person added by hand
        says nothing about later versions.
        """
        commit_id = batch.parent_commit_id
        if commit_id is None:
            return False
        plan = self._read(_name(batch.version - 1, commit_id))
        return plan is not None and plan.commit_id == commit_id

    def _check_not_overtaken(self, batch: OutputBatch, newest: int) -> None:
        """Reject a version older than the newest delivered one, unless the state has none newer.

        In that case the newer ones were delivered before the state was restored from a copy.
        Requires: `newest` was listed before asking the state, so that the state already shows a run
        that has continued from this version.
        """
        if newest > batch.version and not batch.is_newest():
            raise IllegalState(
                f"Version {batch.version} comes too late for {self.folder}: another run of the "
                f"query has delivered version {newest} there. Stop this one."
            )

    def _doubt(self, batch: OutputBatch, plans: str) -> IllegalState:
        return IllegalState(
            f"The checkpoint was put back, and {self.folder} does not say whether the rows of "
            f"version {batch.version} are in the sink. If they are missing, remove {plans} there; "
            f"if they are there, add {_name(batch.version, batch.commit_id)} with the text "
            '{"files": {}}.'
        )


def _name(version: int, commit_id: str | None) -> str:
    return f"{version}.plan" if commit_id is None else f"{version}.{commit_id}.plan"
