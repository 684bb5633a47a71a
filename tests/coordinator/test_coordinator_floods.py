"""However many connect to a coordinator, its process keeps descriptors, and workers get in."""

from __future__ import annotations

import base64
import json
import pickle
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from floods import silent_connections

from holdfast.coordinator import (
    CoordinatorAddress,
    StateStoreCoordinator,
    StateStoreCoordinatorRef,
    connection,
    endpoint,
)
from holdfast.ids import StateStoreId, StateStoreProviderId

PATIENCE_S = 240.0
DESCRIPTORS = 256

ENDPOINT = """
import base64, json, os, pickle, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))
from holdfast.coordinator import StateStoreCoordinator
made = StateStoreCoordinator(proof_timeout_s={proof_timeout_s})
print(base64.b64encode(pickle.dumps(made.address)).decode(), flush=True)
for _ in sys.stdin:
    print(json.dumps({{
        "running": made.is_running,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "unproved": len(made._unproved),
        "known": len(made.instances._instances),
    }}), flush=True)
"""
WORKERS = """
import base64, pickle, sys, threading, time
from uuid import UUID
from holdfast.coordinator import StateStoreCoordinatorRef, connection
from holdfast.ids import StateStoreId, StateStoreProviderId
address = pickle.loads(base64.b64decode(sys.stdin.readline()))
threading.stack_size(1 << 18)
start, served = threading.Barrier({count}), []

def work(number):
    far = StateStoreCoordinatorRef(connection.Connection(address), address)
    mine = StateStoreProviderId(StateStoreId("/r", 0, number), UUID(int=1))
    start.wait()
    far.report_active_instance(mine, "host", str(number))
    deadline = time.monotonic() + {patience_s}
    while (gone := far.inactive_among([mine], str(number))) is None:
        if time.monotonic() > deadline:
            break
        time.sleep(1)  # hundreds of threads that look more often would keep each other waiting
    served.append((gone == set(), far))  # it stays connected

threads = [threading.Thread(target=work, args=({first} + n,)) for n in range({count})]
for each in threads: each.start()
for each in threads: each.join()
print(sum(is_served for is_served, _ in served))
"""


class Flooded:
    """An endpoint in a process of few descriptors."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        self.pickled = process.stdout.readline()
        self.address: CoordinatorAddress = pickle.loads(base64.b64decode(self.pickled))

    def look(self) -> dict[str, Any]:
        """What it is at; its limits hold at any time."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"look\n")
        self._process.stdin.flush()
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        assert found["running"]
        assert found["unproved"] <= DESCRIPTORS // 4
        assert found["descriptors"] < DESCRIPTORS
        return found


@contextmanager
def flooded(proof_timeout_s: float) -> Iterator[Flooded]:
    script = ENDPOINT.format(descriptors=DESCRIPTORS, proof_timeout_s=proof_timeout_s)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Flooded(process)
    finally:
        process.communicate()


@pytest.mark.soak
def test_a_thousand_workers_that_arrive_at_once_all_get_in() -> None:
    with flooded(endpoint.PROOF_TIMEOUT_S) as far:
        halves = []
        for first in (0, 500):
            script = WORKERS.format(count=500, first=first, patience_s=PATIENCE_S)
            worker = subprocess.Popen(
                [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            assert worker.stdin is not None
            halves.append(worker)
        for worker in halves:
            assert worker.stdin is not None
            worker.stdin.write(far.pickled)
            worker.stdin.flush()
        while any(worker.poll() is None for worker in halves):
            far.look()
            time.sleep(0.05)
        assert [int(worker.communicate()[0]) for worker in halves] == [500, 500]
        assert far.look()["known"] == 1000


@pytest.mark.soak
def test_a_worker_gets_in_past_two_thousand_silent_connections() -> None:
    mine = StateStoreProviderId(StateStoreId("/r", 0, 0), UUID(int=1))
    with flooded(0.1) as far, silent_connections(far.address.port, 2000):
        deadline = time.monotonic() + PATIENCE_S
        while far.look()["unproved"] < DESCRIPTORS // 4:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        link = connection.Connection(far.address, handshake_timeout_s=PATIENCE_S)
        honest = StateStoreCoordinatorRef(link, far.address)
        honest.report_active_instance(mine, "host", "1")
        while (found := honest.get_location(mine)) is None:
            far.look()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert found == "executor_host_1"
        # Once in, it is served whoever waits.
        assert honest.get_location(mine) == "executor_host_1"
        far.look()
        link.close()


@pytest.mark.parametrize(
    ("descriptors", "partitions", "most"),
    [
        (1024, 0, 64),
        (1024, 10, 64),
        (1024, 100, 200),
        (1024, 1000, 256),
        (100, 1000, 25),
        (3, 0, 1),
        (resource.RLIM_INFINITY, 1000, 2000),
    ],
)
def test_how_many_may_have_proved_nothing_follows_partitions_and_descriptors(
    monkeypatch: pytest.MonkeyPatch, descriptors: int, partitions: int, most: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (descriptors, descriptors))
    made = StateStoreCoordinator()
    try:
        made.instances.expect_instances(UUID(int=1), partitions // 2)
        made.instances.expect_instances(UUID(int=2), partitions - partitions // 2)
        assert made.most_unproved == most
        for run in (1, 2):
            made.instances.deactivate_instances(UUID(int=run))
        assert made.most_unproved == max(1, min(64, most))
    finally:
        made.stop()


def test_reports_that_did_not_get_through_are_made_good() -> None:
    mine = StateStoreProviderId(StateStoreId("/r", 0, 0), UUID(int=1))
    made = StateStoreCoordinator()
    try:
        link = connection.Connection(made.address, retry_after_s=0)
        far = StateStoreCoordinatorRef(link, made.address)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(link, "_connected", _unreachable)
            far.report_active_instance(mine, "host", "1")
            assert far.get_location(mine) is None
        assert far.get_location(mine) == "executor_host_1"
        link.close()
    finally:
        made.stop()


def _unreachable() -> None:
    raise TimeoutError
