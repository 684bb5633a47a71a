"""Random processors with random input, each from a seed, for Spark's own APIs and for Holdfast."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any

import either_processors as either
import group_functions as groups
import pandas_processors as pandas_own
import processors as rows_own
import pyarrow as pa
from differential import KEYS, deck, double, moment, split_starts
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

_START_S = 1_700_000_000
_BATCH_S = 120
ROWS, FRAMES, GROUPS = "rows", "pandas", "group state"


@dataclass(frozen=True)
class CustomCase:
    """One processor with its input.

    `late_s` is how late rows may be, `nulls` the share of null cells, `sizes` the rows of each
    batch, `starts` how many batches each start of the query finds; `then` is what follows.
    """

    label: str
    seed: int
    api: str
    kind: str
    mode: str
    delay: str
    late_s: int
    nulls: float
    key: str
    partitions: int
    then: str
    sizes: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def cell(self) -> tuple[str, str]:
        """The API and the kind: what each plan has all of."""
        return self.api, self.kind

    @property
    def of(self) -> Kind:
        """The kind of processor."""
        return KINDS[self.cell]

    @property
    def restarts(self) -> str:
        """How often the query is started anew."""
        again = len(self.starts) - 1
        return "none" if again == 0 else "one" if again == 1 else "each batch"

    @property
    def schema(self) -> str:
        """The schema of the input, as DDL."""
        values = "v long, d decimal(12,2), s string, g string, ts timestamp"
        return f"x double, id {self.key_ddl}, {values}"

    @property
    def key_ddl(self) -> str:
        """The type of the first grouping column."""
        return KEYS["string" if self.key == TWO else self.key].ddl

    @property
    def keys(self) -> list[str]:
        """The grouping columns; two of them are not side by side in the input."""
        return ["id", "g"] if self.key == TWO else ["id"]

    @property
    def output(self) -> str:
        """The schema of what the processor gives."""
        return self.of.output.replace("{key}", self.key_ddl)

    @property
    def settings(self) -> dict[str, str]:
        """What the session is set to for this case.

        By the clock, versions without data would come at moments of their own: there are none.
        """
        has_clock = self.of.time in ("ProcessingTime", "ProcessingTimeTimeout")
        return {
            "spark.sql.shuffle.partitions": str(self.partitions),
            "spark.sql.streaming.noDataMicroBatches.enabled": str(not has_clock).lower(),
        }

    def json(self) -> dict[str, Any]:
        """The case as a recording keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> CustomCase:
        """What `json` gave."""
        return cls(**{**body, **{name: tuple(body[name]) for name in ("sizes", "starts")}})

    def __str__(self) -> str:
        return json.dumps(self.json())


# -- the kinds ---------------------------------------------------------------------------------

TWO = "two columns"


@dataclass(frozen=True)
class Kind:
    """A processor, and what it is run with.

    `time` is a time mode or a timeout; `variables` are the names of its state, a star behind
    those that are lists.
    """

    make: Callable[[], Any]
    variables: tuple[str, ...]
    time: str = "None"
    output: str = either.OUTPUT
    has_watermark: bool = True
    has_start: bool = False
    is_batch: bool = False
    is_chained: bool = False
    takes_nulls: bool = True
    state: str = ""
    """The columns of a GroupState."""
    modes: tuple[str, ...] = ("Update", "Append")
    keys: tuple[str, ...] = (*KEYS, TWO)


_LASTING = ("count", "items*", "counts", "plain")
_EITHER: dict[str, tuple[type[either.Either], dict[str, Any]]] = {
    "values": (either.Values, {"variables": ("count", "never")}),
    "lists": (either.Lists, {"variables": ("items*",)}),
    "maps": (either.Maps, {"variables": ("counts",)}),
    "types": (either.Types, {"variables": ("last", "all*", "by")}),
    "long TTL": (either.Lasting, {"variables": _LASTING, "time": "ProcessingTime"}),
    "short TTL": (either.Passing, {"variables": _LASTING, "time": "ProcessingTime"}),
    "event timers": (either.EventTimers, {"variables": ("state",), "time": "EventTime"}),
    "clock timers": (either.ClockTimers, {"variables": ("fired",), "time": "ProcessingTime"}),
    "start": (either.Seeded, {"variables": ("total", "seeds*", "by"), "has_start": True}),
    "start, timers": (
        either.SeededTimers,
        {"variables": ("total", "seeds*", "by"), "has_start": True, "time": "ProcessingTime"},
    ),
    "deletion": (either.Deleting, {"variables": ("kept",)}),
    "moments": (either.Moments, {"variables": ("least",)}),
    "moments by the clock": (either.Moments, {"variables": ("least",), "time": "ProcessingTime"}),
    "moments by events": (either.Moments, {"variables": ("least",), "time": "EventTime"}),
    "silent": (either.Silent, {"variables": ("state",)}),
    "large": (either.Large, {"variables": ("text", "items*", "by")}),
    "composite": (either.Composite, {"variables": ("count",), "output": either.COMPOSITE}),
    "window after": (
        either.Chained,
        {
            "variables": ("count",), "time": "EventTime", "output": either.CHAINED,
            "is_chained": True, "modes": ("Append",),
        },
    ),
    "no stream": (either.Maps, {"variables": (), "is_batch": True, "has_watermark": False}),
    "no stream, start": (
        either.Seeded,
        {"variables": (), "is_batch": True, "has_watermark": False, "has_start": True},
    ),
}  # fmt: skip


