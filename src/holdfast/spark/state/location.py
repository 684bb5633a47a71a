"""Where a query's state is: in the checkpoint, or at the stateLocation."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from pyspark.sql import SparkSession

from holdfast.backends.local import LocalStorage
from holdfast.conf import HOLDFAST_PREFIX, settings_below
from holdfast.engine.files.filenames import PLACE, STATE_FOLDER
from holdfast.engine.storage import Runtime, Storage
from holdfast.errors import InvalidArgument
from holdfast.schemes import MEMORY, scheme_of
from holdfast.spark.interop import seam

_SHARED_MEMORY = Path("/dev/shm")
"""A folder in memory that all processes of the host share."""
_AMAZON = "s3.amazonaws.com"

_LOCAL_MASTER = re.compile(r"local(\[.*\])?")


def state_root(session: SparkSession, checkpoint: str, wanted: str | None) -> str:
    """The root of a query's state: `wanted`, or else a folder inside the checkpoint.

    A path means what it means to Spark: without a scheme it is on the default file system.
    """
    scheme = None if wanted is None else scheme_of(wanted)
    if wanted is not None and scheme is MEMORY:
        return _in_memory(session, wanted)
    if wanted is not None and scheme is not None and scheme.is_complete:
        return wanted.rstrip("/")  # Spark may have no file system for it
    qualified = seam.files.qualified(session, wanted or f"{checkpoint}/{STATE_FOLDER}")
    return seam.files.local_path(qualified) or qualified


def storage_options(
    session: SparkSession, root: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """The options with which tasks reach a root.

    For a root on S3 they come from Spark's Hadoop settings, for one in a database from the query's
    settings `spark.holdfast.<scheme>.<option>`. What they leave out, each process finds where the
    clients of AWS or the database look by default.
    """
    scheme = scheme_of(root)
    if scheme is None:
        return {}
    if scheme.is_set_in_spark:
        return settings_below(f"{HOLDFAST_PREFIX}{scheme.name}.", settings)
    return _hadoop_options(session, root, scheme.hadoop) if scheme.hadoop else {}


def _hadoop_options(
    session: SparkSession, root: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """The options that Hadoop's settings for S3 give; those for the bucket of `root` come first."""
    bucket = urlsplit(root).netloc
    found = {
        name: seam.files.setting(session, f"fs.s3a.bucket.{bucket}.{setting}")
        or seam.files.setting(session, f"fs.s3a.{setting}")
        for name, setting in settings.items()
    }
    options = {name: value for name, value in found.items() if value}
    if options.get("endpoint_url") == _AMAZON:
        del options["endpoint_url"]
    if "://" not in (endpoint := options.get("endpoint_url", "://")):
        plain = seam.files.setting(session, "fs.s3a.connection.ssl.enabled") == "false"
        options["endpoint_url"] = f"{'http' if plain else 'https'}://{endpoint}"
    if options.get("path_style") == "false":
        del options["path_style"]  # the default: boto3 sees by itself where hosts need it
    return options


def marked_place(session: SparkSession, storage: Storage, runtime: Runtime) -> str | None:
    """The text that tasks have to find in the root's file `place`, created if there is none.

    None if no check is needed: driver and tasks share a host, or the root is remote.
    """
    if is_one_host(session) or not isinstance(storage, LocalStorage):
        return None
    storage.create_if_absent(PLACE, runtime.new_id().encode())
    return bytes(storage.read(PLACE)).decode("ascii", "replace")


def is_one_host(session: SparkSession) -> bool:
    """Whether the master puts driver and tasks on one host."""
    return _LOCAL_MASTER.fullmatch(str(session.sparkContext.master)) is not None


def _in_memory(session: SparkSession, wanted: str) -> str:
    """A folder in the memory of the driver's host, removed when the driver ends."""
    if not is_one_host(session):
        raise InvalidArgument(
            "The state of a stream can be in memory only if driver and tasks share a host, but the "
            f"master is {session.sparkContext.master}. Leave out stateLocation, or name a folder "
            "that every executor reaches, such as one on hdfs:// or s3a://."
        )
    name = quote(wanted.removeprefix("memory://").strip("/"), safe="")
    if not name:
        raise InvalidArgument("State in memory needs a name: memory://totals, for example.")
    place = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else Path(tempfile.gettempdir())
    folder = place / f"holdfast-{os.getuid()}-{session.sparkContext.applicationId}"
    _claim(folder)
    return str(folder / name)


def _claim(folder: Path) -> None:
    """Create a folder that only this user can use, or check that it is one.

    Anyone can write to shared memory. Another user could have created the folder first, to read or
    change the state.
    """
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        pass
    else:
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise InvalidArgument(
            f"{folder}, which would hold the state in memory, belongs to another user or is not a "
            "folder. Remove it, or leave out stateLocation."
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
