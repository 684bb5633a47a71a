"""transformWithState: the user's processor, run where the state is."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, DataFrame

from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.spark.operators.keyed import KeyedOperator, KeyedPlan, KeyedRows
from holdfast.spark.operators.operator import InitialLoad, TaskSettings, ViewSource
from holdfast.streams.clock import NO_TIME
from holdfast.streams.processors.arrow import ArrowProcessor, ArrowTask
from holdfast.streams.processors.forms import row_maker
from holdfast.streams.processors.handle import variables_of
from holdfast.streams.processors.pandas import PandasFrames
from holdfast.streams.processors.rows import RowObjects
from holdfast.streams.processors.variables import Variable, shapes_of, shown_variable
from holdfast.streams.tasks.processor import InitialTask, ProcessorTask, RowStyle
from holdfast.streams.tasks.task import Task
from holdfast.types import Schema, parse_schema


class Processing(KeyedOperator):
    """Calls a StatefulProcessor with the rows of each key, as Row objects."""

    title = "transformWithStateInPySparkExec"

    def __init__(
        self,
        plan: KeyedPlan,
        processor: Any,
        initial: tuple[DataFrame, tuple[Column, ...]] | None = None,
    ) -> None:
        super().__init__(plan)
        self._processor = processor
        self._handle = variables_of(processor, plan.time_mode)
        self._initial = initial
        if initial is not None:
            self._check_initial(KeyedRows(*initial).keys)
        self.needs_engine = plan.time_mode != NO_TIME or initial is not None
        self.dropped = tuple(self._handle.deleted)

    def _check_initial(self, keys: Schema) -> None:
        """Reject initial state whose keys have other types: the hash of a key depends on them."""
        ours = [field.type for field in self._rows.keys]
        if [field.type for field in keys] != ours:
            raise InvalidArgument(
                f"The initial state is grouped by ({keys.ddl()}), but the stream by "
                f"({self._rows.keys.ddl()}). Cast its columns to the stream's types."
            )

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        has_time = self._time_mode != NO_TIME
        return shapes_of(self._handle.variables, self._rows.keys, has_time=has_time)

    def shown(self, variable: str | None) -> ViewSource:
        return ViewSource(shown_variable(self._handle.variables, variable))

    def task(self, settings: TaskSettings) -> Task:
        return self._task(settings, self._rows)

    def _task(self, settings: TaskSettings, rows: KeyedRows) -> ProcessorTask:
        assert settings.outbox is not None
        return ProcessorTask(
            stores=settings.stores,
            base_version=settings.base_version,
            processor=self._processor,
            keys=rows.key_names,
            rows=self._style(rows, settings),
            clock=self._clock(settings),
            outbox=settings.outbox,
            query=settings.query,
            event_time=self._output_time,
        )

    def _style(self, rows: KeyedRows, settings: TaskSettings) -> RowStyle:
        return RowObjects(rows.columns, self._output_schema, settings.zone, row_maker)

    def initial(self, settings: TaskSettings, partitions: int) -> InitialLoad | None:
        if self._initial is None:
            return None
        frame, groupings = self._initial
        rows = KeyedRows(frame, groupings)
        task = InitialTask(self._task(settings, rows))
        return InitialLoad(task, rows.frame(frame, partitions))


class ArrowProcessing(KeyedOperator):
    """Calls a function with chunks of keys, their rows and their state, as Arrow tables."""

    title = "transformWithStateInArrow"

    def __init__(
        self,
        plan: KeyedPlan,
        processor: ArrowProcessor,
        state: Schema,
    ) -> None:
        super().__init__(plan)
        self._processor = processor
        self._state = state
        self.by_clock = False

    def ticks(self, mode: str) -> bool:
        return False

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        variable = Variable(DEFAULT_STORE_NAME, "value", self._state)
        return {DEFAULT_STORE_NAME: variable.shape(self._rows.keys)}

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        return ArrowTask(
            store=settings.store,
            base_version=settings.base_version,
            processor=self._processor,
            keys=self._rows.key_names,
            columns=self._rows.columns,
            state=self._state,
            output=self._output_schema,
            clock=self._clock(settings),
            outbox=settings.outbox,
        )


def arrow_state(schema: Any) -> Schema:
    """The state columns of an Arrow processor."""
    state = parse_schema(schema)
    state.check_value()
    return state


class PandasProcessing(Processing):
    """Calls a StatefulProcessor with the rows of each key, as DataFrames."""

    title = "transformWithStateInPandasExec"

    def _style(self, rows: KeyedRows, settings: TaskSettings) -> RowStyle:
        return PandasFrames(
            rows.columns, self._output_schema, settings.zone, limits=settings.frame_limits
        )
