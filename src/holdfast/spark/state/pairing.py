"""Spark's checkpoint through Hadoop's file systems, as Spark itself reaches it."""

from __future__ import annotations

from functools import cached_property

from pyspark.sql import SparkSession

from holdfast.checkpoint import SparkCheckpoint
from holdfast.spark.interop import seam


class Folder:
    """A folder wherever Spark has file systems. Paths are relative to it."""

    def __init__(self, session: SparkSession, location: str) -> None:
        self._session, self._location = session, location

    @cached_property
    def _place(self) -> str:
        """With its scheme: files on the local disk are then read without a call of the JVM."""
        return seam.files.qualified(self._session, self._location)

    def read_text(self, path: str) -> str | None:
        """A small text file, or None when there is none."""
        return seam.files.read_text(self._session, f"{self._place}/{path}")

    def names(self, path: str) -> list[str]:
        """The names of the files and folders right below a folder, in order."""
        return seam.files.list_names(self._session, f"{self._place}/{path}".rstrip("/"))

    def create_if_absent(self, path: str, text: str) -> bool:
        """Make a small text file, whole or not at all, unless there is one; whether it did."""
        return seam.files.create_if_absent(self._session, f"{self._place}/{path}", text)

    def move(self, path: str, target: str) -> bool:
        """Give a small file another name; False where it is gone, or the other name is taken."""
        places = (f"{self._place}/{each}" for each in (path, target))
        return seam.files.rename_if_absent(self._session, *places)


def spark_checkpoint(session: SparkSession, location: str) -> SparkCheckpoint:
    """The checkpoint at a location, which means what it means to Spark."""
    return SparkCheckpoint(Folder(session, location), location)
