"""Where a query's state is: beside Spark's checkpoint, or where the user says."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from urllib.parse import quote

from pyspark.sql import SparkSession

from holdfast.engine.filenames import STATE
from holdfast.errors import InvalidArgument
from holdfast.spark import hadoop

_SHARED_MEMORY = Path("/dev/shm")
"""Memory that all processes of the host share."""

_LOCAL_MASTER = re.compile(r"local(\[.*\])?")


def state_root(session: SparkSession, checkpoint: str, wanted: str | None) -> str:
    """The root of a query's state: `wanted`, or the checkpoint's own folder for it.

    Paths mean what they mean to Spark: without a scheme they lie on the default file system.
    """
    if wanted is not None and wanted.startswith("memory://"):
        return _in_memory(session, wanted)
    qualified = hadoop.qualified(session, wanted or f"{checkpoint}/{STATE}")
    return hadoop.local_path(qualified) or qualified


def _in_memory(session: SparkSession, wanted: str) -> str:
    """A folder in the memory of the driver's host that goes with the driver."""
    master = str(session.sparkContext.master)
    if not _LOCAL_MASTER.fullmatch(master):
        raise InvalidArgument(
            f"The state of a stream can be in memory only where driver and tasks share a host: "
            f"the master is {master}, not local[…]. Leave stateLocation out, or name a folder "
            "that every executor reaches, such as one on hdfs:// or s3a://."
        )
    name = quote(wanted.removeprefix("memory://").strip("/"), safe="")
    if not name:
        raise InvalidArgument("State in memory needs a name: memory://totals, for example.")
    place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    folder = place / f"holdfast-{os.getuid()}-{session.sparkContext.applicationId}"
    if not folder.exists():
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return str(folder / name)
