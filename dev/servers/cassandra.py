"""A Cassandra of one node."""

from __future__ import annotations

import logging
import socket
import ssl
import subprocess
from pathlib import Path

from cassandra import DriverException
from cassandra.auth import PlainTextAuthProvider
from cassandra.cluster import Cluster, NoHostAvailable, Session

from servers.base import LOOPBACK, Server, ServerError, java
from servers.fetching import Artifact, fetch_jars

_NODE = (Artifact("org.apache.cassandra:cassandra-all:5.0.9"),)
_BASE = (
    "java.io", "java.lang", "java.lang.module", "java.lang.reflect", "java.net", "java.nio",
    "java.nio.file", "java.util", "java.util.concurrent", "java.util.concurrent.atomic",
    "jdk.internal.loader", "jdk.internal.math", "jdk.internal.misc", "jdk.internal.module",
    "jdk.internal.perf", "jdk.internal.ref", "jdk.internal.reflect", "jdk.internal.util.jar",
    "sun.nio.ch",
)  # fmt: skip
_OPENED = (
    *(f"java.base/{package}" for package in _BASE),
    "jdk.management/com.sun.management.internal",
    "java.management/sun.management",
)
_EXPORTED = (
    "java.base/java.lang.ref",
    "java.base/jdk.internal.misc",
    "java.base/jdk.internal.perf",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.management.rmi/com.sun.jmx.remote.internal.rmi",
    "java.rmi/sun.rmi.registry",
    "java.rmi/sun.rmi.server",
    "java.rmi/sun.rmi.transport.tcp",
    "java.sql/java.sql",
    "jdk.attach/sun.tools.attach",
    "jdk.unsupported/sun.misc",
)
_LOGGING = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{20} %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""
_CONNECT_S = 20.0
_USER = {"username": "cassandra", "password": "cassandra"}
"""Whom Cassandra knows from the start."""
_STORE = "holdfast"


