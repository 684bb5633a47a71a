"""Runs a server on this machine until Ctrl-C.

python dev/serve.py kafka            with its data in a temporary folder
python dev/serve.py kafka FOLDER     with its data in FOLDER, found again the next time
"""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path

from servers import Kafka, ServerError, connector_jars


def serve_kafka(folder: Path) -> None:
    jars = ",".join(map(str, connector_jars()))
    with Kafka(folder) as broker:
        print(f"Kafka listens on {broker.address}; its log is {broker.log}.")
        print(f"Spark reads it with spark.jars={jars}")
        print("Ctrl-C ends it.", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print("Stopping.")


SERVERS = {"kafka": serve_kafka}


def main(arguments: list[str]) -> int:
    if len(arguments) not in (1, 2) or arguments[0] not in SERVERS:
        print(f"{__doc__}\nServers: {', '.join(SERVERS)}", file=sys.stderr)
        return 2
    try:
        if len(arguments) == 2:
            SERVERS[arguments[0]](Path(arguments[1]))
        else:
            with tempfile.TemporaryDirectory(prefix="holdfast-") as folder:
                SERVERS[arguments[0]](Path(folder))
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
