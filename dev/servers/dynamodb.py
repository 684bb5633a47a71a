"""DynamoDB Local: Amazon's own stand-in for DynamoDB, on one machine."""

from __future__ import annotations

import boto3
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from servers.base import LOOPBACK, Server, java
from servers.fetching import Artifact, fetch_jars

_SERVER = Artifact("software.amazon.dynamodb:DynamoDBLocal:3.3.1")
# The SDK it was built with is not published with all its parts.
_SDK = Artifact("software.amazon.awssdk:bom:2.54.15")
_REGION = "local"


class DynamoDb(Server):
    """One server that keeps its tables in its folder, over a crash too.

    It takes any credentials. It listens on all interfaces, for it cannot be told otherwise: only
    for data of tests. Every write goes to a file of SQLite, which is several times faster in a
    folder in memory (/dev/shm).
    """

    name = "dynamodb"

    @property
    def url(self) -> str:
        """What goes into `endpoint_url`."""
        return f"http://{LOOPBACK}:{self.ports[0]}"

    @property
    def region(self) -> str:
        """What comes first in a root on it; any does."""
        return _REGION

    @property
    def options(self) -> dict[str, str]:
        """How Holdfast reaches it."""
        return {"endpoint_url": self.url, "key": "holdfast", "secret": "any-secret-does"}

    def prepare(self) -> list[str]:
        jars = fetch_jars(self.name, _SERVER, versions_of=_SDK)
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        libraries = jars[0].parent
        return [
            java(), "-Xmx256m", *self.jvm,
            f"-Djava.library.path={libraries}", f"-Dsqlite4java.library.path={libraries}",
            "-cp", ":".join(map(str, jars)),
            "software.amazon.dynamodb.services.local.main.ServerRunner",
            "-port", str(self.ports[0]), "-dbPath", str(data), "-sharedDb", "-disableTelemetry",
        ]  # fmt: skip

    def works(self) -> bool:
        """Whether it lists its tables."""
        client = self.client(connect_timeout=5, read_timeout=5, retries={"max_attempts": 0})
        try:
            return "TableNames" in client.list_tables(Limit=1)
        except (BotoCoreError, ClientError) as error:
            raise OSError(str(error)) from error

    def client(self, **settings: object) -> BaseClient:
        """A client with botocore's `settings`."""
        return boto3.session.Session().client(
            "dynamodb",
            endpoint_url=self.url,
            region_name=self.region,
            config=Config(**settings),
            aws_access_key_id=self.options["key"],
            aws_secret_access_key=self.options["secret"],
        )
