"""A small HDFS: NameNode and one DataNode in one process."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.request import urlopen

from servers.base import LOOPBACK, Server, java
from servers.fetching import Artifact, fetch_jars

_CLUSTER = (
    Artifact("org.apache.hadoop:hadoop-minicluster:3.5.0"),
    # Its classes load these, although it does not say that it needs them.
    Artifact("org.junit.jupiter:junit-jupiter-api:5.13.4"),
    Artifact("org.mockito:mockito-core:4.11.0"),
)
_OPENED = ("java.lang", "java.nio", "sun.nio.ch")
_LOGGING = """\
log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.layout=org.apache.log4j.PatternLayout
log4j.appender.console.layout.ConversionPattern=%d %p %c{2} %m%n
"""


class Hdfs(Server):
    """The user it runs as may do everything; others are held to permissions."""

    name = "hdfs"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ports=3)

    @property
    def url(self) -> str:
        """What paths on it start with."""
        return f"hdfs://{LOOPBACK}:{self.ports[0]}"

    def prepare(self) -> list[str]:
        jars = fetch_jars(self.name, *_CLUSTER)
        settings = self.folder / "conf"
        settings.mkdir(exist_ok=True)
        (settings / "log4j.properties").write_text(_LOGGING)
        data = self.folder / "data"
        rpc, page, transfer = self.ports
        opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
        manager = "org.apache.hadoop.mapreduce.MiniHadoopClusterManager"
        return [
            java(), "-Xmx512m", *self.jvm, *opened, f"-Dtest.build.data={data}",
            "-cp", ":".join(map(str, [settings, *jars])), manager,
            "-nomr", "-datanodes", "1", "-nnport", str(rpc), "-nnhttpport", str(page),
            *([] if (data / "dfs").exists() else ["-format"]),
            "-D", "dfs.replication=1",
            "-D", f"dfs.datanode.address={LOOPBACK}:{transfer}",
            # Out of safe mode as soon as the DataNode is back.
            "-D", "dfs.namenode.safemode.extension=0",
        ]  # fmt: skip

    def works(self) -> bool:
        """Whether the NameNode takes writes and the DataNode is with it."""
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with urlopen(f"http://{LOOPBACK}:{self.ports[1]}/{query}", timeout=5) as page:
            beans = json.load(page)["beans"]
        return bool(
            beans and beans[0]["FSState"] == "Operational" and beans[0]["NumLiveDataNodes"] == 1
        )
