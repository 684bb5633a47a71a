"""A Spark cluster of its own: a master and workers, each a process, from the installed PySpark."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import pyspark

from servers.base import LOOPBACK, Server

_HOME = Path(pyspark.__file__).parent


class SparkMaster(Server):
    """The master, which applications and workers report to."""

    name = "spark-master"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ports=2)

    @property
    def url(self) -> str:
        """What goes into `SparkSession.builder.master`."""
        return f"spark://{LOOPBACK}:{self.ports[0]}"

    def prepare(self) -> list[str]:
        return _daemon("master.Master", LOOPBACK, self.ports, self.jvm)

    def works(self) -> bool:
        return "I have been elected leader" in self.log.read_text(errors="replace")


class SparkWorker(Server):
    """A worker with one core. Workers have different hosts: Spark runs no twin of a task where
    the task itself runs.
    """

    def __init__(self, folder: Path, number: int, master: str) -> None:
        super().__init__(folder, ports=2)
        self.name = f"spark-worker-{number}"
        self.host = f"127.0.0.{number + 1}"
        self._master = master
        self._said = 0

    def prepare(self) -> list[str]:
        self._said = self.log.stat().st_size if self.log.exists() else 0
        work = self.folder / f"{self.name}-work"
        options = ["--cores", "1", "--memory", "1g", "--work-dir", str(work), self._master]
        return [*_daemon("worker.Worker", self.host, self.ports, self.jvm), *options]

    def works(self) -> bool:
        return b"Successfully registered with master" in self.log.read_bytes()[self._said :]


class SparkCluster:
    """A master with workers of one core each."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self.master = SparkMaster(folder)
        self.workers = [SparkWorker(folder, number, self.url) for number in range(workers)]
        self._running = ExitStack()

    @property
    def url(self) -> str:
        """What goes into `SparkSession.builder.master`."""
        return self.master.url

    def __enter__(self) -> Self:
        with ExitStack() as started:
            for server in (self.master, *self.workers):
                started.enter_context(server)
            self._running = started.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.close()


def _daemon(name: str, host: str, ports: list[int], jvm: tuple[str, ...]) -> list[str]:
    settings = {
        "SPARK_HOME": str(_HOME),
        "SPARK_LOCAL_IP": host,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": " ".join(jvm),
        "PYSPARK_PYTHON": sys.executable,
        "JAVA_HOME": os.environ.get("JAVA_HOME", ""),
    }
    given = [f"{name}={value}" for name, value in settings.items() if value]
    port, page = map(str, ports)
    return ["env", *given, str(_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}",
            "--host", host, "--port", port, "--webui-port", page]  # fmt: skip
