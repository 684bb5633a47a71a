"""Downloads or builds every server of the tests, beside each other; what is in the cache stays.

python dev/fetch_servers.py
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from servers import Cassandra, DynamoDb, Hdfs, Kafka, Minio, Server, ServerError, connector_jars

SERVERS: tuple[type[Server], ...] = (Minio, Hdfs, Cassandra, Kafka, DynamoDb)


def fetch(kind: type[Server], folder: Path) -> None:
    """Have a server prepared as if it were to be started in `folder`."""
    server = kind(folder / kind.name)
    server.folder.mkdir(exist_ok=True)
    server.prepare()


def main() -> int:
    """Fetch all of them; the exit code."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(SERVERS) + 1) as pool:
        started = [pool.submit(fetch, kind, Path(folder)) for kind in SERVERS]
        started.append(pool.submit(connector_jars))
        failures = [error for each in started if (error := each.exception()) is not None]
    for failure in failures:
        if not isinstance(failure, ServerError):
            raise failure
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
