"""Files and tables that get each row exactly once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import IllegalState
from holdfast.spark.operators import quoted
from holdfast.spark.private import hadoop
from holdfast.spark.private.catalog import FileTable
from holdfast.spark.sinks import Sink
from holdfast.spark.tables import add_partitions

_PART = re.compile(r"part-(?P<task>\d+)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?P<rest>[.\-].*)")
_NAMED_BY_VERSION = re.compile(r"(?P<version>\d+)(?P<kind>[.\-])")
"""`<version>.plan`, or the folder `<version>-<random>`."""
_PLANS_KEPT = 10


class FileSink(Sink):
    """Files named by version, task and query; each is created once, none is ever overwritten.

    Spark writes a version aside. A *plan*, made only if there is none, then says which of those
    files become the version's, and under which names; only then are they renamed. Whoever
    delivers the version again, after a crash or at the same time, finds the plan and finishes it,
    however Spark would cut the rows into files this time. So a stream that reads the folder sees
    each row once.
    """

    def __init__(
        self,
        path: str,
        file_format: str,
        options: Mapping[str, str],
        partition_by: list[str],
        checkpoint: str,
    ) -> None:
        self._path = path.rstrip("/")
        self._format = file_format
        self._options = dict(options)
        self._partition_by = partition_by
        self._checkpoint = checkpoint
        self._query_id: str | None = None
        self.description = f"FileSink[{self._path}]"

    def deliver(self, frame: DataFrame, version: int) -> None:
        self._put(frame, version)

    def _put(self, frame: DataFrame, version: int) -> list[str]:
        """Bring a version's files into place; the folders below the path that got some."""
        session = frame.sparkSession
        plan = self._plan(session, version)
        if plan is None:
            plan = self._written(frame, version)
        for source, target in plan.items():
            hadoop.rename_if_absent(session, f"{self._aside}/{source}", f"{self._path}/{target}")
        self._tidy(session, version, plan)
        return sorted({target.rpartition("/")[0] for target in plan.values()})

    @property
    def _aside(self) -> str:
        return f"{self._path}/_holdfast/{self._query_id}"

    def _plan(self, session: SparkSession, version: int) -> dict[str, str] | None:
        """Which file written aside gets which name; None before there is a plan."""
        if self._query_id is None:
            self._query_id = _query_id(session, self._checkpoint)
        text = hadoop.read_text(session, f"{self._aside}/{version}.plan")
        return None if text is None else json.loads(text)["files"]

    def _written(self, frame: DataFrame, version: int) -> dict[str, str]:
        """Write the rows aside and plan for them; someone else's plan if that came first."""
        session = frame.sparkSession
        folder = f"{version}-{uuid4().hex}"
        writer = frame.write.format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(f"{self._aside}/{folder}")
        names = {
            f"{folder}/{file}": target
            for file in hadoop.files(session, f"{self._aside}/{folder}")
            if (target := self._target(file, version)) is not None
        }
        text = json.dumps({"version": version, "files": names}, sort_keys=True)
        self._check_not_overtaken(session, version)
        if hadoop.create_if_absent(session, f"{self._aside}/{version}.plan", text):
            return names
        plan = self._plan(session, version)
        assert plan is not None
        if plan != names:  # it is ours where the answer to a first try got lost
            hadoop.delete(session, f"{self._aside}/{folder}")
        return plan

    def _check_not_overtaken(self, session: SparkSession, version: int) -> None:
        found = map(_NAMED_BY_VERSION.match, hadoop.names(session, self._aside))
        plans = {int(match["version"]) for match in found if match and match["kind"] == "."}
        newest = max(plans, default=0)
        if newest > version and version not in plans:
            raise IllegalState(
                f"Version {version} comes too late for {self._path}: another run of the query has "
                f"delivered version {newest} there. Stop this one."
            )

    def _target(self, file: str, version: int) -> str | None:
        """The final name of a file; None for what is not data."""
        directory, _, name = file.rpartition("/")
        match = _PART.fullmatch(name)
        if match is None:
            return None
        assert self._query_id is not None
        own = f"part-{version:010d}-{match['task']}-{self._query_id[:8]}{match['rest']}"
        return f"{directory}/{own}" if directory else own

    def _tidy(self, session: SparkSession, version: int, plan: Mapping[str, str]) -> None:
        """Remove what was written aside, also by deliveries that crashed, and old plans.

        Plans stay for a while: one that is found stops a writer that was overtaken.
        """
        own = {source.partition("/")[0] for source in plan}
        for name in hadoop.names(session, self._aside):
            match = _NAMED_BY_VERSION.match(name)
            if match is None:
                continue
            number = int(match["version"])
            is_plan = match["kind"] == "."
            if number <= version - _PLANS_KEPT if is_plan else name in own or number < version:
                hadoop.delete(session, f"{self._aside}/{name}")


class TableSink(FileSink):
    """The files of a table, each row exactly once; new partitions become visible with them."""

    def __init__(self, table: FileTable, options: Mapping[str, str], checkpoint: str) -> None:
        super().__init__(
            table.location, table.provider, {**table.options, **options}, table.partition_by,
            checkpoint,
        )  # fmt: skip
        self._table = table
        self._added: set[str] = set()

    def deliver(self, frame: DataFrame, version: int) -> None:
        session = frame.sparkSession
        folders = self._put(frame.select(*map(quoted, self._table.columns)), version)
        if self._table.tracks_partitions:
            fresh = [folder for folder in folders if folder and folder not in self._added]
            add_partitions(session, self._table, fresh)
            self._added.update(fresh)
        session.catalog.refreshTable(self._table.name)


def _query_id(session: SparkSession, checkpoint: str) -> str:
    """The id Spark gave the query; the same across restarts."""
    text = hadoop.read_text(session, f"{checkpoint}/metadata")
    if text is None:
        raise IllegalState(
            f"The checkpoint {checkpoint} has lost its file 'metadata', which names the query. "
            "Without it a row could be delivered twice. Bring it back, or use another checkpoint."
        )
    return str(json.loads(text)["id"])
