"""Files of a sink or a checkpoint through Hadoop's FileSystem, so that paths mean what they do
to Spark.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from holdfast.errors import Unavailable


def _path(session: SparkSession, location: str) -> tuple[Any, Any]:
    jvm: Any = session.sparkContext._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    configuration = session._jsparkSession.sessionState().newHadoopConf()
    return path.getFileSystem(configuration), path


def read_text(session: SparkSession, location: str) -> str | None:
    """A small text file, or None when there is none."""
    system, path = _path(session, location)
    if not system.exists(path):
        return None
    jvm: Any = session.sparkContext._jvm
    stream = system.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def qualified(session: SparkSession, location: str) -> str:
    """A path with the scheme and host that Spark takes it to have."""
    system, path = _path(session, location)
    return str(system.makeQualified(path).toString())


def write_text_if_absent(session: SparkSession, location: str, text: str) -> None:
    """Make a small text file unless there is one."""
    system, path = _path(session, location)
    if system.exists(path):
        return
    system.mkdirs(path.getParent())
    stream = system.create(path, False)
    try:
        stream.write(text.encode())
    finally:
        stream.close()


def delete(session: SparkSession, location: str) -> None:
    """Remove a file or folder with all in it; a missing one is no error."""
    system, path = _path(session, location)
    system.delete(path, True)


def files(session: SparkSession, location: str) -> list[str]:
    """Every file below a folder, relative to it, in name order."""
    system, path = _path(session, location)
    if not system.exists(path):
        return []
    root = str(system.makeQualified(path).toString()).rstrip("/") + "/"
    found = []
    listed = system.listFiles(path, True)
    while listed.hasNext():
        found.append(str(listed.next().getPath().toString()).removeprefix(root))
    return sorted(found)


def rename_if_absent(session: SparkSession, source: str, target: str) -> bool:
    """Give a file its final name unless that is taken; whether it did."""
    system, from_path = _path(session, source)
    _, to_path = _path(session, target)
    system.mkdirs(to_path.getParent())
    if system.exists(to_path):
        return False
    if system.rename(from_path, to_path):
        return True
    if system.exists(to_path):
        return False
    raise Unavailable(f"Could not move a finished file to {target}; try again.")
