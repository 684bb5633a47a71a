"""Threads that run one at a time, in an order that the decisions of a run give.

Each actor is a real thread that waits for its turn; it passes the turn on wherever it does
something that others could see. Time is a number that grows while somebody sleeps.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import Any

from simulation.decisions import Decisions

_MOST_STEPS = 30_000
_STEP_MS = 1
_SOON_MS = 1_000
"""Who sleeps no longer may wake before those who do something: their calls take as long."""


class Crash(BaseException):
    """The process is dead: nothing catches this, and whatever it calls raises it again."""


class Event(IntEnum):
    """What happens at a step."""

    NOTHING = 0
    SWITCH = 1
    CRASH = 2
    ERROR = 3
    LOST_REPLY = 4
    STALE = 5
    CLOCK = 6
    SINK_FAILS = 7
    SINK_FAILS_LATE = 8
    SINK_STOPS = 9
    POWER = 10


class Process:
    """An application: its threads live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self.may_crash = True


class Actor:
    """A thread of a process, on its turn or waiting for it."""

    def __init__(self, name: str, process: Process, work: Callable[[], object]) -> None:
        self.name, self.process, self.work = name, process, work
        self.turn = threading.Lock()
        self.turn.acquire()
        self.is_over = False
        self.is_ready: Callable[[], bool] | None = None
        """What it waits for, if it does."""
        self.wakes_at: int | None = None
        """When it wakes by itself, if it does."""
        self.thread: object = self
        """What `threading.current_thread` gives there."""


class Scheduler:
    """Gives turns to actors. Whoever calls it is the actor whose turn it is."""

    def __init__(self, decisions: Decisions) -> None:
        self.decisions = decisions
        self.now_ms = 1_000_000
        self.skew_ms = 0
        """What the wall clock is off by."""
        self.chances: dict[Event, float] = {}
        self.steps = 0
        self.log: list[str] = []
        self.holds: dict[tuple[str, str], Callable[[], bool]] = {}
        """Steps, by process, that somebody arranged to be held up until something is so."""
        self.power_fails: Callable[[], None] = lambda: None
        """What goes with the power, besides the processes."""
        self.failure: str | None = None
        self._actors: list[Actor] = []
        self.running: Actor
        self._done = threading.Event()

    # -- running -------------------------------------------------------------------------------

    def run(self, process: Process, work: Callable[[], object]) -> None:
        """Run an actor, and all that it starts, to the end; the first failure ends it, too."""
        first = self.spawn("director", process, work)
        self.running = first
        first.turn.release()
        self._done.wait()

    def spawn(self, name: str, process: Process, work: Callable[[], object]) -> Actor:
        """Start an actor; it gets its turn later."""
        actor = Actor(name, process, work)
        self._actors.append(actor)
        threading.Thread(target=self._live, args=(actor,), name=name, daemon=True).start()
        return actor

    def _live(self, actor: Actor) -> None:
        actor.turn.acquire()
        try:
            if not actor.process.is_dead:
                actor.work()
        except Crash:
            pass
        except BaseException:
            self.fail(f"{actor.name} of {actor.process.name} failed:\n{traceback.format_exc()}")
        actor.is_over = True
        self._actors.remove(actor)
        self._pass_on(self._next(actor))

    def fail(self, reason: str) -> None:
        """Note what went wrong; every process ends."""
        self.failure = self.failure or reason
        for actor in self._actors:
            actor.process.is_dead = True

    def _pass_on(self, to: Actor | None) -> None:
        if to is None:
            self._done.set()
            return
        self.running = to
        to.turn.release()

    def _next(self, current: Actor) -> Actor | None:
        """Who goes on when the current actor cannot: any order of who is ready is possible."""
        if not self._actors:
            return None
        for actor in self._actors:
            if actor.process.is_dead:
                return actor
        ready = [actor for actor in self._actors if actor.is_ready is None or actor.is_ready()]
        if ready:
            return ready[self.decisions.choose(len(ready), self.chances.get(Event.SWITCH, 0) * 4)]
        asleep = [actor for actor in self._actors if actor.wakes_at is not None]
        if not asleep:
            names = ", ".join(f"{actor.process.name}/{actor.name}" for actor in self._actors)
            self.fail(f"nobody can go on: {names}")
            return self._actors[0]
        first = min(asleep, key=lambda actor: actor.wakes_at or 0)
        self.now_ms = max(self.now_ms, first.wakes_at or 0)
        return first

    def _yield_to(self, other: Actor | None) -> None:
        me = self.running
        if other is not None and other is not me:
            self._pass_on(other)
            me.turn.acquire()
        me.is_ready = me.wakes_at = None
        if me.process.is_dead:
            raise Crash

    # -- what actors call ----------------------------------------------------------------------

    def step(self, what: str, *events: Event) -> Event:
        """Let others go first, and whatever happens here happen; `events` are for the caller."""
        me = self.running
        if me.process.is_dead:
            raise Crash
        self.steps += 1
        self.now_ms += _STEP_MS
        self.log.append(f"{self.steps} {me.process.name}/{me.name}: {what}")
        if self.steps > _MOST_STEPS:
            self.fail("the run does not come to an end")
            raise Crash
        if (is_over := self.holds.pop((me.process.name, what), None)) is not None:
            self.wait_for(is_over)
        event = self._event(events)
        if event is not Event.NOTHING:
            self.log[-1] += f"  <- {event.name}"
        if event is Event.CRASH:
            if me.process.may_crash:
                self.kill(me.process)
        elif event is Event.POWER:
            if me.process.may_crash:
                self._cut_power()
        elif event is Event.SWITCH:
            others = [a for a in self._actors if a is not me and self._may_run(a)]
            if others:
                other = others[self.decisions.choose(len(others), 1 - 1 / len(others))]
                if other.is_ready is not None and not other.is_ready():
                    assert other.wakes_at is not None
                    self.now_ms = max(self.now_ms, other.wakes_at)
                self._yield_to(other)
        elif event is Event.CLOCK:
            self.skew_ms += (-3_000, 200, 5_000)[self.decisions.choose(3, 0.7)]
        return event if event in events else Event.NOTHING

    def _event(self, more: tuple[Event, ...]) -> Event:
        possible = (Event.SWITCH, Event.CRASH, Event.CLOCK, *more, Event.POWER)
        chances = {event: self.chances[event] for event in possible if event in self.chances}
        return Event(self.decisions.pick(chances))

    def _may_run(self, actor: Actor) -> bool:
        if actor.is_ready is None or actor.is_ready():
            return True
        return actor.wakes_at is not None and actor.wakes_at <= self.now_ms + _SOON_MS

    def wait_for(self, is_ready: Callable[[], bool], timeout_ms: float | None = None) -> bool:
        """Wait until something is so, or a time has passed; whether it is so."""
        me = self.running
        if me.process.is_dead:
            raise Crash
        if not is_ready():
            me.is_ready = is_ready
            me.wakes_at = None if timeout_ms is None else self.now_ms + max(1, int(timeout_ms))
            self._yield_to(self._next(me))
        return is_ready()

    def sleep(self, timeout_ms: float) -> None:
        """Let a time pass."""
        self.wait_for(lambda: False, timeout_ms)

    def _cut_power(self) -> None:
        """End every process of the machine right here."""
        for actor in self._actors:
            if actor.process.may_crash:
                actor.process.is_dead = True
        self.power_fails()
        raise Crash

    def kill(self, process: Process) -> None:
        """End a process right here."""
        process.is_dead = True
        self.log.append(f"{process.name} is dead")
        if self.running.process is process:
            raise Crash


