"""Sinks of simulated streams: the product's own, told to fail at times, heard by the journal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.spark.sinks.files import FileSink
from holdfast.spark.sinks.sink import FunctionSink, OutputBatch
from simulation.threads import Event
from simulation.world import CHECKPOINT, OUT, Application


class SinkFailure(RuntimeError):
    """The user's function, or what it writes to, failed."""


@contextmanager
def failing(application: Application, *more: Event) -> Iterator[Event]:
    """Have a sink fail at times, before it has taken rows or after that; `more` are returned."""
    events = (Event.SINK_FAILS, Event.SINK_FAILS_LATE, *more)
    event = application.world.scheduler.step("sink", *events)
    if event is Event.SINK_FAILS:
        raise SinkFailure("The sink failed on purpose.")
    yield event
    if event is Event.SINK_FAILS_LATE:
        raise SinkFailure("The sink failed on purpose, after it had taken the rows.")


class RecordingFunction(FunctionSink):
    """A function that tells the journal what it got, fails at times, or stops its query."""

    def __init__(self, application: Application) -> None:
        super().__init__(self._take)
        self._application = application
        self._batch: OutputBatch

    def deliver(self, frame: Any, batch: OutputBatch) -> None:
        self._batch = batch
        super().deliver(frame, batch)
        self._application.world.journal.delivered(batch)

    def _take(self, frame: Any, batch_id: int) -> None:
        application, batch = self._application, self._batch
        application.job("rows of the sink")
        rows = frame.rows()
        with failing(application, Event.SINK_STOPS) as event:
            application.world.journal.got(application, batch, rows)
            if event is Event.SINK_STOPS and application.stop_query is not None:
                application.stop_query()


class RecordingFiles(FileSink):
    """Files, of which the journal knows what is in them."""

    def __init__(self, application: Application) -> None:
        super().__init__(OUT, "json", {}, [], CHECKPOINT)
        self._application = application

    def deliver(self, frame: Any, batch: OutputBatch) -> None:
        with failing(self._application):
            super().deliver(frame, batch)
        world = self._application.world
        world.journal.delivered(batch)
        world.journal.check_files(world.files.texts, OUT, is_end=False)
