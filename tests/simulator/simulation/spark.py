"""A model of Spark's micro-batch engine: its logs, its triggers, its status, its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.errors import StreamingQueryException

from holdfast.spark.interop.event_times import EventTimeStats
from simulation.frames import Cancelled, Frame, Interrupted
from simulation.operators import DELAY_MS, INPUT
from simulation.threads import Actor

if TYPE_CHECKING:
    from simulation.world import Application

_INITIALIZING = ("Initializing StreamExecution", "Initializing sources")
_WAITING, _OFFSETS, _WORKING = (
    "Waiting for data to arrive",
    "Getting offsets",
    "Processing new data",
)
_STOPPED, _FAILED = "Stopped", "Terminated with exception"


@dataclass
class Run:
    """What is known of a run of a query, however often Spark's part of it is started."""

    has_had_batch: bool = False
    """Whether a batch went well."""
    has_failed: bool = False
    """Whether a batch was given back with an error."""
    is_over: bool = False
    """Whether the user was told of its end."""


class StreamWriter:
    """What `writeStream` gives."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._function: Callable[[Any, int], None]
        self._checkpoint = ""
        self._trigger: dict[str, Any] = {}

    def foreachBatch(self, function: Callable[[Any, int], None]) -> StreamWriter:
        self._function = function
        return self

    def option(self, _: str, value: str) -> StreamWriter:
        self._checkpoint = value
        return self

    def outputMode(self, _: str) -> StreamWriter:
        return self

    def trigger(self, **trigger: Any) -> StreamWriter:
        self._trigger = trigger
        return self

    def start(self) -> ModelQuery:
        return ModelQuery(self._application, self._function, self._checkpoint, self._trigger)


class ModelQuery:
    """One run of a query. `batches` of the world's source are its data, a number of them a batch.

    As Spark does, it writes `offsets/N` before batch N and `commits/N` after it, each only if it
    is not there; a batch whose commit is missing comes again with the offsets that were written.
    """

    name = None

    def __init__(
        self,
        application: Application,
        function: Callable[[Any, int], None],
        checkpoint: str,
        trigger: dict[str, Any],
    ) -> None:
        self._application, self._function = application, function
        self._world, self._scheduler = application.world, application.world.scheduler
        self._checkpoint = checkpoint
        self._ends_by_itself = bool({"availableNow", "once"} & set(trigger))
        self._is_once = "once" in trigger
        self._message = _INITIALIZING[0]
        self._has_data = self._in_trigger = False
        self._is_stopping = False
        self._error: StreamingQueryException | None = None
        self._rows: list[tuple[int, int, int]] = []
        """Those of the batch under way."""
        self._position: int | None = None
        """How far the source was read, once that is known."""
        self._of = application.run
        self.id = self._metadata()
        self.runId = self._world.new_uuid()
        application.query = self
        self._actor: Actor = self._scheduler.spawn("stream", application, self._run)

    def _metadata(self) -> str:
        path, files = f"{self._checkpoint}/metadata", self._world.files
        if (text := files.read_text(path)) is None:
            files.create_if_absent(path, json.dumps({"id": self._world.new_uuid()}))
            text = files.read_text(path)
        assert text is not None
        return str(json.loads(text)["id"])

    # -- the stream's thread -------------------------------------------------------------------

    @property
    def is_current(self) -> bool:
        """Whether the stream's own thread asks."""
        return self._scheduler.running is self._actor

    def _run(self) -> None:
        try:
            self._run_triggers()
            self._end(_STOPPED)
        except Exception as error:
            if not self._is_end_of_stopped(error):
                self._error = StreamingQueryException(message=f"{type(error).__name__}: {error}")
            self._end(_STOPPED if self._error is None else _FAILED)

    def _is_end_of_stopped(self, error: Exception) -> bool:
        """Whether Spark takes an error for the end of a stopped query, and not for a failure."""
        is_interrupted = isinstance(error, Cancelled) or "InterruptedException" in str(error)
        return self._is_stopping and is_interrupted

    def _end(self, message: str) -> None:
        self._message, self._has_data, self._in_trigger = message, False, False
        self._scheduler.step("the stream ends")
        self._linger()

    def _linger(self) -> None:
        """Some sources take long to start, and to stop."""
        if pause_ms := self._scheduler.decisions.one_of((0, 60, 200)):
            self._scheduler.sleep(pause_ms)

    def _run_triggers(self) -> None:
        for self._message in _INITIALIZING:
            self._scheduler.step(self._message)
            self._linger()
        batch, position, replay = self._recovered()
        self._position = position
        target = len(self._world.source) if self._ends_by_itself else None
        while not self._is_stopping:
            self._in_trigger, self._message = True, _OFFSETS
            self._scheduler.step("trigger")
            text, replay = replay, None
            if text is None:
                text = self._planned(batch, position, target)
            if text is None:
                self._has_data, self._message = False, _WAITING
                self._scheduler.step("no data")
                self._in_trigger = False
                if self._ends_by_itself:
                    return
                self._wait_for_data(position)
                continue
            self._has_data, self._message = True, _WORKING
            position = self._run_batch(batch, position, text)
            self._position = position
            batch += 1
            self._in_trigger = False
            self._scheduler.step("trigger ends")
            if self._is_once:
                return

    def _wait_for_data(self, position: int) -> None:
        source = self._world.source
        self._scheduler.wait_for(lambda: self._is_stopping or len(source) > position)

    def _recovered(self) -> tuple[int, int, str | None]:
        """The next batch, where its data begins, and its offsets if it was planned before."""
        planned, done = self._log("offsets"), self._log("commits")
        if not planned:
            return 0, 0, None
        last = planned[-1]
        text = self._world.files.read_text(f"{self._checkpoint}/offsets/{last}")
        if done and done[-1] >= last:
            return last + 1, end_of(text), None
        before = self._world.files.read_text(f"{self._checkpoint}/offsets/{last - 1}")
        return last, 0 if before is None else end_of(before), text

    def _log(self, name: str) -> list[int]:
        return sorted(map(int, self._world.files.list_names(f"{self._checkpoint}/{name}")))

    def _planned(self, batch: int, position: int, target: int | None) -> str | None:
        """Plan the next batch, if there is data for one."""
        end = len(self._world.source) if target is None else target
        if end <= position:
            return None
        if not self._is_once:
            end = min(end, position + self._world.most_chunks)
        settings = {"batchWatermarkMs": 0, "batchTimestampMs": self._world.clock_ms()}
        text = f"v1\n{json.dumps(settings)}\n{json.dumps({'end': end})}"
        if not self._world.files.create_if_absent(f"{self._checkpoint}/offsets/{batch}", text):
            raise _concurrent(batch)
        return text

    def _run_batch(self, batch: int, position: int, text: str) -> int:
        end = end_of(text)
        self._rows = [row for chunk in self._world.source[position:end] for row in chunk]
        self._scheduler.step(f"batch {batch}")
        frame = Frame.of(self._application.session, INPUT, [list(self._rows)])
        try:
            self._function(frame, batch)
        except Exception as error:
            # A batch that waits while its query is stopped gives up, and is no failure: the tick
            # that it waits for is finished, and the next run gets the batch.
            self._of.has_failed = not self._is_end_of_stopped(error)
            raise
        self._of.has_had_batch = True
        self._scheduler.step(f"batch {batch} done")
        # The thread is interrupted by then, and a write that notices gives up.
        if self._is_stopping and self._scheduler.decisions.choose(2, 0.5):
            raise RuntimeError("java.lang.InterruptedException")
        if not self._world.files.create_if_absent(f"{self._checkpoint}/commits/{batch}", "v1\n{}"):
            raise _concurrent(batch)
        return end

    def check_cancelled(self) -> None:
        """Raise what a job raises whose query is being stopped, if it is cancelled in time."""
        if self._is_stopping and self.is_current and self._scheduler.decisions.choose(2, 0.5):
            raise Cancelled

    def event_time_stats(self) -> list[EventTimeStats]:
        """What the withWatermark of the query saw of the batch under way."""
        largest = max((moment for _, _, moment in self._rows), default=0)
        return [EventTimeStats(DELAY_MS, len(self._rows), largest)]

    # -- what StreamingQuery has ---------------------------------------------------------------

    @property
    def isActive(self) -> bool:
        return not self._is_stopping and not self._is_over

    @property
    def _is_over(self) -> bool:
        return self._actor.is_over

    @property
    def status(self) -> dict[str, Any]:
        self._scheduler.step("status")
        return {
            "message": self._message,
            "isDataAvailable": self._has_data,
            "isTriggerActive": self._in_trigger,
        }

    def exception(self) -> StreamingQueryException | None:
        return self._error

    def awaitTermination(self, timeout: int | None = None) -> bool | None:
        timeout_ms = None if timeout is None else timeout * 1000
        ended = self._scheduler.wait_for(lambda: self._is_over, timeout_ms)
        if self._error is not None:
            raise self._error
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:
        wanted = len(self._world.source)

        def is_done() -> bool:
            is_idle = self._message == _WAITING and not self._in_trigger
            return self._is_over or (is_idle and (self._position or 0) >= wanted)

        self._scheduler.wait_for(is_done)
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        self._scheduler.step("stop")
        self._is_stopping = True
        if self.is_current:  # a function that Spark's own thread calls: it would wait for itself
            raise Interrupted
        self._scheduler.wait_for(lambda: self._is_over)


def end_of(text: str | None) -> int:
    """Where a batch ends, by its entry in the offset log."""
    assert text is not None
    return int(json.loads(text.splitlines()[-1])["end"])


def _concurrent(batch: int) -> RuntimeError:
    return RuntimeError(
        f"[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs "
        f"detected for {batch}."
    )
