"""What all servers have in common: ports, a process, a log, and waiting until it really works."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

LOOPBACK = "127.0.0.1"
# Below the ports that outgoing connections get: while a server is down, nobody may take its port.
_PORTS = range(20_000, 32_000)
_TAIL_LINES = 30
_POLL_S = 0.1
QUICK_START = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ReservedCodeCacheSize=240m")
"""Options of a JVM that does not live long: on few cores, compiling well takes most of its time.

Without the better compiler the JVM makes room for 48 MB of code alone. The Spark of a test run has
more: it would throw code away, and compile it again, for a tenth of its time.
"""


class ServerError(RuntimeError):
    """A server could not be fetched, started or asked; the message says why and what to do."""


class Server(ABC):
    """A server of one process, with its data and its log in one folder.

    Started again after `stop` or `kill`, it has the data and the ports it had. A subclass says how
    it is run and how one sees that it works.
    """

    name: str
    jvm: ClassVar[tuple[str, ...]] = ("-XX:+UseSerialGC",)
    """Options of the JVM, where it is one that runs it."""
    start_timeout_s = 300.0
    stop_timeout_s = 30.0

    def __init__(self, folder: Path, ports: int = 1) -> None:
        self.folder = folder.absolute()
        self.ports = free_ports(ports)
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def prepare(self) -> list[str]:
        """Fetch and write what it takes to run, keeping earlier data; the command to run."""

    @abstractmethod
    def works(self) -> bool:
        """Whether a client gets what it asks for. May raise OSError as long as it does not."""

    @property
    def log(self) -> Path:
        """Where the process writes what it has to say; later starts append."""
        return self.folder / f"{self.name}.log"

    @property
    def pid(self) -> int | None:
        """The process id, or None when it is not running."""
        running = self._process is not None and self._process.poll() is None
        return self._process.pid if self._process is not None and running else None

    def start(self) -> None:
        """Run it, and return once a client can work with it."""
        if self.pid is not None:
            raise ServerError(f"{self.name} runs already, as process {self.pid}.")
        for port in self.ports:
            if not _is_free(port):
                raise ServerError(f"{self.name} cannot start: port {port} is taken by another.")
        self.folder.mkdir(parents=True, exist_ok=True)
        command = self.prepare()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Ctrl-C is for whoever started it; they stop it in their own order.
                start_new_session=True,
            )
        try:
            self._wait_until_it_works(self._process)
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """End it in good order, by force if it takes too long. Nothing happens when it is down."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(self.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        self._process = None

    def kill(self) -> None:
        """End it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stop it and start it again on its data."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _wait_until_it_works(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if process.poll() is not None:
                raise self._failure(f"ended with exit code {process.returncode}")
            try:
                if self.works():
                    return
            except OSError:
                pass
            time.sleep(_POLL_S)
        raise self._failure(f"did not work within {self.start_timeout_s:.0f} s")

    def _failure(self, what: str) -> ServerError:
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        said = "\n".join(lines) or "(nothing)"
        return ServerError(f"{self.name} {what}. The end of its log, {self.log}:\n{said}")


def free_ports(count: int) -> list[int]:
    """Ports of the loopback interface on which nobody listens."""
    shuffled = random.sample(_PORTS, len(_PORTS))
    found = list(islice(filter(_is_free, shuffled), count))
    if len(found) < count:
        raise ServerError(f"No {count} free ports from {_PORTS.start} to {_PORTS.stop}.")
    return found


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # A server may listen although connections of its predecessor are still winding down.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def java() -> str:
    """The java command that Spark would use."""
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/java" if home else "java"
