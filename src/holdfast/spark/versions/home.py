"""Where one run of a query has its state, and what it reaches it with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID, uuid4

from pyspark.sql import SparkSession

from holdfast.backends.locations import open_storage
from holdfast.checkpoint import SparkCheckpoint
from holdfast.conf import BESIDE_CHECKPOINT, StateStoreConf
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.log import VersionLog
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.state.location import state_root, storage_options
from holdfast.spark.state.pairing import spark_checkpoint


@dataclass(frozen=True)
class RunHome:
    """What stays the same from the start of a run to its end."""

    spec: QuerySpec
    conf: StateStoreConf
    runtime: Runtime
    root: str
    options: Mapping[str, str] = field(repr=False)
    """How the root is reached; never to be shown or kept."""
    versions: VersionLog
    committer: Committer
    run_id: UUID
    checkpoint: SparkCheckpoint

    @classmethod
    def of(cls, spec: QuerySpec, conf: StateStoreConf) -> RunHome:
        """That of a new run. Nothing is written."""
        session, runtime = spec.source.sparkSession, Runtime.system()
        wanted = None if conf.state_location == BESIDE_CHECKPOINT else conf.state_location
        root = state_root(session, spec.checkpoint, wanted)
        options = storage_options(session, root, spec.settings)
        versions = VersionLog(open_storage(root, options, conf), runtime)
        committer = Committer(versions, runtime, conf)
        checkpoint = spark_checkpoint(session, spec.checkpoint)
        return cls(spec, conf, runtime, root, options, versions, committer, uuid4(), checkpoint)

    @property
    def session(self) -> SparkSession:
        """The user's session."""
        session: SparkSession = self.spec.source.sparkSession
        return session

    @property
    def storage(self) -> Storage:
        """Where the root's files are."""
        return self.versions.storage
