"""Tasks that do something beside their work, for drivers that run in a process of their own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass

from pyspark import cloudpickle

from holdfast.spark.operators.aggregation import Aggregation
from holdfast.spark.operators.operator import TaskSettings
from holdfast.streams.tasks.task import StoreSpec, Task

# Executors cannot import what is in this folder.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@dataclass(frozen=True)
class WrappedTask:
    """A task around another one. A subclass has the `run`, which runs `task`."""

    task: Task

    @property
    def store(self) -> StoreSpec:
        return self.task.store

    @property
    def base_version(self) -> int:
        return self.task.base_version


def wrap_aggregations(wrap: Callable[[Task], Task]) -> None:
    """Have aggregations run what `wrap` makes of their tasks, in this process from now on."""
    plain = Aggregation.task

    def wrapped(self: Aggregation, settings: TaskSettings) -> Task:
        return wrap(plain(self, settings))

    Aggregation.task = wrapped  # type: ignore[method-assign]
