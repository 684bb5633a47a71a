"""Locality: Spark runs each task of a stage on the executor that has its partition open.

A worker keeps the partitions it worked on open, with their newest rows in memory, so it is the
fastest place for the next version. Tasks report what they hold to a coordinator on the driver. The
driver asks it for each partition's holder and passes that to Spark as the preferred location of the
task. Only an RDD can have preferred locations, and PySpark cannot define one that has. So the rows
go through `LocatedRDD`, a small Java class (`interop.located_java`) that delegates to its parent
and answers `getPreferredLocations`.

Locations are hints. A task that runs elsewhere opens the partition from the root and becomes its
holder; results do not depend on it. So everything here may fail or be switched off, and only speed
suffers.
"""

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
    """Finds the executors that hold the state of an application's tasks.

    Without `coordinator`, nobody knows which executor holds what. Without `java`, Spark places
    tasks freely, which costs nothing if there is only one executor.
    """

    session: SparkSession
    coordinator: StateStoreCoordinatorRef | None = None
    java: Placement | None = None
    executor: Executor | None = None
    """The only executor, with a local master."""
    _alive: tuple[float, list[str]] = field(default=(0.0, []), init=False)
    _offered: dict[int, list[str | None]] = field(default_factory=dict, init=False)
    """The locations last passed to Spark, by operator."""
    _busy: dict[str, float] = field(default_factory=dict, init=False)
    """Executors to avoid, and until when."""
    _has_warned: bool = field(default=False, init=False)

    @classmethod
    def of(cls, session: SparkSession, conf: StateStoreConf) -> Locality:
        """Set locality up as the settings ask. Warns if this application cannot have it."""
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
            return cls(session)  # tasks could not report which executor they run in
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
        """The address at which tasks reach the coordinator."""
        return None if self.coordinator is None else self.coordinator.address

    def executors(self) -> list[str]:
        """The live executors as task locations, at most a second old."""
        assert self.java is not None
        asked_at, found = self._alive
        if time.monotonic() - asked_at > _EXECUTORS_EVERY_S:
            found = self.java.executors()
            self._alive = (time.monotonic(), found)
        return found

    def places(self, held: Sequence[str | None]) -> list[str | None]:
        """Choose where tasks run, given who holds their partitions."""
        now, alive = time.monotonic(), self.executors()
        free = [each for each in alive if self._busy.get(each, now) <= now]
        return spread(held, free or alive)

    def offers(self, operator_id: int, held: Sequence[str | None]) -> list[str | None]:
        """Choose where the tasks of an operator's next version run.

        The choice is compared with who holds the partitions next time. If another executor ended up
        with a task, then Spark stopped waiting for the offered one, which must be busy. It gets no
        tasks for a while; otherwise each version would wait for it again.
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
        """Warn once if tasks have run but no worker has reported anything."""
        if any(held) or self._has_warned or self.address is None:
            return
        self._has_warned = True
        log.warning(
            "No executor has reported to the StateStoreCoordinator at %s:%d: tasks run "
            "without preferred locations. Let executors connect to that host, or set "
            "spark.holdfast.locality=off.",
            self.address.host,
            self.address.port,
        )

    def begun(self, query_run_id: UUID, partitions: int) -> None:
        """A run has started, and workers will report each of its `partitions`."""
        if self.coordinator is not None:
            self.coordinator.expect_instances(query_run_id, partitions)

    def ended(self, query_run_id: UUID) -> None:
        """A run has stopped; forget which executors held its stores."""
        if self.coordinator is not None:
            self.coordinator.deactivate_instances(query_run_id)


@dataclass(frozen=True)
class StateStoreRDD:
    """The partitions of one operator's state, and where the tasks that work on them should run."""

    checkpoint_location: str
    operator_id: int
    query_run_id: UUID
    partitions: int
    store_name: str
    """Any of the operator's stores; an executor holds all stores of a partition."""
    locality: Locality

    def get_preferred_locations(self, partition: int) -> list[str]:
        """The executor that holds the partition; empty if the coordinator knows none."""
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
        """Run `work(partition, batches)` for each partition and return the results in order.

        `rows` must be partitioned as the state is; `batches` are a partition's rows as serialized
        Arrow record batches, none without `rows`.
        """
        if rows is None:
            parts = seam.tasks.empty_rdd(self.locality.session, self.partitions)
        else:
            parts = seam.tasks.arrow_rdd(rows)
        return collected(self.locality, self._located(parts, self._offers()), work)

    def run_one(self, partition: int, work: Callable[[int], T]) -> T:
        """Run `work` for one partition and return its result."""
        part = seam.tasks.empty_rdd(self.locality.session, 1)
        locations = self._placed(self.locality.places)
        located = self._located(part, locations[partition : partition + 1])
        return collected(self.locality, located, lambda _, __: work(partition))[0]

    def numbers(self, session: SparkSession) -> DataFrame:
        """A frame of a session with one row in each partition: the partition's number."""
        java, count = self.locality.java, self.partitions
        if java is None:
            return session.range(0, count, 1, count)
        return java.numbers(session, self._placed(self.locality.places))

    def _offers(self) -> list[str | None]:
        """Where the tasks of the next version should run."""
        return self._placed(partial(self.locality.offers, self.operator_id))

    def _placed(self, places: _Places) -> list[str | None]:
        """Where tasks should run, by the rule `places`, which gets the holder of each partition."""
        if self.locality.java is None:
            return []
        asked = [self.get_preferred_locations(number) for number in range(self.partitions)]
        return places([found[0] if found else None for found in asked])

    def _located(self, parts: Any, locations: list[str | None]) -> Any:
        java = self.locality.java
        return parts if java is None else java.wrap(parts, locations)


def collected(locality: Locality, parts: Any, work: Callable[[int, Iterable[bytes]], T]) -> list[T]:
    """Run `work` for each partition of a JVM RDD with its Arrow rows; return the results."""
    only = locality.executor

    def in_worker(partition: int, raw: Iterable[bytes]) -> list[T]:
        executor = only
        context = TaskContext.get()
        found = None if context is None else context.getLocalProperty(EXECUTOR_PROPERTY)
        if found is not None:
            executor_id, _, host = found.partition(" ")
            executor = Executor(host, executor_id)
        open_providers.here.arrive(executor)
        result = work(partition, raw)
        deque(raw, maxlen=0)  # PySpark ends a worker that leaves input unread
        return [result]

    rdd = seam.tasks.python_rdd(locality.session, parts)
    return rdd.mapPartitionsWithIndex(in_worker).collect()


def spread(held: Sequence[str | None], executors: Sequence[str]) -> list[str | None]:
    """Assign each partition to an executor, given its current holder.

    A partition stays with its holder, unless the holder is lost or already has an equal share. The
    others go to the executor with the fewest partitions. Moving only those keeps the rest warm.
    Without executors the result is `held`.
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
