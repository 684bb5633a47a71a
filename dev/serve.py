"""Runs a server on this machine until Ctrl-C.

python dev/serve.py kafka            with its data in a temporary folder
python dev/serve.py kafka FOLDER     with its data in FOLDER, found again the next time
"""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from servers import Cassandra, DynamoDb, Hdfs, Kafka, Minio, Server, ServerError, connector_jars


def kafka(folder: Path) -> tuple[Server, str]:
    broker = Kafka(folder)
    jars = ",".join(map(str, connector_jars()))
    return broker, f"Kafka listens on {broker.address}\nSpark reads it with spark.jars={jars}"


def hdfs(folder: Path) -> tuple[Server, str]:
    cluster = Hdfs(folder)
    return cluster, f"A root on it: {cluster.url}/totals"


def minio(folder: Path) -> tuple[Server, str]:
    server = Minio(folder)
    (folder / "data" / "state").mkdir(parents=True, exist_ok=True)  # a folder there is a bucket
    return server, (
        f"export AWS_ENDPOINT_URL={server.url} AWS_ACCESS_KEY_ID={server.key} "
        f"AWS_SECRET_ACCESS_KEY={server.secret}\nA root on it: s3://state/totals"
    )


class Keyspace(Cassandra):
    """A Cassandra that has the keyspace `state`."""

    def start(self) -> None:
        super().start()
        self.create_keyspace("state")


def cassandra(folder: Path) -> tuple[Server, str]:
    server = Keyspace(folder)
    return server, f"A root on it: cassandra://{server.address}/state/totals"


def dynamodb(folder: Path) -> tuple[Server, str]:
    server = DynamoDb(folder)
    return server, (
        f"export AWS_ENDPOINT_URL={server.url} AWS_ACCESS_KEY_ID=any AWS_SECRET_ACCESS_KEY=any\n"
        f"A root on it: dynamodb://{server.region}/totals"
    )


SERVERS: dict[str, Callable[[Path], tuple[Server, str]]] = {
    "kafka": kafka,
    "hdfs": hdfs,
    "minio": minio,
    "cassandra": cassandra,
    "dynamodb": dynamodb,
}


def serve(name: str, folder: Path) -> None:
    server, hint = SERVERS[name](folder)
    with server:
        print(f"{hint}\nThe log is {server.log}. Ctrl-C ends it.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping.")


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[0] not in SERVERS:
        print(f"{__doc__}\nServers: {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    try:
        if len(arguments) == 2:
            serve(arguments[0], Path(arguments[1]))
        else:
            with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
                serve(arguments[0], Path(folder))
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
