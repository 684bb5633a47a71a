"""What a query is, before it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from holdfast.spark.operators import Stage
from holdfast.spark.viewing import ViewWish


@dataclass(frozen=True)
class QuerySpec:
    """What a query was started with."""

    source: DataFrame
    native: DataFrame
    stages: tuple[Stage, ...]
    mode: str
    checkpoint: str
    state_location: str | None
    trigger: Mapping[str, Any]
    name: str | None
    is_temporary: bool = False
    """Whether the checkpoint goes when the query ends well."""
    metrics_port: str | None = None
    adds_aggregates: bool = False
    """Whether aggregates that the state does not know start empty."""
    view: ViewWish | None = None
    """The table that shows the state to other services, if there is one."""
