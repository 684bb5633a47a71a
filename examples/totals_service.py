"""Users' totals over HTTP, read from the view of a stream that runs elsewhere.

    python examples/totals_service.py VIEW [PORT]
    curl http://127.0.0.1:8000/totals/Sankar
    {"user": "Sankar", "total": 500, "version": 3}

VIEW is cassandra://host,host:port/keyspace/table or dynamodb://region/table, as passed to the
stream (the argument of examples/shopping_totals.py). Each request is one CQL query or one GetItem.
This program needs neither Holdfast nor Spark.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Total = Callable[[str], dict[str, int] | None]


def from_cassandra(view: str) -> Total:
    """The total of a user by one CQL query."""
    from cassandra import ConsistencyLevel
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile

    parts = urlsplit(view)
    keyspace, table = parts.path.strip("/").split("/")
    # As the view is written: so each answer has what was delivered before.
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.LOCAL_QUORUM)
    session = Cluster(
        str(parts.hostname).split(","),
        port=parts.port or 9042,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    ).connect()
    query = session.prepare(
        f'SELECT total, "_version" FROM "{keyspace}"."{table}" WHERE "user" = ?'
    )

    def total(user: str) -> dict[str, int] | None:
        row = session.execute(query, (user,)).one()
        return None if row is None else {"total": row[0], "version": row[1]}

    return total


def from_dynamodb(view: str) -> Total:
    """The total of a user by one GetItem."""
    import boto3

    parts = urlsplit(view)
    client = boto3.client("dynamodb", region_name=parts.netloc)

    def total(user: str) -> dict[str, int] | None:
        found = client.get_item(
            TableName=parts.path.strip("/"), Key={"user": {"S": user}}, ConsistentRead=True
        )
        item = found.get("Item")
        if item is None or "_deleted" in item:
            return None
        return {"total": int(item["total"]["N"]), "version": int(item["_version"]["N"])}

    return total


def handler(total: Total) -> type[BaseHTTPRequestHandler]:
    """Answers GET /totals/USER."""

    class Totals(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            _, _, user = self.path.partition("/totals/")
            found = total(unquote(user)) if user else None
            if found is None:
                self._answer(404, {"error": "nobody of that name has bought anything yet"})
            else:
                self._answer(200, {"user": unquote(user), **found})

        def _answer(self, status: int, body: dict[str, Any]) -> None:
            raw = json.dumps(body).encode() + b"\n"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name
            """Log nothing: requests name users."""

    return Totals


def main() -> None:
    view, port = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 8000
    total = (from_cassandra if view.startswith("cassandra:") else from_dynamodb)(view)
    with ThreadingHTTPServer(("127.0.0.1", port), handler(total)) as server:
        print(f"http://127.0.0.1:{server.server_port}/totals/USER", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