class Cassandra(Server):
    """One node whose commit log is on disk before a write is answered, so a crash loses nothing.

    `with_users`: clients have to give the name and password in `options`; otherwise anyone may do
    everything. `encrypted`: it speaks TLS only.
    """

    name = "cassandra"

    def __init__(self, folder: Path, *, with_users: bool = False, encrypted: bool = False) -> None:
        super().__init__(folder, ports=4)
        self._with_users, self._encrypted = with_users, encrypted

    @property
    def address(self) -> str:
        """Host and port of CQL."""
        return f"{LOOPBACK}:{self.ports[0]}"

    @property
    def options(self) -> dict[str, str]:
        """How Holdfast reaches it, beside the address."""
        users = _USER if self._with_users else {}
        return {**users, "ca": str(self._certificate)} if self._encrypted else users

    def prepare(self) -> list[str]:
        jars = fetch_jars(self.name, *_NODE)
        settings = self.folder / "conf"
        settings.mkdir(exist_ok=True)
        if self._encrypted and not self._certificate.exists():
            self._make_certificate()
        (settings / "cassandra.yaml").write_text(self._settings())
        (settings / "logback.xml").write_text(_LOGGING)
        (meter,) = (jar for jar in jars if jar.name.startswith("jamm-"))
        properties = {
            "jdk.attach.allowAttachSelf": "true",
            "java.security.manager": "allow",
            "io.netty.tryReflectionSetAccessible": "true",
            "cassandra.storagedir": self.folder,
            "cassandra.config": f"file://{settings}/cassandra.yaml",
            "logback.configurationFile": settings / "logback.xml",
            "cassandra-foreground": "yes",
            "cassandra.jmx.local.port": self.ports[3],
            # There are no others to wait for.
            "cassandra.ring_delay_ms": 100,
            "cassandra.skip_wait_for_gossip_to_settle": 0,
            "cassandra.superuser_setup_delay_ms": 0,
        }
        return [
            java(), "-Xms512m", "-Xmx512m", *self.jvm, f"-javaagent:{meter}",
            *(f"-D{name}={value}" for name, value in properties.items()),
            *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
            *(f"--add-exports={package}=ALL-UNNAMED" for package in _EXPORTED),
            "-cp", ":".join(map(str, [settings, *jars])),
            "org.apache.cassandra.service.CassandraDaemon",
        ]  # fmt: skip

    def works(self) -> bool:
        """Whether a client that signs in gets an answer."""
        # Asked first: the driver is slow to give up, and loud.
        socket.create_connection((LOOPBACK, self.ports[0]), 5).close()
        try:
            with self.cluster() as cluster:
                return bool(cluster.connect().execute("SELECT key FROM system.local").one())
        except (NoHostAvailable, DriverException) as error:
            raise OSError(str(error)) from error

    def cluster(self) -> Cluster:
        """A client; whoever gets it shuts it down, for instance by `with`."""
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        users = PlainTextAuthProvider(**_USER) if self._with_users else None
        tls = ssl.create_default_context(cafile=self._certificate) if self._encrypted else None
        return Cluster(
            [LOOPBACK],
            port=self.ports[0],
            auth_provider=users,
            ssl_context=tls,
            connect_timeout=_CONNECT_S,
        )

    def create_keyspace(self, name: str) -> None:
        """Make a keyspace, of one copy, if it is not there."""
        with self.cluster() as cluster:
            session: Session = cluster.connect()
            session.execute(
                f"CREATE KEYSPACE IF NOT EXISTS {name} WITH replication = "
                "{'class': 'SimpleStrategy', 'replication_factor': 1}",
                timeout=_CONNECT_S,
            )

    @property
    def _certificate(self) -> Path:
        return self.folder / "certificate.pem"

    def _make_certificate(self) -> None:
        """A key and a certificate of its own for the loopback address."""
        store = ["-keystore", str(self.folder / "keys.p12"), "-storepass", _STORE, "-alias", "node"]
        keytool = str(Path(java()).with_name("keytool"))
        for command in (
            [keytool, "-genkeypair", *store, "-storetype", "PKCS12", "-keyalg", "RSA",
             "-dname", "CN=node", "-ext", f"SAN=ip:{LOOPBACK}"],
            [keytool, "-exportcert", *store, "-rfc", "-file", str(self._certificate)],
        ):  # fmt: skip
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode != 0:
                raise ServerError(f"keytool made no certificate: {done.stdout}{done.stderr}")

    def _settings(self) -> str:
        cql, storage, encrypted, _ = self.ports
        users = "PasswordAuthenticator" if self._with_users else "AllowAllAuthenticator"
        return f"""\
cluster_name: holdfast
num_tokens: 1
partitioner: org.apache.cassandra.dht.Murmur3Partitioner
authenticator: {users}
client_encryption_options:
  enabled: {str(self._encrypted).lower()}
  keystore: {self.folder}/keys.p12
  keystore_password: {_STORE}
  store_type: PKCS12
data_file_directories: [{self.folder}/data]
commitlog_directory: {self.folder}/commitlog
saved_caches_directory: {self.folder}/saved_caches
hints_directory: {self.folder}/hints
cdc_raw_directory: {self.folder}/cdc
commitlog_sync: batch
commitlog_segment_size: 8MiB
commitlog_disk_access_mode: legacy
memtable_heap_space: 64MiB
memtable_offheap_space: 64MiB
memtable_allocation_type: heap_buffers
seed_provider:
  - class_name: org.apache.cassandra.locator.SimpleSeedProvider
    parameters: [{{seeds: "{LOOPBACK}:{storage}"}}]
listen_address: {LOOPBACK}
storage_port: {storage}
ssl_storage_port: {encrypted}
rpc_address: {LOOPBACK}
native_transport_port: {cql}
start_native_transport: true
endpoint_snitch: SimpleSnitch
disk_access_mode: standard
concurrent_reads: 4
concurrent_writes: 4
read_request_timeout: 60s
range_request_timeout: 60s
write_request_timeout: 60s
cas_contention_timeout: 60s
request_timeout: 60s
auto_snapshot: false
"""
