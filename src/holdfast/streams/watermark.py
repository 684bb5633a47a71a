"""The watermarks of a query, by Spark's rules.

A version knows three: rows at or below `late` are dropped, state at or below `evict` goes, and
`next` is what its data brought about, used from the version after it. Late is the eviction
watermark of the version before. All are in ms and only grow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Watermarks:
    """Where a query's event time stands.

    `inputs` is the watermark of each withWatermark of the query; `policy` ("min" or "max") says
    how they make the query's. An input that has seen no row holds a "min" back.
    """

    late_ms: int = 0
    evict_ms: int = 0
    next_ms: int = 0
    policy: str = "min"
    inputs: tuple[int, ...] = field(default=())
    clock_ms: int = 0
    """The time of the version by the clock; it never steps back."""

    def following(self, now_ms: int = 0) -> Watermarks:
        """The watermarks the version after this one runs with, at a time by the clock."""
        return replace(
            self,
            late_ms=self.evict_ms,
            evict_ms=self.next_ms,
            clock_ms=max(self.clock_ms, now_ms),
        )

    def waiting(self, now_ms: int) -> Watermarks:
        """The same watermarks at a time by the clock: for a version that must not move them."""
        return replace(self, clock_ms=max(self.clock_ms, now_ms))

    def observed(self, largest_ms: Sequence[int | None], delays_ms: Sequence[int]) -> Watermarks:
        """After a batch in which each input saw event times up to `largest_ms` (None: no row).

        Where the query has another number of inputs than before, they begin anew, as in Spark; the
        query's own watermark stays where it is.
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
        """Whether a version without data would evict by a later watermark than the last one."""
        return self.next_ms > self.evict_ms

    def json(self) -> dict[str, Any]:
        """The watermarks as a manifest keeps them."""
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
        """Those of a version; none have come yet where it names none."""
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
