"""Runs a processor, a function or a windowed query without Spark or a JVM: for unit tests.

    driver = StateTestDriver(Totals(), keys="id", schema="id string, v long", output=OUTPUT)
    assert driver.push([{"id": "a", "v": 3}]) == [Row(id="a", total=3)]
    assert driver.state("total") == {("a",): (3,)}

It is the code that runs in a stream's tasks, on state in this process's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from holdfast.backends.memory import MemoryStorage
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reading import read_state
from holdfast.streams.processors.variables import TIMERS
from holdfast.streams.version import Observation
from holdfast.testing._durations import micros
from holdfast.testing._editing import KeyHandle
from holdfast.testing._input import InputRows, input_table
from holdfast.testing._keyed import KeyedSettings
from holdfast.testing._processed import Form, GroupStateWork, keyed_work, mode_of
from holdfast.testing._running import CrashPoint, MadeUpCrash, VersionRunner
from holdfast.testing._work import Work
from holdfast.testing.windowed import WindowedQuery, WindowedWork
from holdfast.types import Row, Schema, parse_schema


class StateTestDriver:
    """One stateful operator: a processor or function of the user's, or a `WindowedQuery`.

    `schema` are the columns of the rows that are pushed. A processor needs `keys`, the grouping
    columns among them, and `output`, the columns it gives; `watermark` is a column and a delay,
    in ms or as "10 minutes". A `WindowedQuery` says all of this itself.

    `form` says what the processor takes and returns, and so what `push` returns: "row" (the
    default: a list of Rows) or "pandas" (a DataFrame) for a StatefulProcessor; for a function
    "arrow" (that of `transformWithStateInArrow`: a table) or "group_state" (that of
    `applyInPandasWithState`: a DataFrame). A function needs `state_schema`, the columns of its
    state. For "group_state", `time_mode` is a GroupStateTimeout.

    Time moves by `set_clock`, `set_watermark` and the event times that are pushed. After every
    call the versions without data are run that a stream would run.

    Raises InvalidArgument for an unknown column and for event time without a watermark.
    """

    def __init__(
        self,
        processor: Any,
        keys: str | Sequence[str] | None = None,
        schema: object = None,
        output: object = None,
        *,
        time_mode: str = "None",
        watermark: tuple[str, int | str] | None = None,
        partitions: int = 2,
        zone: str = "UTC",
        form: Form | None = None,
        state_schema: object = None,
    ) -> None:
        self._zone = zone
        self._work: Work
        if isinstance(processor, WindowedQuery):
            own = (keys, output, watermark, form, state_schema)
            if any(given is not None for given in own) or time_mode != "None":
                raise InvalidArgument(
                    "A WindowedQuery has keys, a watermark and output of its own: give the "
                    "driver its schema alone."
                )
            self._work = WindowedWork(processor, _needed(schema, "schema"), partitions)
        else:
            settings = KeyedSettings(
                _names(keys),
                _needed(schema, "schema"),
                _needed(output, "output"),
                mode_of(form, time_mode),
                _with_ms(watermark),
                partitions,
                zone,
            )
            state = None if state_schema is None else parse_schema(state_schema)
            self._work = keyed_work(processor, form, state, settings)
        self._run = VersionRunner(self._work)

    # -- what tests call -----------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The newest version."""
        return self._run.base.version

    @property
    def location(self) -> str:
        """Where the state is, for everything that reads a root in this process."""
        return self._run.root

    @property
    def watermark_ms(self) -> int:
        """The watermark that the next rows are judged by."""
        return self._run.marks.next_ms

    @property
    def late_rows(self) -> int:
        """How many rows were dropped as late so far, in versions that were committed."""
        return self._run.late_rows

    def push(self, rows: InputRows, *, crash: CrashPoint | None = None, idle: bool = True) -> Any:
        """A batch of rows: tuples, dicts or Rows, a DataFrame or an Arrow table. Returns what comes
        out of it and, where the stream is idle then, after it.

        With `crash` the process ends in mid-version: before its work counts ("task"), before its
        commit or before its delivery. Nothing comes out; `recover` resumes.
        """
        table = self._input(rows, self._work.schema)
        try:
            given = self._run.advance(table, crash)
        except MadeUpCrash:
            return self._work.shown([])
        return self._work.shown([*given, *self._run.ticks()] if idle else given)

    def tick(self) -> Any:
        """What an idle stream gives: the versions without data that are due."""
        return self._work.shown(self._run.ticks())

    def recover(self) -> Any:
        """Restart from what is stored; a version that was not delivered comes out now."""
        return self._work.shown(self._run.recover())

    def preload(self, rows: InputRows, schema: object = None) -> None:
        """Rows for handleInitialState. Requires: nothing was pushed yet."""
        if self.version:
            raise InvalidArgument("State to start with comes before the first rows.")
        columns = self._work.schema if schema is None else parse_schema(schema)
        self._run.preload(self._input(rows, columns), columns)

    def set_clock(self, moment: int | datetime, *, idle: bool = True) -> Any:
        """Move the clock to a moment, in ms or as a datetime. Returns what timers give then.

        Where the stream is not idle, they wait for the next rows. Raises InvalidArgument for a
        moment before the clock's.
        """
        now = _ms_of(moment)
        if now < self._run.now_ms:
            raise InvalidArgument(
                f"The clock cannot go back from {self._run.now_ms} ms to {now} ms. Make another "
                "driver to start earlier."
            )
        self._run.now_ms = now
        return self._work.shown(self._run.ticks() if idle else [])

    def advance_clock(self, by: int | str | timedelta, *, idle: bool = True) -> Any:
        """Move the clock by some ms, a timedelta or a text such as "10 minutes", as `set_clock`."""
        return self.set_clock(self._run.now_ms + _span_ms(by), idle=idle)

    def set_watermark(self, moment: int | datetime, *, idle: bool = True) -> Any:
        """Move the watermark to a moment, in ms or as a datetime, as a batch without rows whose
        event times lead there. Returns what timers give then, and what is evicted.

        Raises InvalidArgument for a moment before the watermark, and for a query without one.
        """
        if self._work.watermark is None:
            raise InvalidArgument(
                "There is no watermark to set. Give the driver one, as in "
                "watermark=('time', '0 seconds')."
            )
        to, delay = _ms_of(moment), self._work.watermark[1]
        if to < self.watermark_ms:
            raise InvalidArgument(
                f"The watermark cannot go back from {self.watermark_ms} ms to {to} ms."
            )
        given = self._run.advance(self._run.no_rows, None, seen=[Observation(to + delay, delay)])
        return self._work.shown([*given, *self._run.ticks()] if idle else given)

    def state(self, name: str = DEFAULT_STORE_NAME, at: int | None = None) -> dict[Row, Any]:
        """What is held at a version: of a variable by grouping key a value, a list or a dict; of
        a function its state, which needs no name; of a `WindowedQuery`, which has one store, by
        key and window the partial aggregates.
        """
        live = read_state(self._run.root, operator=0, store=self._work.store_of(name))
        return self._work.held(name, (live if at is None else live.at(at)).to_arrow())

    def timers(self) -> dict[Row, list[int]]:
        """The timers of each key; of a GroupState, when the key times out."""
        return {key: sorted(own[0] for own in held) for key, held in self.state(TIMERS).items()}

    def set_state(self, name: str, key: Any, value: Any) -> None:
        """Set what a variable holds for a key, as a version of its own.

        `value` is a tuple for a value, a list of tuples for a list, and for a map a dict of tuples;
        it takes the place of what was held, and a TTL counts from now. The state of a function is
        called "state". A key of one column may come without its tuple.
        """
        with self._run.edit(key) as edit:
            is_group_state = isinstance(self._work, GroupStateWork)
            put = edit.set_group_state if is_group_state else edit.set
            put(self._work.store_of(name), value)

    def delete_state(self, name: str, key: Any) -> None:
        """Remove what a variable holds for a key, as a version of its own; a GroupState's timeout
        goes as well.
        """
        with self._run.edit(key) as edit:
            edit.delete(self._work.store_of(name))

    @contextmanager
    def handle(self, key: Any) -> Iterator[KeyHandle]:
        """The handle of a key, to call its state variables and timers, or to pass to a method.

        What was changed is committed as a version when the block ends; after an error, and if
        nothing was changed, there is none. It does not run what is due: `tick` does.

            with driver.handle("Jade") as handle:
                handle.getValueState("total").update((5,))
                handle.registerTimer(60_000)
        """
        with self._run.edit(key) as edit:
            yield KeyHandle(edit)

    def close(self) -> None:
        """Give the memory back."""
        MemoryStorage.forget(self._run.root.removeprefix("memory://"))

    def _input(self, rows: InputRows, schema: Schema) -> pa.Table:
        return input_table(rows, schema, self._zone)


def _ms_of(moment: int | datetime) -> int:
    return int(moment.timestamp() * 1000) if isinstance(moment, datetime) else moment


def _span_ms(by: int | str | timedelta) -> int:
    return by if isinstance(by, int) else micros(by) // 1000


def _names(keys: str | Sequence[str] | None) -> list[str]:
    if keys is None:
        raise InvalidArgument("A processor needs keys: the names of its grouping columns.")
    return [keys] if isinstance(keys, str) else list(keys)


def _needed(schema: object, what: str) -> Schema:
    if schema is None:
        raise InvalidArgument(f"The driver needs {what}, as in {what}='id string, v long'.")
    return parse_schema(schema)


def _with_ms(watermark: tuple[str, int | str] | None) -> tuple[str, int] | None:
    if watermark is None:
        return None
    column, delay = watermark
    return column, delay if isinstance(delay, int) else micros(delay) // 1000
