"""Tasks go where their state is: what a stage's tasks run through."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from holdfast.conf import StateStoreConf
from holdfast.coordinator import CoordinatorAddress, StateStoreCoordinatorRef
from holdfast.ids import StateStoreId, StateStoreProviderId
from holdfast.spark.interop import seam
from holdfast.spark.interop.contract import Placement
from holdfast.spark.interop.model import EXECUTOR_PROPERTY
from holdfast.spark.state.location import is_one_host
from holdfast.streams.stores import open_providers
from holdfast.streams.stores.open_providers import Executor

log = logging.getLogger(__name__)
T = TypeVar("T")
_Places = Callable[[Sequence[str | None]], list[str | None]]
_EXECUTORS_EVERY_S = 1.0
_BUSY_S = 60.0
_LOOPBACK = "127.0.0.1"
_ONLY_EXECUTOR = Executor("localhost", "driver")


@dataclass
class Locality:
    """How tasks of an application find the executors that hold their state.

    Without `coordinator` nobody is told who holds what; without `java` Spark places tasks as it
    likes, which loses nothing where there is one executor.
    """

    session: SparkSession
    coordinator: StateStoreCoordinatorRef | None = None
    java: Placement | None = None
    executor: Executor | None = None
    """The executor there is, on a local master."""
    _alive: tuple[float, list[str]] = field(default=(0.0, []), init=False)
    _offered: dict[int, list[str | None]] = field(default_factory=dict, init=False)
    """What Spark was told last, by operator."""
    _busy: dict[str, float] = field(default_factory=dict, init=False)
    """Executors to be spared, and until when."""
    _has_warned: bool = field(default=False, init=False)

    @classmethod
    def of(cls, session: SparkSession, conf: StateStoreConf) -> Locality:
        """What this application can do, and its settings want. Warns where it can do less."""
        if conf.locality == "off":
            return cls(session)
        context = session.sparkContext
        is_local = is_one_host(session)
        host, bind_address = _LOOPBACK, None
        if not is_local:
            host = seam.sessions.application_setting(session, "spark.driver.host") or _LOOPBACK
            bind_address = seam.sessions.application_setting(session, "spark.driver.bindAddress")
        java = None if is_local else seam.tasks.located(session)
        if java is None and not is_local:
            return cls(session)  # tasks could not say which executor they are in
        try:
            ref = StateStoreCoordinatorRef.for_driver(
                context.applicationId, host, bind_address=bind_address
            )
        except OSError as error:
            log.warning(
                "The StateStoreCoordinator cannot listen on %s (%s): tasks run without preferred "
                "locations. Set spark.driver.bindAddress to an address of the driver's host.",
                bind_address or host,
                error,
            )
            return cls(session)
        return cls(session, ref, java, _ONLY_EXECUTOR if is_local else None)

    @property
    def address(self) -> CoordinatorAddress | None:
        """What tasks reach the coordinator by."""
        return None if self.coordinator is None else self.coordinator.address

    def executors(self) -> list[str]:
        """The executors that were alive a moment ago, as task locations."""
        assert self.java is not None
        asked_at, found = self._alive
        if time.monotonic() - asked_at > _EXECUTORS_EVERY_S:
            found = self.java.executors()
            self._alive = (time.monotonic(), found)
        return found

    def places(self, held: Sequence[str | None]) -> list[str | None]:
        """Where tasks should run, given who holds their partitions."""
        now, alive = time.monotonic(), self.executors()
        free = [each for each in alive if self._busy.get(each, now) <= now]
        return spread(held, free or alive)

    def offers(self, operator_id: int, held: Sequence[str | None]) -> list[str | None]:
        """Where an operator's next version should be made, to be compared with who holds it then.

        An executor whose tasks another one took in the end is busy: it gets none for a while.
        """
        now = time.monotonic()
        before = self._offered.get(operator_id)
        if before is not None:
            self._warn_if_deaf(held)
            for offered, holder in zip(before, held, strict=True):
                if offered is not None and holder is not None and holder != offered:
                    self._busy[offered] = now + _BUSY_S
        offers = self._offered[operator_id] = self.places(held)
        return offers

    def _warn_if_deaf(self, held: Sequence[str | None]) -> None:
        """Warn, once, where tasks have run and no worker has reported anything."""
        if any(held) or self._has_warned or self.address is None:
            return
        self._has_warned = True
        log.warning(
            "No executor has told the StateStoreCoordinator at %s:%d what it holds: tasks run "
            "without preferred locations. Let executors connect to that host, or set "
            "spark.holdfast.locality=off.",
            self.address.host,
            self.address.port,
        )

    def begun(self, query_run_id: UUID, partitions: int) -> None:
        """A run has so many partitions of state, each of which a worker is going to report."""
        if self.coordinator is not None:
            self.coordinator.expect_instances(query_run_id, partitions)

    def ended(self, query_run_id: UUID) -> None:
        """A run has stopped: nobody holds its stores any more."""
        if self.coordinator is not None:
            self.coordinator.deactivate_instances(query_run_id)


@dataclass(frozen=True)
class StateStoreRDD:
    """The partitions of one operator's state, and where tasks that work on them should run."""

    checkpoint_location: str
    operator_id: int
    query_run_id: UUID
    partitions: int
    store_name: str
    """Any of the operator's stores: an executor holds all of a partition's."""
    locality: Locality

    def get_preferred_locations(self, partition: int) -> list[str]:
        """The executor that holds the partition, as the coordinator knows it; or nothing."""
        if self.locality.coordinator is None:
            return []
        store_id = StateStoreId(
            self.checkpoint_location, self.operator_id, partition, self.store_name
        )
        provider_id = StateStoreProviderId(store_id, self.query_run_id)
        found = self.locality.coordinator.get_location(provider_id)
        return [] if found is None else [found]

    def run(
        self, work: Callable[[int, Iterable[bytes]], T], rows: DataFrame | None = None
    ) -> list[T]:
        """What `work` returns for each partition, given the rows in it as Arrow record batches.

        `rows` are partitioned as the state is; without them each partition gets none.
        """
        if rows is None:
            parts = seam.tasks.empty_rdd(self.locality.session, self.partitions)
        else:
            parts = seam.tasks.arrow_rdd(rows)
        return collected(self.locality, self._located(parts, self._offers()), work)

    def run_one(self, partition: int, work: Callable[[int], T]) -> T:
        """What `work` returns for one partition."""
        part = seam.tasks.empty_rdd(self.locality.session, 1)
        locations = self._placed(self.locality.places)
        located = self._located(part, locations[partition : partition + 1])
        return collected(self.locality, located, lambda _, __: work(partition))[0]

    def numbers(self, session: SparkSession) -> DataFrame:
        """A frame of a session that has each partition's number in the partition."""
        java, count = self.locality.java, self.partitions
        if java is None:
            return session.range(0, count, 1, count)
        return java.numbers(session, self._placed(self.locality.places))

    def _offers(self) -> list[str | None]:
        """Where the tasks that make a version should run."""
        return self._placed(partial(self.locality.offers, self.operator_id))

    def _placed(self, places: _Places) -> list[str | None]:
        """Where tasks should run, by a rule that is given who holds which partition."""
        if self.locality.java is None:
            return []
        asked = [self.get_preferred_locations(number) for number in range(self.partitions)]
        return places([found[0] if found else None for found in asked])

    def _located(self, parts: Any, locations: list[str | None]) -> Any:
        java = self.locality.java
        return parts if java is None else java.wrap(parts, locations)


