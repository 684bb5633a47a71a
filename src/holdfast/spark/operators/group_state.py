"""applyInPandasWithState: the user's function with a GroupState, run where the state is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from holdfast.engine.partition.shape import StoreShape
from holdfast.spark.operators.columns import nullable
from holdfast.spark.operators.keyed import KeyedOperator, KeyedPlan
from holdfast.spark.operators.operator import TaskSettings, ViewSource
from holdfast.streams.processors.group_state import NewState
from holdfast.streams.processors.pandas import PandasFrames
from holdfast.streams.tasks.group_state import STATE, STORE, GroupStateTask, held_as
from holdfast.streams.tasks.task import Task
from holdfast.types import parse_schema


class GroupStates(KeyedOperator):
    """Calls a function with the rows of each key, as DataFrames, and the key's state."""

    title = "applyInPandasWithState"

    def __init__(
        self,
        plan: KeyedPlan,
        function: Callable[..., Any],
        state: StructType,
    ) -> None:
        super().__init__(plan)
        self._function = function
        self._state = nullable(state.fields)
        schema = parse_schema(self._state)
        schema.check_value()
        self._variable = held_as(schema)

    def stores(self, frame: DataFrame) -> dict[str, StoreShape]:
        return {STORE: self._variable.shape(self._rows.keys)}

    def shown(self, variable: str | None) -> ViewSource:
        return replace(super().shown(variable), store=STORE, values=(STATE,))

    def task(self, settings: TaskSettings) -> Task:
        assert settings.outbox is not None
        clock = self._clock(settings)
        return GroupStateTask(
            store=settings.stores[STORE],
            base_version=settings.base_version,
            function=self._function,
            new_state=NewState(clock, self._state),
            variable=self._variable,
            keys=self._rows.key_names,
            rows=PandasFrames(
                self._rows.columns,
                self._output_schema,
                settings.zone,
                is_wide=False,
                is_strict=True,
                limits=settings.frame_limits,
            ),
            clock=clock,
            outbox=settings.outbox,
        )
