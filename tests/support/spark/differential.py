"""Random streaming queries, each made from a seed, for Spark's own streaming and for Holdfast."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from aggregates import AGGREGATES
from naming import NAMINGS, called, column, expression, renamed, result_name
from native import write_batch
from pyspark.sql import Column
from pyspark.sql import functions as F

from holdfast.spark.operators.columns import quote_column

_START_S = 1_700_000_000
_BATCH_S = 300


@dataclass(frozen=True)
class Case:
    """One query with its input.

    `late_s` is how late rows may be, `nulls` the share of null cells, `sizes` the rows of each
    batch, `starts` how many batches each start of the query finds. `label` says where the case
    comes from. `names` is how columns are called; without `ansi` the input has numbers whose sums
    overflow.
    """

    label: str
    seed: int
    kind: str
    mode: str
    delay: str | None
    late_s: int
    nulls: float
    key: str
    aggregates: tuple[str, ...]
    sizes: tuple[int, ...]
    starts: tuple[int, ...]
    names: str = "plain"
    ansi: bool = True

    @property
    def restarts(self) -> str:
        """How often the query is started anew."""
        again = len(self.starts) - 1
        return "none" if again == 0 else "one" if again == 1 else "each batch"

    @property
    def schema(self) -> str:
        """The schema of the input, as DDL."""
        values = _VALUES if self.ansi else _VALUES.replace("decimal(12,2)", "decimal(38,2)")
        return f"k {KEYS[self.key].ddl}, {values}"

    def json(self) -> dict[str, Any]:
        """The case as a recording keeps it."""
        return asdict(self)

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Case:
        """What `json` gave."""
        lists = ("aggregates", "sizes", "starts")
        return cls(**{**body, **{name: tuple(body[name]) for name in lists}})

    def __str__(self) -> str:
        return json.dumps(self.json())


# -- the input ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyType:
    """A type of the key column: its few values, and an expression over it to group by."""

    ddl: str
    arrow: pa.DataType
    values: tuple[Any, ...]
    expression: str


KEYS = {
    "string": KeyType("string", pa.string(), ("a", "", "ä€", "b c"), "upper(k)"),
    "long": KeyType("long", pa.int64(), (-(2**63), 0, 7, 2**40), "k % 3"),
    # NaN is one key, and so are both zeros.
    "double": KeyType("double", pa.float64(), (math.nan, -0.0, 0.0, 1.5), "k * 2"),
    "decimal": KeyType(
        "decimal(20,2)", pa.decimal128(20, 2), tuple(map(Decimal, ("0.10", "-7", "1e17"))), "k + 1"
    ),
    "date": KeyType("date", pa.date32(), (date(1969, 12, 31), date(2024, 2, 29)), "date_add(k, 1)"),
    "timestamp": KeyType(
        "timestamp",
        pa.timestamp("us", tz="UTC"),
        tuple(datetime(2024, 2, 29, 12, minute, 1, 5, UTC) for minute in (0, 1, 59)),
        "date_trunc('hour', k)",
    ),
    "boolean": KeyType("boolean", pa.bool_(), (True, False), "NOT k"),
    "binary": KeyType("binary", pa.binary(), (b"", b"\x00\xff", b"key"), "hex(k)"),
    "struct": KeyType(
        "struct<a: int, b: string>",
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        ({"a": 1, "b": "x"}, {"a": 1, "b": None}, {"a": None, "b": "x"}),
        "k.a",
    ),
}

_VALUES = (
    "b int, u long, n long, i int, x double, d decimal(12,2), s string, day date, at timestamp, "
    "flag boolean, raw binary, ts timestamp"
)


def write_input(case: Case, folder: Path) -> None:
    """The batches of a case, one file each."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables(case)):
        write_batch(folder, number, table)