def _kinds() -> dict[tuple[str, str], Kind]:
    kinds: dict[tuple[str, str], Kind] = {}
    for name, (processor, more) in _EITHER.items():
        for api, frames in ((ROWS, False), (FRAMES, True)):
            kinds[api, name] = Kind(_maker(processor, frames), **more)
    own = {"output": rows_own.OUTPUT.replace("id string", "id {key}"), "takes_nulls": False}
    kinds[ROWS, "resets"] = Kind(rows_own.Resets, ("state",), **own)
    kinds[ROWS, "columns"] = Kind(either.Columns, ("state",))
    kinds[FRAMES, "columns"] = Kind(
        pandas_own.Columns, ("state",), output=pandas_own.OUTPUT, keys=("string",)
    )
    for name, (function, timeout, has_watermark) in groups.CASES.items():
        state = groups.TYPES if name == "types" else groups.STATE
        kinds[GROUPS, name] = Kind(
            lambda function=function: function,
            ("state",),
            timeout,
            groups.OUTPUT.replace("id string", "id {key}"),
            has_watermark,
            state=state,
            keys=("string", "long", "date") if name in ("columns", "counts") else (*KEYS, TWO),
        )
    return kinds


def _maker(processor: type[either.Either], frames: bool) -> Callable[[], Any]:
    return lambda: processor(frames)


KINDS = _kinds()


# -- the input ---------------------------------------------------------------------------------


def key_values(case: CustomCase) -> tuple[Any, ...]:
    """The few values of the first grouping column.

    NaN is one key, and so are both zeros, in Spark's own for GroupState alone.
    """
    values = KEYS["string" if case.key == TWO else case.key].values
    return values[2:] if case.key == "double" and case.api != GROUPS else values


def has_null_keys(case: CustomCase) -> bool:
    """Whether a key may be null: Spark's pandas API takes null for NaN, and NaN for no key."""
    return not (case.api == FRAMES and case.key in ("double", "long", "timestamp"))


