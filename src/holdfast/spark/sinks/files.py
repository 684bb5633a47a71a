"""Sinks that write files and tables, each row exactly once."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import IllegalState
from holdfast.spark.interop import seam
from holdfast.spark.interop.model import FileTable
from holdfast.spark.operators.columns import quote_column
from holdfast.spark.sinks.plans import FilePlan, Plans
from holdfast.spark.sinks.sink import OutputBatch, Sink
from holdfast.spark.sinks.tables import add_partitions
from holdfast.spark.state.pairing import spark_checkpoint

_PART = re.compile(
    r".*?(?P<task>\d+)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}(?P<rest>[.\-].*)?", re.DOTALL
)
"""How Spark names a file: `part` or the job's basename, the task, the job's id, the rest."""
_MARKER = re.compile(
    r"_SUCCESS|_committed_.*|_started_.*|_metadata|_common_metadata|\..*\.crc", re.DOTALL
)
"""Files without rows that committers and formats write."""
_WORKING_FOLDERS = ("_temporary", "__magic", "_spark_metadata")


class FileSink(Sink):
    """Writes files named by batch, task, query and commit. None is ever overwritten.

    Spark writes a version's rows into a folder aside. Then a *plan* is created, unless there is
    one: it says which of those files belong to the version and what their final names are. Only
    then are they renamed. A second delivery, after a crash or at the same time, finds the plan and
    finishes it, although Spark might split the rows into other files this time. So a stream that
    reads the folder sees each row once.
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

    def start(self, native: DataFrame) -> None:
        # As in Spark, whoever reads the folder may do so before there are rows.
        seam.files.make_folder(native.sparkSession, self._path)

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        self._put(frame, batch)

    def _put(self, frame: DataFrame, batch: OutputBatch) -> list[str]:
        """Move a version's files into place; return the folders below the path that got some."""
        session = frame.sparkSession
        if self._query_id is None:
            self._query_id = _query_id(session, self._checkpoint)
        plans = Plans(session, f"{self._path}/_holdfast/{self._query_id}")
        plan = plans.find(batch) or self._written(frame, batch, plans)
        for source, target in plan.files.items():
            seam.files.rename_if_absent(
                session, f"{plans.folder}/{source}", f"{self._path}/{target}"
            )
        plans.tidy(batch.version, plan)
        return sorted({target.rpartition("/")[0] for target in plan.files.values()})

    def _written(self, frame: DataFrame, batch: OutputBatch, plans: Plans) -> FilePlan:
        """Write the rows aside and plan them; return another delivery's plan if that was first."""
        session = frame.sparkSession
        folder = f"{batch.version}-{uuid4().hex}"
        writer = frame.write.format(self._format).options(**self._options)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        writer.save(f"{plans.folder}/{folder}")
        written = seam.files.files(session, f"{plans.folder}/{folder}")
        data = [file for file in written if not _is_marker(file)]
        if not data and not frame.isEmpty():
            raise IllegalState(
                f"Spark reports success, but none of the rows of version {batch.version} are in "
                f"{plans.folder}/{folder}. Check spark.sql.sources.commitProtocolClass and the "
                "output committer: they have to write to the folder that Spark names."
            )
        # The plan stays when the power fails, so what it names has to stay as well.
        seam.files.make_durable(session, f"{plans.folder}/{folder}", data)
        names = {f"{folder}/{file}": target for file, target in self._names(data, batch).items()}
        made = plans.create(batch, names)
        if made is not None:
            return made
        plan = plans.find(batch)
        assert plan is not None
        if plan.files != names:  # ours after all, if only the reply to a first attempt was lost
            seam.files.delete(session, f"{plans.folder}/{folder}")
        return plan

    def _names(self, data: Sequence[str], batch: OutputBatch) -> dict[str, str]:
        """The final name of each file, different for every query, version and commit."""
        assert self._query_id is not None
        whose = f"{self._query_id[:8]}-{batch.commit_id[:12]}"
        names = {}
        for number, file in enumerate(data):
            directory, _, name = file.rpartition("/")
            match = _PART.fullmatch(name)
            if match is None and name.startswith(("_", ".")):
                raise IllegalState(
                    f"Spark wrote {name} for version {batch.version} to {self._path}, which it "
                    "would not read as data. Nothing was delivered; choose another committer, or "
                    "another mapreduce.output.basename."
                )
            task, rest = (match["task"], match["rest"] or "") if match else (number, f"-{name}")
            own = f"part-{batch.batch_id:010d}-{task}-{whose}{rest}"
            names[file] = f"{directory}/{own}" if directory else own
        if len(set(names.values())) < len(names):
            raise IllegalState(
                f"Spark wrote several files of one name for version {batch.version} to "
                f"{self._path}. Nothing was delivered; choose another output committer."
            )
        return names


class TableSink(FileSink):
    """Writes the files of a table, each row exactly once, and catalogs new partitions."""

    def __init__(self, table: FileTable, options: Mapping[str, str], checkpoint: str) -> None:
        super().__init__(
            table.location,
            table.provider,
            {**table.options, **options},
            table.partition_by,
            checkpoint,
        )
        self._table = table
        self._added: set[str] = set()

    def deliver(self, frame: DataFrame, batch: OutputBatch) -> None:
        session = frame.sparkSession
        folders = self._put(frame.select(*map(quote_column, self._table.columns)), batch)
        if self._table.tracks_partitions:
            fresh = [folder for folder in folders if folder and folder not in self._added]
            add_partitions(session, self._table, fresh)
            self._added.update(fresh)
        session.catalog.refreshTable(self._table.name)


def _is_marker(file: str) -> bool:
    """Whether a file holds no rows. Any other file that Spark wrote is data."""
    *folders, name = file.split("/")
    return _MARKER.fullmatch(name) is not None or not set(folders).isdisjoint(_WORKING_FOLDERS)


def _query_id(session: SparkSession, checkpoint: str) -> str:
    """The id that Spark gave the query; it stays the same across restarts."""
    found = spark_checkpoint(session, checkpoint).query_id()
    if found is None:
        raise IllegalState(
            f"The checkpoint {checkpoint} has lost its file 'metadata', which names the query. "
            "Without it a row could be delivered twice. Bring it back, or use another checkpoint."
        )
    return found
