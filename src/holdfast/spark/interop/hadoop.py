"""Files of a sink or a checkpoint through Hadoop's file systems, so that paths mean what they do
to Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from holdfast.errors import IllegalState, Unavailable
from holdfast.spark.interop import local_names
from holdfast.spark.interop.classes import java_class

_PATH = "org.apache.hadoop.fs.Path"


def _path(session: SparkSession, location: str) -> tuple[Any, Any]:
    """The file system of a location, and the location with its scheme."""
    path = java_class(session, _PATH)(location)
    system = path.getFileSystem(_configuration(session))
    return system, system.makeQualified(path)


def _configuration(session: SparkSession) -> Any:
    return session._jsparkSession.sessionState().newHadoopConf()


def setting(session: SparkSession, name: str) -> str | None:
    """One of Hadoop's settings as Spark has it, None where it is not set or empty."""
    return _configuration(session).get(name) or None


def read_text(session: SparkSession, location: str) -> str | None:
    """A small text file, or None when there is none."""
    if (local := local_path(location)) is not None:
        try:
            return Path(local).read_text("utf-8")
        except FileNotFoundError:
            return None
    system, path = _path(session, location)
    if not system.exists(path):
        return None
    utils = java_class(session, "org.apache.commons.io.IOUtils")
    stream = system.open(path)
    try:
        return str(utils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def local_path(location: str) -> str | None:
    """The path of a qualified location on the local disk, None for one elsewhere."""
    if not location.startswith("file:/"):
        return None
    return "/" + location.removeprefix("file:").lstrip("/")


def qualified(session: SparkSession, location: str) -> str:
    """A path with the scheme and host that Spark takes it to have."""
    return str(path(session, location).toString())


def location_of(session: SparkSession, uri: Any) -> str:
    """The location that a java.net.URI means, which has escapes where Hadoop's paths have none."""
    return str(java_class(session, _PATH)(uri).toString())


def path(session: SparkSession, location: str) -> Any:
    """A location as a path of Hadoop's, with its scheme."""
    return _path(session, location)[1]


def exists(session: SparkSession, location: str) -> bool:
    """Whether there is a file or folder."""
    system, path = _path(session, location)
    return bool(system.exists(path))


def make_folder(session: SparkSession, location: str) -> None:
    """Make a folder and those above it; one that is there is no error."""
    system, path = _path(session, location)
    system.mkdirs(path)


def delete(session: SparkSession, location: str) -> None:
    """Remove a file or folder with all in it; a missing one is no error."""
    system, path = _path(session, location)
    system.delete(path, True)


def files(session: SparkSession, location: str) -> list[str]:
    """Every file below a folder, relative to it, in name order."""
    system, path = _path(session, location)
    if not system.exists(path):
        return []
    folder = str(path.toString())
    found = []
    listed = system.listFiles(path, True)
    while listed.hasNext():
        found.append(below(folder, str(listed.next().getPath().toString())))
    return sorted(found)


def below(folder: str, file: str) -> str:
    """A file's path relative to a folder; both are qualified."""
    start = folder.rstrip("/") + "/"
    if not file.startswith(start):
        raise IllegalState(
            f"The file system lists {file}, which is not below {folder}. Name the folder by the "
            "address that the file system itself uses."
        )
    return file.removeprefix(start)


def list_names(session: SparkSession, location: str) -> list[str]:
    """The names of the files and folders right below a folder, in order."""
    system, path = _path(session, location)
    if not system.exists(path):
        return []
    return sorted(str(status.getPath().getName()) for status in system.listStatus(path))


def make_durable(session: SparkSession, location: str, names: Sequence[str]) -> None:
    """Have files below a folder survive a power failure, if they are on the local disk."""
    _, folder = _path(session, location)
    if folder.toUri().getScheme() == "file":
        local_names.sync_files(str(folder.toUri().getPath()), names)


def create_if_absent(session: SparkSession, location: str, text: str) -> bool:
    """Make a small text file, whole or not at all, unless there is one; whether it did."""
    if exists(session, location):
        return False
    folder, _, name = location.rpartition("/")
    temporary = f"{folder}/.{name}.{uuid4().hex}.tmp"
    system, path = _path(session, temporary)
    stream = system.create(path)
    try:
        stream.write(text.encode())
    finally:
        stream.close()
    try:
        return rename_if_absent(session, temporary, location)
    finally:
        system.delete(path, False)


def rename_if_absent(session: SparkSession, source: str, target: str) -> bool:
    """Give a file its final name; whether it did.

    False when the name is taken, or when someone else has renamed the source. Exactly one of
    several callers wins on a local disk and on HDFS. An object store has no such rename: there
    the target is looked for first. Raises Unavailable when the file has still to get its name.
    """
    system, from_path = _path(session, source)
    _, to_path = _path(session, target)
    system.mkdirs(to_path.getParent())
    if from_path.toUri().getScheme() == "file":
        # Hadoop's rename of a local file looks first, renames then, and syncs nothing.
        names = (str(each.toUri().getPath()) for each in (from_path, to_path))
        moved = local_names.link_if_absent(*names)
        if moved is not None:
            return moved
    failed = f"Could not move a finished file to {target}; try again."
    try:
        moved = _rename(session, system, from_path, to_path)
        is_left = not moved and system.exists(from_path) and not system.exists(to_path)
    except Py4JJavaError as error:
        raise Unavailable(failed) from error
    if is_left:
        raise Unavailable(failed)
    return moved


def _rename(session: SparkSession, system: Any, source: Any, target: Any) -> bool:
    option = java_class(session, "org.apache.hadoop.fs.Options$Rename")
    gateway: Any = session.sparkContext._gateway
    options = gateway.new_array(option, 0)
    context = java_class(session, "org.apache.hadoop.fs.FileContext")
    try:
        files = context.getFileContext(target.toUri(), _configuration(session))
    except Py4JJavaError as error:
        if _java_name(error) != "UnsupportedFileSystemException":
            raise
        return not system.exists(target) and bool(system.rename(source, target))
    try:
        files.rename(source, target, options)
    except Py4JJavaError as error:
        if _java_name(error) in ("FileAlreadyExistsException", "FileNotFoundException"):
            return False
        raise
    return True


def _java_name(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getSimpleName())
