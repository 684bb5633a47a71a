"""A Kafka broker that is its own controller, and the jars Spark needs to talk to it."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from pathlib import Path

from servers.base import LOOPBACK, Server, ServerError, java
from servers.fetching import Artifact, fetch_jars
from servers.kafka_wire import KafkaWire

_BROKER = (
    Artifact("org.apache.kafka:kafka_2.13:4.3.1"),
    # Without a logger the broker dies in silence.
    Artifact("org.slf4j:slf4j-simple:1.7.36"),
)
# The connector of the newest Spark is not always published with all its parts; this set works
# with the PySpark in constraints.txt, which brings what is left out here.
_CONNECTOR = (
    Artifact(
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0",
        without=("org.apache.spark:*", "org.apache.hadoop:*", "org.scala-lang:*", "org.slf4j:*",
                 "org.scala-lang.modules:*", "com.google.code.findbugs:*", "*:lz4-java",
                 "org.xerial.snappy:*"),
    ),
    Artifact("org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0", without=("*:*",)),
)  # fmt: skip


def connector_jars() -> list[Path]:
    """The jars for `spark.jars` with which PySpark reads and writes Kafka."""
    return fetch_jars("spark-kafka", *_CONNECTOR)


class Kafka(Server):
    """One broker in KRaft mode. Topics are made with one partition when first written to."""

    name = "kafka"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ports=2)

    @property
    def address(self) -> str:
        """What goes into `kafka.bootstrap.servers`."""
        return f"{LOOPBACK}:{self.ports[0]}"

    def prepare(self) -> list[str]:
        jars = fetch_jars(self.name, *_BROKER)
        classpath = ":".join(map(str, jars))
        properties = self.folder / "server.properties"
        properties.write_text("\n".join(f"{k}={v}" for k, v in self._settings().items()) + "\n")
        run = [java(), "-Xms128m", "-Xmx512m", *self.jvm,
               "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", classpath]  # fmt: skip
        if not (self._data / "meta.properties").exists():
            self._format(run, properties)
        return [*run, "kafka.Kafka", str(properties)]

    def works(self) -> bool:
        """Whether the broker has joined its cluster and leads every partition it has."""
        with KafkaWire(*self._where) as client:
            brokers, topics = client.metadata()
        return brokers > 0 and all(leader >= 0 for leads in topics.values() for leader in leads)

    def create_topic(self, topic: str, partitions: int = 1) -> None:
        """Make a topic, and wait until it can be written to."""
        with KafkaWire(*self._where) as client:
            if error := client.create_topic(topic, partitions):
                raise ServerError(f"Kafka did not create the topic {topic}: error code {error}.")
        deadline = time.monotonic() + self.start_timeout_s
        while not (topic in self.topics() and self.works()):
            if time.monotonic() > deadline:
                raise ServerError(f"The topic {topic} got no leader; see {self.log}.")
            time.sleep(0.05)

    def topics(self) -> dict[str, int]:
        """The number of partitions of every topic."""
        with KafkaWire(*self._where) as client:
            return {topic: len(leads) for topic, leads in client.metadata()[1].items()}

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _where(self) -> tuple[str, int]:
        return LOOPBACK, self.ports[0]

    def _format(self, run: list[str], properties: Path) -> None:
        """Make the data folder a broker's; meta.properties comes last, so a cut is noticed."""
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        command = [*run, "kafka.tools.StorageTool", "format", "--ignore-formatted",
                   f"--cluster-id={cluster}", "--config", str(properties)]  # fmt: skip
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
        if done.returncode != 0:
            raise ServerError(f"Kafka could not format {self._data}:\n{done.stdout}{done.stderr}")

    def _settings(self) -> dict[str, object]:
        broker, controller = (f"{LOOPBACK}:{port}" for port in self.ports)
        return {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{broker},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{broker}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": self._data,
            "num.partitions": 1,
            # One broker holds one copy of everything.
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            # After a crash the broker is let in again once its old registration has lapsed.
            "broker.heartbeat.interval.ms": 500,
            "broker.session.timeout.ms": 4000,
        }
