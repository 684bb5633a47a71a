"""The watermarks of a query, by Spark's rules.

A version has three. Rows at or below `late` are dropped, and state at or below `evict` is evicted.
`next` is what the event times of its own rows lead to; the next version evicts by it. So a batch
never evicts by its own event times, and `late` is the `evict` of the version before: a row is
dropped only when its group may already have been delivered. All are in ms and never decrease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The watermarks of one version.

    `inputs` has the watermark of each withWatermark in the query, and `policy` ("min" or "max")
    combines them. With "min", an input without rows holds the watermark back.
    """

    late_ms: int = 0
    evict_ms: int = 0
    next_ms: int = 0
    policy: str = "min"
    inputs: tuple[int, ...] = field(default=())
    clock_ms: int = 0
    """The time of the version by the clock; it never decreases."""

    def following(self, now_ms: int = 0) -> Watermarks:
        """The watermarks of the next version, which runs at `now_ms` by the clock."""
        return replace(
            self,
            late_ms=self.evict_ms,
            evict_ms=self.next_ms,
            clock_ms=max(self.clock_ms, now_ms),
        )

    def waiting(self, now_ms: int) -> Watermarks:
        """The same watermarks at a later time, for a version that must not change them."""
        return replace(self, clock_ms=max(self.clock_ms, now_ms))

    def restarted(self) -> Watermarks:
        """The watermarks for the first batch of a run, whose inputs restart from 0, as in Spark.

        The query's combined watermark stays: it holds for all of its runs.
        """
        return replace(self, inputs=())

    def observed(self, largest_ms: Sequence[int | None], delays_ms: Sequence[int]) -> Watermarks:
        """The watermarks after a batch whose inputs had event times up to `largest_ms`.

        None stands for an input without rows. If the query has another number of inputs than
        before, they restart from 0, as in Spark; the query's combined watermark does not.
        """
        same = len(self.inputs) == len(delays_ms)
        known = self.inputs if same else (0,) * len(delays_ms)
        inputs = tuple(
            before if largest is None else max(before, largest - delay)
            for before, largest, delay in zip(known, largest_ms, delays_ms, strict=True)
        )
        if not inputs:
            return self
        chosen = min(inputs) if self.policy == "min" else max(inputs)
        return replace(self, next_ms=max(self.next_ms, chosen), inputs=inputs)

    @property
    def late_us(self) -> int:
        """`late_ms` in the unit of Spark's timestamps."""
        return self.late_ms * 1000

    @property
    def evict_us(self) -> int:
        """`evict_ms` in the unit of Spark's timestamps."""
        return self.evict_ms * 1000

    @property
    def is_tick_due(self) -> bool:
        """Whether a version without data would evict by a later watermark than this one."""
        return self.next_ms > self.evict_ms

    def json(self) -> dict[str, Any]:
        """The watermarks as a manifest stores them."""
        return {
            "late_ms": self.late_ms,
            "evict_ms": self.evict_ms,
            "next_ms": self.next_ms,
            "policy": self.policy,
            "inputs": list(self.inputs),
            "clock_ms": self.clock_ms,
        }

    @classmethod
    def of(cls, body: Mapping[str, Any] | None) -> Watermarks:
        """The watermarks that a manifest stores; all 0 if it has none."""
        return cls() if body is None else cls.from_json(body)

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Watermarks:
        """What `json` wrote."""
        return cls(
            body["late_ms"],
            body["evict_ms"],
            body["next_ms"],
            body["policy"],
            tuple(body["inputs"]),
            body.get("clock_ms", 0),
        )
