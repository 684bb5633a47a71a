"""What a query is, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from holdfast.spark.pipeline.flow import Flow, Sources, Stage


@dataclass(frozen=True)
class ViewRequest:
    """The view that a writer's options ask for."""

    location: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    operator: int | None = None
    variable: str | None = None


@dataclass(frozen=True)
class QuerySpec:
    """What a query was started with."""

    flow: Flow
    native: DataFrame
    mode: str
    checkpoint: str
    trigger: Mapping[str, Any]
    name: str | None
    is_temporary: bool = False
    """Whether the checkpoint goes when the query ends well."""
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The session's settings at the start, under those that the writer's options say."""
    adds_aggregates: bool = False
    """Whether aggregates that the state does not know start empty."""
    takes_changed_columns: bool = False
    """Whether columns that the state goes by may be made of something else than before."""
    view: ViewRequest | None = None
    """The table that shows the state to other services, if there is one."""

    @cached_property
    def sources(self) -> Sources:
        """Where the rows come from."""
        return Sources(self.flow)

    @cached_property
    def source(self) -> DataFrame:
        """What Spark computes before any stage, as one stream."""
        return self.sources.stream

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stateful operators, in the order they run."""
        return self.flow.stages
