"""A user's processor or function in the form that a test driver runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import pyarrow as pa

from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.streams.clock import checked_time_mode
from holdfast.streams.processors.arrow import ArrowProcessor, ArrowTask
from holdfast.streams.processors.handle import fresh, variables_of
from holdfast.streams.processors.pandas import PandasFrames, pandas_for, to_pandas
from holdfast.streams.processors.rows import RowObjects
from holdfast.streams.processors.variables import TIMERS, Variable
from holdfast.streams.tasks.group_state import STORE, GroupStateTask, held_as
from holdfast.streams.tasks.processor import InitialTask, ProcessorTask, RowStyle
from holdfast.streams.tasks.task import Task
from holdfast.testing._keyed import KeyedSettings, KeyedWork
from holdfast.testing._work import (
    Work,
    WorkSettings,
    cells_of,
    group_state_maker,
    pyspark_row_maker,
    timeout_mode,
)
from holdfast.types import Row, Schema, one_array

Form = Literal["row", "pandas", "arrow", "group_state"]
FORMS: tuple[str, ...] = get_args(Form)
_STATE = "state"
"""What the state of a function is called."""


class ProcessorWork(KeyedWork):
    """Calls a processor with Rows for each key, and for each timer."""

    def __init__(self, settings: KeyedSettings, processor: Any) -> None:
        settings.check()
        super().__init__(settings, variables_of(processor, settings.mode).variables)
        self._processor = processor

    def task(self, setting: WorkSettings) -> ProcessorTask:
        """The task of one version."""
        return self._task(setting, self.schema)

    def initial(self, setting: WorkSettings, columns: Schema) -> Task:
        """The task that fills the state before the first rows."""
        return InitialTask(self._task(setting, columns))

    def _task(self, setting: WorkSettings, columns: Schema) -> ProcessorTask:
        return ProcessorTask(
            stores=setting.stores,
            base_version=setting.base_version,
            processor=fresh(self._processor),
            keys=self._key_names(columns),
            rows=self._style(columns),
            clock=self.clock(setting.marks, columns),
            outbox=setting.outbox,
            query=setting.query,
        )

    def _style(self, columns: Schema) -> RowStyle:
        settings = self._settings
        shown = self._columns(columns)
        return RowObjects(shown, settings.output, settings.zone, pyspark_row_maker)

    def shown(self, tables: list[pa.Table]) -> Any:
        """What came out, as Rows."""
        make = pyspark_row_maker(self._settings.output.names)
        return [make(cells) for table in tables for cells in cells_of(table)]


class FrameProcessorWork(ProcessorWork):
    """Calls a processor with DataFrames."""

    def _style(self, columns: Schema) -> RowStyle:
        return PandasFrames(self._columns(columns), self._settings.output, self._settings.zone)

    def shown(self, tables: list[pa.Table]) -> Any:
        """What came out, as a DataFrame."""
        return _frame(tables, self._settings.output, self._settings.zone)


class ArrowWork(KeyedWork):
    """Calls a function with chunks of keys, their rows and their state, as Arrow tables."""

    has_timers = False

    def __init__(self, settings: KeyedSettings, function: ArrowProcessor, state: Schema) -> None:
        super().__init__(
            settings, {DEFAULT_STORE_NAME: Variable(DEFAULT_STORE_NAME, "value", state)}
        )
        self._function = function
        self._state = state

    @property
    def by_clock(self) -> bool:
        """False: as in a stream, such a function has no timers."""
        return False

    @property
    def follows_watermark(self) -> bool:
        """False: as in a stream, such a function has no timers."""
        return False

    def store_of(self, name: str) -> str:
        """Its one store, which is also called "state"."""
        return DEFAULT_STORE_NAME if name == _STATE else name

    def task(self, setting: WorkSettings) -> ArrowTask:
        """The task of one version."""
        return ArrowTask(
            store=setting.stores[DEFAULT_STORE_NAME],
            base_version=setting.base_version,
            processor=self._function,
            keys=self._key_names(self.schema),
            columns=self._columns(self.schema),
            state=self._state,
            output=self._settings.output,
            clock=self.clock(setting.marks, self.schema),
            outbox=setting.outbox,
        )

    def shown(self, tables: list[pa.Table]) -> Any:
        """What came out, as an Arrow table."""
        schema = self._settings.output.arrow
        return pa.concat_tables([schema.empty_table(), *(table.cast(schema) for table in tables)])


class GroupStateWork(KeyedWork):
    """Calls a function with DataFrames and a GroupState."""

    has_timers = False

    def __init__(
        self, settings: KeyedSettings, function: Callable[..., Any], state: Schema
    ) -> None:
        super().__init__(settings, {STORE: held_as(state)})
        self._function = function
        self._state = state

    def store_of(self, name: str) -> str:
        """Its one store, which has the state and the timeouts."""
        return STORE if name in (DEFAULT_STORE_NAME, TIMERS, _STATE) else name

    def task(self, setting: WorkSettings) -> GroupStateTask:
        """The task of one version."""
        settings = self._settings
        clock = self.clock(setting.marks, self.schema)
        return GroupStateTask(
            store=setting.stores[STORE],
            base_version=setting.base_version,
            function=self._function,
            new_state=group_state_maker(clock, self._state),
            variable=self.variables[STORE],
            keys=self._key_names(self.schema),
            rows=PandasFrames(
                self._columns(self.schema),
                settings.output,
                settings.zone,
                is_wide=False,
                is_strict=True,
            ),
            clock=clock,
            outbox=setting.outbox,
        )

    def shown(self, tables: list[pa.Table]) -> Any:
        """What came out, as a DataFrame."""
        return _frame(tables, self._settings.output, self._settings.zone)

    def held(self, name: str, table: pa.Table) -> dict[Row, Any]:
        """The state of each key that has one; of timeouts, when each key times out."""
        width = len(self.grouping)
        rows = cells_of(table)
        if name == TIMERS:
            return {row[:width]: [(row[-1],)] for row in rows if row[-1] is not None}
        held = {row[:width]: row[width] for row in rows}
        return {key: tuple(cells.values()) for key, cells in held.items() if cells is not None}


def keyed_work(
    processor: Any, form: str | None, state: Schema | None, settings: KeyedSettings
) -> Work:
    """What runs a processor or a function. Raises InvalidArgument where the form does not fit."""
    is_processor = hasattr(processor, "handleInputRows")
    form = form or ("row" if is_processor else None)
    if form not in FORMS or is_processor != (form in ("row", "pandas")):
        raise InvalidArgument(
            "The form has to be 'row' or 'pandas' for a StatefulProcessor, and 'arrow' or "
            f"'group_state' for a function, not {form!r}."
        )
    if is_processor == (state is not None):
        raise InvalidArgument(
            "A processor asks for its state in init(): leave state_schema out."
            if is_processor
            else "A function needs the columns of its state, as in state_schema='n long'."
        )
    if form == "row":
        return ProcessorWork(settings, processor)
    if form == "pandas":
        return FrameProcessorWork(settings, processor)
    assert state is not None
    state.check_value()
    return (ArrowWork if form == "arrow" else GroupStateWork)(settings, processor, state)


def mode_of(form: str | None, time_mode: str) -> str:
    """A time mode in lower case; a function with a GroupState has a GroupStateTimeout instead."""
    if form != "group_state" or time_mode == "None":
        return checked_time_mode(time_mode)
    return timeout_mode(time_mode)


def _frame(tables: list[pa.Table], output: Schema, zone: str) -> Any:
    """Tables as one DataFrame, as PySpark converts them."""
    whole = pa.concat_tables([output.arrow.empty_table(), *tables])
    columns = {
        place: to_pandas(one_array(column), name, zone)
        for place, (name, column) in enumerate(zip(output.names, whole.columns, strict=True))
    }
    frame = pandas_for("A driver of DataFrames").DataFrame(columns)
    frame.columns = list(output.names)
    return frame
