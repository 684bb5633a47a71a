"""A processor with a value, a map with TTL, and timers in event time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor

# Workers cannot import the modules of tests.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

OUTPUT = "k string, what string, total long"


class TimedTotals(StatefulProcessor):
    """Totals of a key, and a row ten seconds after each of its rows, in event time."""

    def init(self, handle: Any) -> None:
        self._handle = handle
        self._total = handle.getValueState("total", "total long")
        self._seen = handle.getMapState("seen", "v long", "n long", 86_400_000)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = self._total.get()[0] if self._total.exists() else 0
        for row in rows:
            total += row.v
            self._seen.updateValue((row.v,), (row.v,))
            # By the rows alone: whatever came in one batch, the same timers are there in the end.
            self._handle.registerTimer(int(row.ts.timestamp() * 1000) + 10_000)
        self._total.update((total,))
        yield Row(k=key[0], what="total", total=total)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        yield Row(k=key[0], what="timer", total=expiredTimerInfo.getExpiryTimeInMs())

    def close(self) -> None:
        pass