def tables(case: CustomCase) -> Iterator[pa.Table]:
    """The batches of a case; the same for the same case."""
    rnd = random.Random(case.seed)
    arrow = KEYS["string" if case.key == TWO else case.key].arrow
    for number, size in enumerate(case.sizes):
        now = _START_S + number * _BATCH_S

        def cells(make: Callable[[], Any], n: int = size) -> list[Any]:
            return [None if rnd.random() < case.nulls else make() for _ in range(n)]

        def event_time(now: int = now) -> Any:
            late = rnd.randrange(case.late_s) if case.late_s and rnd.random() < 0.5 else 0
            second = now + rnd.randrange(_BATCH_S) - late
            on_grid = rnd.random() < 0.5
            if on_grid:
                return moment(second // 20 * 20, 0)
            return moment(second, rnd.randrange(1000) * 1000)

        def ids() -> list[Any]:
            found = cells(lambda: rnd.choice(key_values(case)))
            if has_null_keys(case):
                return found
            return [key_values(case)[0] if key is None else key for key in found]

        yield pa.table({
            "x": pa.array(cells(lambda: double(rnd)), pa.float64(), from_pandas=False),
            "id": pa.array(ids(), arrow, from_pandas=False),
            "v": pa.array(cells(lambda: rnd.randrange(-50, 50)), pa.int64()),
            "d": pa.array(
                cells(lambda: Decimal(rnd.randrange(-(10**9), 10**9)) / 100), pa.decimal128(12, 2)
            ),
            "s": pa.array(cells(lambda: rnd.choice(["", "a", "zz", "ö"])), pa.string()),
            "g": pa.array([rnd.choice("pq") for _ in range(size)], pa.string()),
            "ts": pa.array([event_time() for _ in range(size)], pa.timestamp("us", tz="UTC")),
        })  # fmt: skip


def seeds(case: CustomCase) -> list[tuple[Any, ...]]:
    """The rows the state starts with: several for some keys, some for keys without input."""
    rnd = random.Random(case.seed + 1)
    values = (*key_values(case), *([None] if has_null_keys(case) else []))
    return [(rnd.randrange(1000), rnd.choice(values), rnd.choice("pr")) for _ in range(6)]


def seed_schema(case: CustomCase) -> str:
    """The columns of `seeds`; those of the key are not the first."""
    return f"total long, id {case.key_ddl}, g string"


# -- the queries -------------------------------------------------------------------------------


def pipeline(spark: SparkSession, case: CustomCase) -> Callable[[Any], Any]:
    """The query of a case, for a DataFrame and for what `stateful` makes of one."""
    kind = case.of

    def build(frame: Any) -> Any:
        rows = frame if kind.takes_nulls else frame.filter("v is not null")
        rows = rows.withWatermark("ts", case.delay) if kind.has_watermark else rows
        if case.kind == "columns":
            rows = rows.selectExpr("*", "int(v) narrow", "float(x) small", "v > 0 positive")
        grouped = rows.groupBy(*case.keys)
        if case.api == GROUPS:
            made = grouped.applyInPandasWithState(
                kind.make(), case.output, kind.state, case.mode, kind.time
            )
        else:
            method = "transformWithState" + ("InPandas" if case.api == FRAMES else "")
            made = getattr(grouped, method)(
                kind.make(),
                case.output,
                case.mode,
                kind.time,
                _start(spark, case),
                "at" if kind.is_chained else "",
            )
        return _then(made, case)

    return build


def _start(spark: SparkSession, case: CustomCase) -> Any:
    if not case.of.has_start:
        return None
    return spark.createDataFrame(seeds(case), seed_schema(case)).groupBy(*case.keys)


def _then(made: Any, case: CustomCase) -> Any:
    if case.of.is_chained:
        return made.groupBy(F.window("at", "1 minute"), "id").agg(
            F.count("*").alias("c"), F.sum("n").alias("s")
        )
    if case.then == "select":
        return made.select(F.to_json(F.struct("what")).alias("json"), (F.col("n") + 1).alias("m"))
    return made


# -- the plan ----------------------------------------------------------------------------------

CELLS = list(KINDS)
DELAYS = ("0 seconds", "1 minute", "10 minutes")
LATE_S = (0, 200, 3600)
NULLS = (0.0, 0.15, 0.6)
RESTARTS = ("none", "one", "each batch")


def plan(seed: int, count: int) -> list[CustomCase]:
    """`count` cases: every API and kind with every other setting about equally often."""
    rnd = random.Random(seed)
    decks = {name: deck(rnd, values) for name, values in (
        ("delay", DELAYS), ("late", LATE_S), ("nulls", NULLS), ("restarts", RESTARTS),
        ("then", ("", "", "select")), ("partitions", (1, 2, 2)),
    )}  # fmt: skip
    modes = {cell: deck(rnd, KINDS[cell].modes) for cell in CELLS}
    keys = deck(rnd, (*KEYS, TWO, "string", "string", "string", "long"))
    return [
        _case(rnd, f"{seed}/{number}", cell, decks, modes[cell], keys)
        for number, cell in zip(range(count), deck(rnd, CELLS), strict=False)
    ]


def _case(
    rnd: random.Random,
    label: str,
    cell: tuple[str, str],
    decks: dict[str, Iterator[Any]],
    modes: Iterator[str],
    keys: Iterator[str],
) -> CustomCase:
    kind = KINDS[cell]
    batches = 1 if kind.is_batch else rnd.choice([3, 3, 4])
    is_plain = kind.output == either.OUTPUT or kind.state != ""
    then = next(decks["then"]) if is_plain else ""
    late_s = next(decks["late"])
    return CustomCase(
        label=label,
        seed=rnd.randrange(10**9),
        api=cell[0],
        kind=cell[1],
        mode=next(modes),
        delay=next(decks["delay"]),
        late_s=late_s,
        nulls=next(decks["nulls"]),
        key=next(key for key in keys if key in kind.keys),
        partitions=next(decks["partitions"]),
        then=then,
        sizes=tuple(rnd.randrange(1, 16) for _ in range(batches)),
        starts=split_starts(rnd, "none" if kind.is_batch else next(decks["restarts"]), batches),
    )


def coverage(cases: list[CustomCase]) -> str:
    """How many cases each cell has, as a Markdown table, and each setting, as lines."""
    apis = (ROWS, FRAMES, GROUPS)
    found = Counter((case.kind, case.api) for case in cases)
    lines = [f"| kind | {' | '.join(apis)} |", "|---" * (len(apis) + 1) + "|"]
    for kind in dict.fromkeys(kind for _, kind in CELLS):
        counts = (str(found[kind, api]) if (api, kind) in KINDS else "–" for api in apis)
        lines.append(f"| {kind} | {' | '.join(counts)} |")
    for title, values in (
        ("modes", [case.mode for case in cases]),
        ("time", [case.of.time for case in cases]),
        ("watermarks", [case.delay if case.of.has_watermark else "none" for case in cases]),
        ("late", [f"{case.late_s} s" for case in cases]),
        ("nulls", [f"{case.nulls:.0%}" for case in cases]),
        ("restarts", [case.restarts for case in cases]),
        ("partitions", [str(case.partitions) for case in cases]),
        ("keys", [case.key for case in cases]),
    ):
        listed = ", ".join(f"{name} {count}" for name, count in sorted(Counter(values).items()))
        lines.append(f"\n{title}: {listed}")
    return "\n".join(lines)
