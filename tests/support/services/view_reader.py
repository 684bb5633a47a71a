"""Another service: reads users' totals by plain CQL or GetItem, again and again.

    python view_reader.py ADDRESS TABLE USERS FILE

ADDRESS is host:port of Cassandra or the URL of DynamoDB. Writes what it read to FILE, one JSON
array [user, total, version] a line, until it is ended. It imports nothing of Holdfast's.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

Read = Callable[[str], tuple[int, int] | None]


def by_cql(address: str, table: str) -> Read:
    from cassandra.cluster import Cluster
    from cassandra.policies import ConstantReconnectionPolicy

    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    host, port = address.split(":")
    cluster = Cluster(
        [host], port=int(port), reconnection_policy=ConstantReconnectionPolicy(0.5, None)
    )
    session = cluster.connect("state")
    total = f'SELECT total, "_version" FROM {table} WHERE "user" = %s'

    def read(user: str) -> tuple[int, int] | None:
        row = session.execute(total, (user,), timeout=5).one()
        return None if row is None else (row[0], row[1])

    return read


def by_get_item(url: str, table: str) -> Read:
    import boto3

    client = boto3.client(
        "dynamodb",
        endpoint_url=url,
        region_name="local",
        aws_access_key_id="any",
        aws_secret_access_key="any",
    )

    def read(user: str) -> tuple[int, int] | None:
        found = client.get_item(TableName=table, Key={"user": {"S": user}}, ConsistentRead=True)
        item: dict[str, Any] | None = found.get("Item")
        if item is None or "_deleted" in item:
            return None
        return int(item["total"]["N"]), int(item["_version"]["N"])

    return read


def reads(read: Read, users: list[str]) -> Iterator[list[Any]]:
    while True:
        for user in users:
            try:
                found = read(user)
            except Exception:  # the server is away, or the table is not there yet
                time.sleep(0.2)
                continue
            if found is not None:
                yield [user, *found]
        time.sleep(0.1)


def connected(address: str, table: str) -> Read:
    while True:
        try:
            return (by_get_item if "://" in address else by_cql)(address, table)
        except Exception:  # as above
            time.sleep(0.5)


def main() -> None:
    address, table, users, path = sys.argv[1:]
    with open(path, "a") as file:
        for found in reads(connected(address, table), users.split(",")):
            file.write(json.dumps(found) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
