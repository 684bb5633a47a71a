"""What a worker process does between tasks."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.streams import process

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone has the option")
def test_tcp_connections_are_found_and_stay_open() -> None:
    local, other = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, local, other:
        with socket.create_connection(server.getsockname()) as client:
            process._connections.cache_clear()
            assert client.fileno() in process._connections()
            assert local.fileno() not in process._connections()
            process.acknowledge()
            peer, _ = server.accept()
            with peer:
                client.sendall(b"still open")
                assert peer.recv(100) == b"still open"
        process.acknowledge()  # what is closed is passed over
    process._connections.cache_clear()


def test_a_default_timeout_does_not_reach_a_connection() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        process._connections.cache_clear()
        socket.setdefaulttimeout(30)
        try:
            process.acknowledge()
        finally:
            socket.setdefaulttimeout(None)
        assert os.get_blocking(client.fileno())
    process._connections.cache_clear()


def test_what_is_loaded_is_no_longer_looked_through_for_garbage() -> None:
    # In a process of its own: the objects of this one belong to the tests.
    code = (
        "import gc, pyarrow\n"
        "from holdfast.streams import process\n"
        "before = gc.get_freeze_count()\n"
        "process.settle('task')\n"
        "print(gc.get_freeze_count() - before > 10_000, len(gc.get_objects()) < 5_000)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout.split() == ["True", "True"]
    assert gc.isenabled()


def test_garbage_is_looked_for_seldom_within_a_task_and_as_before_after_it() -> None:
    before = gc.get_threshold()
    with process.seldom_collecting():
        assert gc.get_threshold() > before
    assert gc.get_threshold() == before


def test_a_process_that_looks_for_no_garbage_goes_on_so() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        with process.seldom_collecting():
            assert gc.get_threshold()[0] == 0
    finally:
        gc.set_threshold(*before)
