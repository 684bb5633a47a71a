"""The seam to Spark in a world: what the driver asks of Spark's JVM comes from the model of Spark.

Themes have what a simulated query calls; anything else of them is missing, and fails a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.spark.interop.model import EventTimeStats
from simulation.frames import Frame, Rdd, Session
from simulation.storage import SimulatedFiles

if TYPE_CHECKING:
    from simulation.spark import ModelQuery, StreamWriter


class Sessions:
    """One session for the user and the product; nobody has set anything."""

    def own_session(self, session: Session, partitions: int) -> Session:
        return session

    def session_key(self, session: Session) -> str:
        return "session"

    def application_setting(self, session: Session, name: str) -> str | None:
        return None

    def bytes_of(self, session: Session, text: str) -> int:
        return 1 << 30


class Frames:
    """Rows in lists: nothing is analysed, so frames are made anew each time."""

    def empty_frame(self, session: Session, schema: Any) -> Frame:
        return Frame.of(session, schema.names, [[]])

    def is_deterministic(self, frame: Frame) -> bool:
        return True

    def counts_every_row(self, frame: Frame) -> bool:
        return True

    def moved(self, frame: Frame, session: Session) -> Frame:
        return frame

    def identified(self, frame: Frame, like: Frame) -> Frame:
        return frame

    def filler(self, session: Session, frame: Frame, stand_ins: Sequence[Frame]) -> None:
        return None

    def observed_metrics(self, frame: Frame, prefix: str) -> list[list[int]]:
        return []

    def has_watermark(self, frame: Frame) -> bool:
        return True


class Tasks:
    """Raw partitions are lists of bytes."""

    def empty_rdd(self, session: Session, partitions: int) -> list[list[bytes]]:
        return [[] for _ in range(partitions)]

    def arrow_rdd(self, frame: Frame) -> Any:
        return frame.raw()

    def arrow_schema(self, frame: Frame) -> pa.Schema:
        return frame.arrow_schema()

    def python_rdd(self, session: Session, parts: Any) -> Rdd:
        return Rdd(session.application, parts)


class Queries:
    """Spark's query is the model of one."""

    def start(self, session: Session, checkpoint: object, writer: StreamWriter) -> ModelQuery:
        return writer.start()

    def source_names(self, frame: Frame) -> list[str]:
        return ["simulated"]

    def event_time_stats(self, query: ModelQuery) -> list[EventTimeStats]:
        return query.event_time_stats()


class Files:
    """The small files of a world, whichever session asks."""

    def __init__(self, files: SimulatedFiles) -> None:
        self._files = files

    def qualified(self, session: Session, location: str) -> str:
        return self._files.qualified(location)

    def local_path(self, location: str) -> str | None:
        return self._files.path(location)

    def read_text(self, session: Session, location: str) -> str | None:
        return self._files.read_text(location)

    def exists(self, session: Session, location: str) -> bool:
        return self._files.exists(location)

    def make_folder(self, session: Session, location: str) -> None:
        """A world has files alone."""

    def list_names(self, session: Session, location: str) -> list[str]:
        return self._files.list_names(location)

    def files(self, session: Session, location: str) -> list[str]:
        return self._files.files(location)

    def delete(self, session: Session, location: str) -> None:
        self._files.delete(location)

    def make_durable(self, session: Session, location: str, names: Sequence[str]) -> None:
        self._files.make_durable(location, names)

    def create_if_absent(self, session: Session, location: str, text: str) -> bool:
        return self._files.make(location, text)

    def rename_if_absent(self, session: Session, source: str, target: str) -> bool:
        return self._files.rename_if_absent(source, target)