def tables(case: Case) -> Iterator[pa.Table]:
    """The batches of a case; the same for the same case."""
    rnd = random.Random(case.seed)
    key = KEYS[case.key]
    unique = 0
    for number, size in enumerate(case.sizes):
        now = _START_S + number * _BATCH_S

        def cells(make: Callable[[], Any], n: int = size) -> list[Any]:
            return [None if rnd.random() < case.nulls else make() for _ in range(n)]

        def event_time(now: int = now) -> datetime:
            late = rnd.randrange(case.late_s) if case.late_s and rnd.random() < 0.5 else 0
            second = now + rnd.randrange(_BATCH_S) - late
            # Some times are equal, and some on the bounds of windows and watermarks.
            on_grid = rnd.random() < 0.5
            return moment(second // 20 * 20, 0) if on_grid else moment(second, rnd.randrange(10**6))

        columns = {
            "k": pa.array(cells(lambda: rnd.choice(key.values)), key.arrow, from_pandas=False),
            "b": pa.array([number] * size, pa.int32()),
            "u": pa.array(range(unique, unique + size), pa.int64()),
            "n": pa.array(cells(lambda: rnd.randrange(-50, 50)), pa.int64()),
            "i": pa.array(cells(lambda: rnd.randrange(-(2**31), 2**31)), pa.int32()),
            "x": pa.array(cells(lambda: double(rnd)), pa.float64(), from_pandas=False),
            "d": pa.array(
                cells(lambda: Decimal(rnd.randrange(-(10**9), 10**9)) / 100), pa.decimal128(12, 2)
            ),
            "s": pa.array(cells(lambda: rnd.choice(["", "a", "zz", "ö"])), pa.string()),
            "day": pa.array(cells(lambda: rnd.randrange(-900, 20_000)), pa.int32()).cast(
                pa.date32()
            ),
            "at": pa.array(
                cells(lambda: moment(rnd.randrange(-(10**6), 10**9), rnd.randrange(10**6))),
                pa.timestamp("us", tz="UTC"),
            ),
            "flag": pa.array(cells(lambda: rnd.random() < 0.5), pa.bool_()),
            "raw": pa.array(cells(lambda: rnd.randbytes(rnd.randrange(3))), pa.binary()),
            "ts": pa.array([event_time() for _ in range(size)], pa.timestamp("us", tz="UTC")),
        }
        if PIPELINES[case.kind].null_times and case.nulls:
            # Rows without an event time belong to no window and are never late.
            times = columns["ts"].to_pylist()
            times[rnd.randrange(size)] = None
            columns["ts"] = pa.array(times, columns["ts"].type)
        # Within a batch the order values are in no order.
        columns["u"] = pa.array(rnd.sample(columns["u"].to_pylist(), size), pa.int64())
        unique += size
        yield pa.table(columns if case.ansi else _with_overflows(columns, random.Random(unique)))


def _with_overflows(columns: dict[str, pa.Array], rnd: random.Random) -> dict[str, pa.Array]:
    """Columns of which some numbers are so large that no two of them can be added.

    They are above zero: otherwise it would depend on the order of rows whether a sum overflows.
    """

    def enlarged(name: str, large: Any, kind: pa.DataType) -> pa.Array:
        cells = columns[name].to_pylist()
        return pa.array(
            [large if cell is not None and rnd.random() < 0.3 else cell for cell in cells], kind
        )

    decimals = enlarged("d", Decimal(9 * 10**35), pa.decimal128(38, 2))
    return {**columns, "n": enlarged("n", 2**62, pa.int64()), "d": decimals}


def moment(seconds: int, micros: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)


def double(rnd: random.Random) -> float:
    if rnd.random() < 0.1:
        return rnd.choice([math.nan, -0.0, 0.0, math.inf])
    return round(rnd.uniform(-100, 100), 3)


# -- the queries -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """A kind of query: how it is made of a frame, and the output modes Spark allows for it."""

    build: Callable[[Any, Case], Any]
    modes: tuple[str, ...]
    aggregates: bool = True
    null_times: bool = False
    stages: int = 1
    """How many stateful operators it has."""


def pipeline(case: Case) -> Callable[[Any], Any]:
    """The query of a case, for a DataFrame and for what `stateful` makes of one."""
    build = PIPELINES[case.kind].build
    return lambda frame: build(_watermarked(renamed(frame, case.names), case), case)


def _watermarked(frame: Any, case: Case) -> Any:
    time = quote_column(called(case.names, "ts"))
    return frame if case.delay is None else frame.withWatermark(time, case.delay)


def _by(*groupings: Callable[[Any, Case], Column]) -> Callable[[Any, Case], Any]:
    """Groups by columns with the case's aggregates."""

    def build(frame: Any, case: Case) -> Any:
        results = [
            expression(case.names, sql).alias(result_name(case.names, sql, case.seed + number))
            for number, sql in enumerate(case.aggregates)
        ]
        return frame.groupBy(*[make(frame, case) for make in groupings]).agg(*results)

    return build


def _plain(plain: str) -> Callable[[Any, Case], Column]:
    return lambda frame, case: column(frame, case.names, plain)


_key, _event_time = _plain("k"), _plain("ts")


def _expression(frame: Any, case: Case) -> Column:
    return expression(case.names, KEYS[case.key].expression).alias("e")


def _window(*lengths: str) -> Callable[[Any, Case], Column]:
    return lambda frame, case: F.window(_event_time(frame, case), *lengths)


_GAP_BY_ROW = (
    "CASE WHEN n > 20 THEN '20 seconds' WHEN n < -45 THEN '-1 second' ELSE '2 minutes' END"
)


def _session(frame: Any, case: Case) -> Column:
    return F.session_window(_event_time(frame, case), "40 seconds")


def _session_by_row(frame: Any, case: Case) -> Column:
    gap = expression(case.names, _GAP_BY_ROW)
    return F.session_window(_event_time(frame, case), gap)


def _few(frame: Any, case: Case) -> Any:
    """With few values of n, so that rows repeat."""
    return frame.withColumn(called(case.names, "n"), column(frame, case.names, "n") % 4)


def _names(case: Case, *plain: str) -> list[str]:
    return [called(case.names, each) for each in plain]


def _columns(frame: Any, case: Case, *plain: str) -> list[Column]:
    return [column(frame, case.names, each) for each in plain]


def _distinct(frame: Any, case: Case) -> Any:
    kept = _few(frame, case).dropDuplicates(_names(case, "k", "n"))
    # Spark prunes an event time nothing uses after this, and drops no late rows then.
    return kept.select(*_columns(kept, case, "k", "n"), _event_time(kept, case).isNull().alias("t"))


def _distinct_times(frame: Any, case: Case) -> Any:
    kept = frame.dropDuplicates(_names(case, "k", "ts"))
    return kept.select(*_columns(kept, case, "k", "ts"))


def _within_watermark(frame: Any, case: Case) -> Any:
    kept = _few(frame, case).dropDuplicatesWithinWatermark(_names(case, "k", "n"))
    return kept.select(*_columns(kept, case, "k", "n", "ts", "u"))


def _distinct_then_window(frame: Any, case: Case) -> Any:
    kept = _few(frame, case).dropDuplicates(_names(case, "k", "n", "ts"))
    windows = F.window(_event_time(kept, case), "3 minutes")
    return kept.groupBy(_key(kept, case), windows).agg(
        F.count("*").alias("c"), expression(case.names, "sum(n)").alias("s")
    )


def _window_then_window(frame: Any, case: Case) -> Any:
    narrow = frame.groupBy(_key(frame, case), F.window(_event_time(frame, case), "1 minute")).agg(
        expression(case.names, "sum(n)").alias("s"), expression(case.names, "max(x)").alias("m")
    )
    return narrow.groupBy(F.window("window", "4 minutes")).agg(
        F.sum("s").alias("s"), F.max("m").alias("m"), F.count("*").alias("c")
    )


_ALL = ("append", "update", "complete")
PIPELINES = {
    "key": Pipeline(_by(_key), ("update", "complete")),
    "expression": Pipeline(_by(_expression), ("update", "complete")),
    "global": Pipeline(_by(), ("update", "complete")),
    "tumbling": Pipeline(_by(_key, _window("4 minutes")), _ALL, null_times=True),
    "sliding": Pipeline(_by(_window("6 minutes", "2 minutes"), _key), _ALL, null_times=True),
    "offset": Pipeline(
        _by(_key, _window("5 minutes", "5 minutes", "70 seconds")), _ALL, null_times=True
    ),
    "session": Pipeline(_by(_key, _session), ("append", "complete"), null_times=True),
    "session by row": Pipeline(_by(_session_by_row, _key), ("append", "complete")),
    "event time": Pipeline(_by(_event_time, _expression), _ALL, null_times=True),
    "distinct": Pipeline(_distinct, ("append", "update"), aggregates=False),
    "distinct times": Pipeline(_distinct_times, ("append", "update"), aggregates=False),
    "within watermark": Pipeline(_within_watermark, ("append", "update"), aggregates=False),
    "distinct, window": Pipeline(_distinct_then_window, ("append",), aggregates=False, stages=2),
    "window, window": Pipeline(_window_then_window, ("append",), aggregates=False, stages=2),
}


# -- the plan ----------------------------------------------------------------------------------

CELLS = [(kind, mode) for kind, one in PIPELINES.items() for mode in one.modes]
DELAYS = ("0 seconds", "2 minutes", "10 minutes")
LATE_S = (0, 200, 3600)
NULLS = (0.0, 0.15, 0.6)
RESTARTS = ("none", "one", "each batch")
_SAME_TO_SPARK = (
    ("bool_and(flag)", "min(flag)"),
    ("bool_or(flag)", "max(flag)"),
    ("first(b)", "any_value(b)"),
)
"""Spark keeps one column of state for both, we keep two."""


def plan(seed: int, count: int) -> list[Case]:
    """`count` cases: every kind and mode with every other setting about equally often."""
    rnd = random.Random(seed)
    keys, functions = deck(rnd, list(KEYS)), deck(rnd, list(AGGREGATES))
    decks = {
        cell: [deck(rnd, _delays(*cell)), *(deck(rnd, s) for s in (LATE_S, NULLS, RESTARTS))]
        for cell in CELLS
    }
    # Drawn apart: the same seed gave the same cases before there were these.
    more = random.Random(f"{seed} names")
    named = {cell: (deck(more, NAMINGS), deck(more, (True, False))) for cell in CELLS}
    cases = []
    for number, cell in zip(range(count), deck(rnd, CELLS), strict=False):
        delay, late_s, nulls, restarts = (next(deck) for deck in decks[cell])
        kind, mode = cell
        batches = rnd.choice([3, 3, 4])
        cases.append(
            Case(
                label=f"{seed}/{number}",
                seed=rnd.randrange(10**9),
                kind=kind,
                mode=mode,
                delay=delay,
                late_s=late_s,
                nulls=nulls,
                key=next(keys),
                aggregates=_drawn(rnd, functions, kind),
                sizes=tuple(rnd.randrange(1, 14) for _ in range(batches)),
                starts=split_starts(rnd, restarts, batches),
                names=next(named[cell][0]),
                ansi=next(named[cell][1]),
            )
        )
    return cases


def deck(rnd: random.Random, values: Any) -> Iterator[Any]:
    """The values for ever, each round in another order: all come about equally often."""
    while True:
        yield from rnd.sample(list(values), len(values))


def _delays(kind: str, mode: str) -> tuple[str | None, ...]:
    """The delays for a kind of query; None, without a watermark, where Spark allows that."""
    needed = mode == "append" and kind != "distinct"
    return DELAYS if needed or kind == "within watermark" else (None, *DELAYS[1:])


def _drawn(rnd: random.Random, functions: Iterator[str], kind: str) -> tuple[str, ...]:
    if not PIPELINES[kind].aggregates:
        return ()
    drawn = {next(functions) for _ in range(rnd.randrange(2, 6))}
    if kind.startswith("session"):
        drawn = {name for name in drawn if not AGGREGATES[name].by_arrival} or {"count(*)"}
    for one, other in _SAME_TO_SPARK:
        if one in drawn:
            drawn.discard(other)
    return tuple(sorted(drawn))


def split_starts(rnd: random.Random, restarts: str, batches: int) -> tuple[int, ...]:
    if restarts == "none":
        return (batches,)
    if restarts == "each batch":
        return (1,) * batches
    first = rnd.randrange(1, batches)
    return (first, batches - first)


def coverage(cases: list[Case]) -> str:
    """How many cases each cell has, as a Markdown table, and each type and function, as lines."""
    titles = ["cases", "no watermark", *DELAYS, *(f"late {late} s" for late in LATE_S)]
    titles += [f"nulls {share:.0%}" for share in NULLS] + [f"restart {r}" for r in RESTARTS]
    titles += [f"names {naming}" for naming in NAMINGS] + ["without ANSI"]
    lines = [f"| kind, mode | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for kind, mode in CELLS:
        own = [case for case in cases if (case.kind, case.mode) == (kind, mode)]
        counts = [
            len(own),
            *(sum(case.delay == delay for case in own) for delay in (None, *DELAYS)),
            *(sum(case.late_s == late for case in own) for late in LATE_S),
            *(sum(case.nulls == share for case in own) for share in NULLS),
            *(sum(case.restarts == restarts for case in own) for restarts in RESTARTS),
            *(sum(case.names == naming for case in own) for naming in NAMINGS),
            sum(not case.ansi for case in own),
        ]
        lines.append(f"| {kind}, {mode} | {' | '.join(map(str, counts))} |")
    for title, found in (
        ("key types", Counter(case.key for case in cases if case.kind != "global")),
        ("functions", Counter(name for case in cases for name in case.aggregates)),
    ):
        listed = ", ".join(f"{name} {count}" for name, count in sorted(found.items()))
        lines += ["", f"Cases by {title}: {listed}."]
    return "\n".join(lines)


def thin_cells(cases: list[Case], least: int = 3) -> list[str]:
    """What has fewer than `least` cases: a kind and mode with a setting, a type, a function."""
    counts: Counter[tuple[Any, ...]] = Counter()
    for cell in CELLS:
        settings = (_delays(*cell), LATE_S, NULLS, RESTARTS, NAMINGS, (True, False))
        for number, values in enumerate(settings):
            counts.update({(cell, number, value): 0 for value in values})
    counts.update({("key", name): 0 for name in KEYS})
    counts.update({("function", name): 0 for name in AGGREGATES})
    for case in cases:
        drawn = (case.delay, case.late_s, case.nulls, case.restarts, case.names, case.ansi)
        for number, value in enumerate(drawn):
            counts[(case.kind, case.mode), number, value] += 1
        counts["key", case.key] += 1
        counts.update(("function", name) for name in case.aggregates)
    return [f"{cell}: {count}" for cell, count in counts.items() if count < least]
