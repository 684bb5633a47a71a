"""Processes that hold silent connections, so that those of a test do not need descriptors for them.

python floods.py PORT COUNT     holds COUNT connections to a port of this host that say nothing
"""

from __future__ import annotations

import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EACH = 500
"""Connections of one process: the usual limit of descriptors is 1,024."""


@contextmanager
def silent_connections(port: int, count: int) -> Iterator[None]:
    """Have so many connections that say nothing, another for each that is ended."""
    command = [sys.executable, __file__, str(port)]
    holders = [
        subprocess.Popen(
            [*command, str(min(EACH, count - start))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for start in range(0, count, EACH)
    ]
    try:
        for holder in holders:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"begun\n"
        yield
        assert [holder.poll() for holder in holders] == [None] * len(holders)
    finally:
        for holder in holders:
            holder.communicate()  # the end of its input is its end
            holder.wait()


def _hold(port: int, count: int) -> None:
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)

    def connect() -> None:
        own = socket.socket()
        own.setblocking(False)
        own.connect_ex(("127.0.0.1", port))
        selector.register(own, selectors.EVENT_READ)

    for _ in range(count):
        connect()
    print("begun", flush=True)
    while True:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                return
            assert isinstance(key.fileobj, socket.socket)
            try:
                data = key.fileobj.recv(1 << 10)
            except OSError:
                data = b""
            if not data:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                connect()


if __name__ == "__main__":
    _hold(int(sys.argv[1]), int(sys.argv[2]))
