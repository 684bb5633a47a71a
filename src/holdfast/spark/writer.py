"""`writeStream` of a stateful stream: sink, mode, trigger, options, start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import InvalidArgument
from holdfast.spark import jvm
from holdfast.spark.aggregation import SessionAggregation
from holdfast.spark.loop import QuerySpec
from holdfast.spark.operators import Stage
from holdfast.spark.query import StatefulQuery
from holdfast.spark.sinks import (
    FILE_FORMATS,
    ConsoleSink,
    FileSink,
    FunctionSink,
    MemorySink,
    NoopSink,
    Sink,
)

_OUTPUT_MODES = ("append", "update", "complete")


class StatefulStreamWriter:
    """As DataStreamWriter."""

    def __init__(
        self,
        source: DataFrame,
        native: DataFrame,
        stages: tuple[Stage, ...],
    ) -> None:
        self._source = source
        self._native = native
        self._stages = stages
        self._mode = "append"
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._trigger: dict[str, Any] = {}
        self._name: str | None = None
        self._partition_by: list[str] = []
        self._function: Callable[[DataFrame, int], None] | None = None

    def outputMode(self, outputMode: str) -> StatefulStreamWriter:
        """append, update or complete."""
        if outputMode.lower() not in _OUTPUT_MODES:
            raise InvalidArgument(
                f"The output mode is one of {', '.join(_OUTPUT_MODES)}, not {outputMode!r}."
            )
        self._mode = outputMode.lower()
        return self

    def format(self, source: str) -> StatefulStreamWriter:
        """The kind of sink."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StatefulStreamWriter:
        """An option of the query or its sink."""
        self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> StatefulStreamWriter:
        """Several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> StatefulStreamWriter:
        """The query's name; the memory sink's view is called by it."""
        self._name = queryName
        return self

    def partitionBy(self, *cols: Any) -> StatefulStreamWriter:
        """The columns files are laid out by."""
        listed = cols[0] if len(cols) == 1 and isinstance(cols[0], (list, tuple)) else cols
        self._partition_by = list(listed)
        return self

    def trigger(self, **trigger: Any) -> StatefulStreamWriter:
        """processingTime, once or availableNow."""
        known = ("processingTime", "once", "availableNow")
        if len(trigger) != 1 or next(iter(trigger)) not in known:
            raise InvalidArgument(
                f"The trigger is exactly one of {', '.join(known)}; {', '.join(trigger) or 'none'} "
                "is not supported on stateful streams."
            )
        self._trigger = trigger
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> StatefulStreamWriter:
        """Call `func(rows, version)` for each version."""
        self._function = func
        self._format = "foreachBatch"
        return self

    def start(self, path: str | None = None, **options: Any) -> StatefulQuery | StreamingQuery:
        """Start the query. Without a stateful operator it is a plain query of Spark's."""
        self.options(**options)
        if path is not None:
            self.option("path", path)
        if not self._stages:
            return self._start_native()
        self._check_supported()
        checkpoint = self._options.pop("checkpointLocation", None)
        if checkpoint is None:
            raise InvalidArgument(
                "A stateful stream needs a checkpoint: .option('checkpointLocation', path)."
            )
        location = self._options.pop("stateLocation", None)
        spec = QuerySpec(
            source=self._source,
            native=self._native,
            stages=self._stages,
            mode=self._mode,
            checkpoint=checkpoint.rstrip("/"),
            state_location=location,
            trigger=self._trigger,
            name=self._name,
            options=dict(self._options),
        )
        query = StatefulQuery(spec, self._sink())
        query.start()
        return query

    def _check_supported(self) -> None:
        """Spark's rules for operators and modes, but for sessions in update mode: it has none."""
        sessions = [s.operator for s in self._stages if isinstance(s.operator, SessionAggregation)]
        mode = self._mode
        if mode == "update" and sessions:
            mode = "append" if all(s.key_index is not None for s in sessions) else "complete"
        jvm.check_supported(self._native, mode)

    def _start_native(self) -> StreamingQuery:
        writer = self._native.writeStream.outputMode(self._mode).options(**self._options)
        if self._function is not None:
            writer = writer.foreachBatch(self._function)
        elif self._format is not None:
            writer = writer.format(self._format)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer.start()

    def _sink(self) -> Sink:
        options = {key.lower(): value for key, value in self._options.items()}
        kind = (self._format or "parquet").lower()
        if self._function is not None:
            return FunctionSink(self._function)
        if kind == "noop":
            return NoopSink()
        if kind == "console":
            return ConsoleSink(options)
        if kind == "memory":
            return self._memory_sink()
        if kind in FILE_FORMATS:
            return self._file_sink(kind)
        raise InvalidArgument(
            f"The sink {self._format!r} is not supported: use foreachBatch, console, memory, noop "
            f"or one of {', '.join(FILE_FORMATS)}."
        )

    def _memory_sink(self) -> MemorySink:
        if self._name is None:
            raise InvalidArgument("The memory sink needs .queryName(name): its view is called so.")
        return MemorySink(self._name, self._mode == "complete")

    def _file_sink(self, kind: str) -> FileSink:
        path = self._options.pop("path", None)
        if path is None:
            raise InvalidArgument(f"The {kind} sink needs a path: .start(path).")
        if self._mode != "append":
            raise InvalidArgument(
                f"The {kind} sink takes append mode only, not {self._mode}: a file cannot be "
                "updated."
            )
        return FileSink(path, kind, self._options, self._partition_by)
