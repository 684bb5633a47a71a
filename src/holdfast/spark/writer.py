"""`writeStream` of a stateful stream: sink, mode, trigger, options, start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.conf import StateStoreConf, setting_of_option
from holdfast.errors import InvalidArgument
from holdfast.spark.interop import seam
from holdfast.spark.operators.aggregation import SessionAggregation
from holdfast.spark.pipeline.flow import Flow
from holdfast.spark.pipeline.spec import QuerySpec
from holdfast.spark.running.query import StatefulQuery
from holdfast.spark.running.start import start_query
from holdfast.spark.sinks.checks import (
    Checkpoint,
    check_kafka,
    check_query_name,
    check_recovery,
    check_sink,
    checkpoint_of,
)
from holdfast.spark.sinks.files import FileSink, TableSink
from holdfast.spark.sinks.foreach import ForeachSink
from holdfast.spark.sinks.sink import (
    ConsoleSink,
    FunctionSink,
    KafkaSink,
    MemorySink,
    NoopSink,
    Sink,
)
from holdfast.spark.sinks.tables import FILE_FORMATS, open_table
from holdfast.spark.state.pairing import spark_checkpoint
from holdfast.spark.state.stored import newest_state
from holdfast.spark.view import take_view_request

_OUTPUT_MODES = ("append", "update", "complete")
_OTHER_TRIGGERS = ("continuous", "realTime")


class StatefulStreamWriter:
    """As DataStreamWriter."""

    def __init__(self, native: DataFrame, flow: Flow) -> None:
        self._native = native
        self._flow = flow
        self._mode = "append"
        self._format: str | None = None
        self._options: dict[str, str] = {}
        self._trigger: dict[str, Any] = {}
        self._name: str | None = None
        self._partition_by: list[str] = []
        self._cluster_by: list[str] = []
        self._consumer: Any = None
        """What foreachBatch or foreach was called with, whichever was called last."""
        self._consumer_kind: str | None = None

    def outputMode(self, outputMode: str) -> StatefulStreamWriter:
        """append, update or complete."""
        if outputMode.lower() not in _OUTPUT_MODES:
            raise InvalidArgument(
                f"The output mode must be one of {', '.join(_OUTPUT_MODES)}, not {outputMode!r}."
            )
        self._mode = outputMode.lower()
        return self

    def format(self, source: str) -> StatefulStreamWriter:
        """The kind of sink, such as console, parquet or kafka."""
        self._format = source
        return self

    def option(self, key: str, value: Any) -> StatefulStreamWriter:
        """Set an option of the query or its sink; None leaves it unset."""
        self._options.pop(key, None)
        if value is not None:
            self._options[key] = str(value).lower() if isinstance(value, bool) else str(value)
        return self

    def options(self, **options: Any) -> StatefulStreamWriter:
        """Set several options."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def queryName(self, queryName: str) -> StatefulStreamWriter:
        """The query's name, which is also the name of the memory sink's view."""
        self._name = queryName
        return self

    def partitionBy(self, *cols: Any) -> StatefulStreamWriter:
        """The columns that partition the folders of files."""
        self._partition_by = _listed(cols)
        self._layout()
        return self

    def clusterBy(self, *cols: Any) -> StatefulStreamWriter:
        """The columns that a table made by toTable is clustered by; other sinks ignore them."""
        self._cluster_by = _listed(cols)
        self._layout()
        return self

    def _layout(self) -> DataStreamWriter:
        """Spark's writer with our columns; raises Spark's error for what cannot go together."""
        writer = self._native.writeStream
        if self._partition_by:
            writer = writer.partitionBy(*self._partition_by)
        if self._cluster_by:
            writer = writer.clusterBy(*self._cluster_by)
        return writer

    def trigger(self, **trigger: Any) -> StatefulStreamWriter:
        """processingTime, once or availableNow; raises Spark's errors for their values."""
        given = {name: value for name, value in trigger.items() if value is not None}
        if len(given) == 1 and (name := next(iter(given))) in _OTHER_TRIGGERS:
            raise InvalidArgument(
                f"The trigger {name} is not supported on stateful streams. Use processingTime, "
                "once or availableNow."
            )
        self._native.writeStream.trigger(**trigger)
        self._trigger = given
        return self

    def foreachBatch(self, func: Callable[[DataFrame, int], None]) -> StatefulStreamWriter:
        """Call `func(rows, batch_id)` for each version.

        Batch ids count from 0 as in Spark. After a crash the newest batch is repeated with the
        same id and the same rows. In a checkpoint of an early release, which did not store batch
        ids, they continue from the version numbers, which begin with 1.
        """
        return self._consumed("foreachBatch", func)

    def foreach(self, f: Any) -> StatefulStreamWriter:
        """As DataStreamWriter.foreach: a function of a row, or an object with process(row).

        Raises Spark's error for anything else.
        """
        self._native.writeStream.foreach(f)
        return self._consumed("foreach", f)

    def _consumed(self, kind: str, consumer: Any) -> StatefulStreamWriter:
        self._consumer, self._consumer_kind, self._format = consumer, kind, kind
        return self

    def start(
        self,
        path: str | None = None,
        format: str | None = None,  # noqa: A002 - PySpark's name
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StatefulQuery | StreamingQuery:
        """Start the query. Without a stateful operator it is a plain Spark query."""
        self._set(format, outputMode, partitionBy, queryName, options)
        if path is not None:
            self.option("path", path)
        if not self._flow.stages:
            return self._native_writer().start()
        kind = self._kind
        return self._start(kind, lambda checkpoint, rest: self._sink(kind, checkpoint, rest))

    def toTable(
        self,
        tableName: str,
        format: str | None = None,  # noqa: A002 - PySpark's name
        outputMode: str | None = None,
        partitionBy: str | list[str] | None = None,
        queryName: str | None = None,
        **options: Any,
    ) -> StatefulQuery | StreamingQuery:
        """Start the query into a table of files, created if it does not exist; append mode only."""
        self._set(format, outputMode, partitionBy, queryName, options)
        if not self._flow.stages:
            return self._native_writer().toTable(tableName)
        kind = self._kind if self._kind in FILE_FORMATS else "parquet"

        def table_sink(checkpoint: Checkpoint, rest: dict[str, str]) -> Sink:
            table = open_table(
                self._native.sparkSession,
                tableName,
                self._native.schema,
                self._format,
                self._partition_by,
                _take(rest, "path"),
                self._cluster_by,
            )
            return TableSink(table, rest, checkpoint.location)

        return self._start(kind, table_sink)

    def _set(
        self,
        kind: str | None,
        mode: str | None,
        partition_by: str | list[str] | None,
        name: str | None,
        options: dict[str, Any],
    ) -> None:
        self.options(**options)
        if kind is not None:
            self.format(kind)
        if mode is not None:
            self.outputMode(mode)
        if partition_by is not None:
            self.partitionBy(partition_by)
        if name is not None:
            self.queryName(name)

    @property
    def _kind(self) -> str:
        if self._format in ("foreach", "foreachBatch"):
            return self._format
        default = str(self._native.sparkSession.conf.get("spark.sql.sources.default"))
        return (self._format or default).lower()

    def _start(
        self, kind: str, make_sink: Callable[[Checkpoint, dict[str, str]], Sink]
    ) -> StatefulQuery:
        session, schema = self._native.sparkSession, self._native.schema
        check_query_name(session, self._name)
        check_sink(session, kind, self._mode, self._name, schema, self._partition_by)
        self._check_supported()
        rest = dict(self._options)
        own = _take_settings(rest)
        settings = {**session.conf.getAll, **own}
        adds_aggregates = _take_word(rest, "newAggregates", "empty")
        takes_changed_columns = _take_word(rest, "changedColumns", "accept")
        view = take_view_request(lambda name: _take(rest, name), own, settings)
        given = _take(rest, "checkpointLocation")
        checkpoint = checkpoint_of(session, given, self._name, kind)
        place = checkpoint.location
        found = spark_checkpoint(session, place)
        found.check_not_native(lambda: newest_state(session, place, settings))
        check_recovery(session, checkpoint, kind, self._mode)
        sink = make_sink(checkpoint, rest)
        spec = QuerySpec(
            flow=self._flow,
            native=self._native,
            mode=self._mode,
            checkpoint=checkpoint.location,
            is_temporary=checkpoint.is_temporary,
            trigger=self._trigger,
            name=self._name,
            settings=settings,
            adds_aggregates=adds_aggregates,
            takes_changed_columns=takes_changed_columns,
            view=view,
        )
        return start_query(spec, sink)

    def _check_supported(self) -> None:
        """Apply Spark's rules for operators and modes.

        Sessions in update mode, which Spark does not have, are checked as in another mode.
        """
        sessions = [
            s.operator for s in self._flow.stages if isinstance(s.operator, SessionAggregation)
        ]
        mode = self._mode
        if mode == "update" and sessions:
            mode = "append" if all(s.key_index is not None for s in sessions) else "complete"
        seam.plans.check_supported(self._native, mode)

    def _native_writer(self) -> DataStreamWriter:
        if any(name.lower() == "view" for name in self._options):
            raise InvalidArgument(
                "The option view needs a stateful operator, and this stream has none."
            )
        rest = dict(self._options)
        StateStoreConf.from_spark(_take_settings(rest))
        writer = self._layout().outputMode(self._mode).options(**rest)
        if self._format is not None and self._format == self._consumer_kind:
            writer = getattr(writer, self._format)(self._consumer)
        elif self._format is not None:
            writer = writer.format(self._format)
        if self._name is not None:
            writer = writer.queryName(self._name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer

    def _sink(self, kind: str, checkpoint: Checkpoint, options: dict[str, str]) -> Sink:
        if kind in ("foreach", "foreachBatch"):
            if kind != self._consumer_kind:
                raise InvalidArgument(f"The sink {kind} needs what it calls: use .{kind}(…).")
            return (ForeachSink if kind == "foreach" else FunctionSink)(self._consumer)
        if kind == "noop":
            return NoopSink()
        if kind == "console":
            return ConsoleSink({key.lower(): value for key, value in options.items()})
        if kind == "memory":
            assert self._name is not None
            return MemorySink(self._name, self._mode == "complete")
        if kind == "kafka":
            check_kafka(self._native.sparkSession, self._native.schema, options)
            return KafkaSink(options)
        if kind in FILE_FORMATS:
            path = _take(options, "path")
            if path is None:
                raise InvalidArgument(f"The {kind} sink needs a path: call .start(path).")
            return FileSink(path, kind, options, self._partition_by, checkpoint.location)
        raise InvalidArgument(
            f"The sink {self._format!r} is not supported: use foreachBatch, foreach, console, "
            f"memory, noop, kafka or one of {', '.join(FILE_FORMATS)}."
        )


def _listed(cols: tuple[Any, ...]) -> list[Any]:
    """Columns that are given one by one, or as one list."""
    return list(cols[0] if len(cols) == 1 and isinstance(cols[0], (list, tuple)) else cols)


def _take_settings(options: dict[str, str]) -> dict[str, str]:
    """Remove the options that are settings, and return them by their names in a session."""
    names = {key: setting_of_option(key) for key in options}
    return {name: options.pop(key) for key, name in names.items() if name is not None}


def _take(options: dict[str, str], name: str) -> str | None:
    """Remove an option, compared without case, and return its value."""
    found = [key for key in options if key.lower() == name.lower()]
    values = [options.pop(key) for key in found]
    return values[-1] if values else None


def _take_word(options: dict[str, str], name: str, word: str) -> bool:
    """Remove an option whose only valid value is `word`; return whether it was set."""
    given = _take(options, name)
    if given not in (None, word):
        raise InvalidArgument(f"{name} must be {word}, not {given!r}.")
    return given is not None