def collected(locality: Locality, parts: Any, work: Callable[[int, Iterable[bytes]], T]) -> list[T]:
    """What `work` returns for each partition of an RDD of the JVM, given the Arrow rows in it."""
    only = locality.executor

    def in_worker(partition: int, raw: Iterable[bytes]) -> list[T]:
        executor = only
        context = TaskContext.get()
        told = None if context is None else context.getLocalProperty(EXECUTOR_PROPERTY)
        if told is not None:
            executor_id, _, host = told.partition(" ")
            executor = Executor(host, executor_id)
        open_providers.here.arrive(executor)
        result = work(partition, raw)
        deque(raw, maxlen=0)  # a worker that leaves input unread is ended by PySpark
        return [result]

    rdd = seam.tasks.python_rdd(locality.session, parts)
    return rdd.mapPartitionsWithIndex(in_worker).collect()


def spread(held: Sequence[str | None], executors: Sequence[str]) -> list[str | None]:
    """Where each partition should go, given who holds it and which executors there are.

    It stays with its holder, unless that is lost or holds more than an equal share: then, and
    when nobody holds it, the executor with the fewest gets it. Without executors it is as held.
    """
    if not executors:
        return list(held)
    share = -(-len(held) // len(executors))
    load = dict.fromkeys(executors, 0)
    places: list[str | None] = []
    for place in held:
        stays = place is not None and load.get(place, share) < share
        if stays and place is not None:
            load[place] += 1
        places.append(place if stays else None)
    for number, place in enumerate(places):
        if place is None:
            places[number] = least = min(load, key=lambda each: load[each])
            load[least] += 1
    return places