class SimulatedLock:
    """What `threading.RLock` gives, or `threading.Lock`."""

    def __init__(self, scheduler: Scheduler, *, is_reentrant: bool = True) -> None:
        self._scheduler, self._is_reentrant = scheduler, is_reentrant
        self._owner: Actor | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.step("lock")
        me = self._scheduler.running
        is_own = self._owner is me and self._is_reentrant
        if self._owner is not None and not is_own:
            if not blocking:
                return False
            timeout_ms = None if timeout < 0 else timeout * 1000
            if not self._scheduler.wait_for(lambda: self._owner is None, timeout_ms):
                return False
        self._owner = me
        self._depth += 1
        return True

    def release(self) -> None:
        if self._owner is self._scheduler.running:
            self._depth -= 1
            if not self._depth:
                self._owner = None

    def __enter__(self) -> SimulatedLock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class SimulatedEvent:
    """What `threading.Event` gives."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._is_set = False

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        return self._scheduler.wait_for(
            lambda: self._is_set, None if timeout is None else timeout * 1000
        )


class SimulatedThread:
    """What `threading.Thread` gives."""

    def __init__(
        self, scheduler: Scheduler, target: Callable[..., object], name: str, **_: Any
    ) -> None:
        self._scheduler, self._target, self.name = scheduler, target, name
        self.actor: Actor | None = None

    def start(self) -> None:
        process = self._scheduler.running.process
        self.actor = self._scheduler.spawn(self.name, process, self._target)
        self.actor.thread = self

    def is_alive(self) -> bool:
        return self.actor is not None and not self.actor.is_over

    def join(self) -> None:
        self._scheduler.wait_for(lambda: not self.is_alive())
