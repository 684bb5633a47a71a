"""Views in both databases, read as another service would: by plain CQL, or by boto3's client."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import holdfast
from holdfast.types import DataType, Schema, parse_schema
from holdfast.views.cassandra.types import cql, quote_cql
from holdfast.views.dynamodb.types import attribute
from servers import Cassandra, DynamoDb

Row = dict[str, Any]
TOTALS = {"key": "user string", "value": "total long"}


class ViewDatabase(ABC):
    """A database that views are put in."""

    def __init__(self) -> None:
        self._number = uuid.uuid4().hex[:8]

    def table(self, name: str) -> str:
        """A name of this test's own."""
        return f"{name}_{self._number}"

    @abstractmethod
    def location(self, table: str) -> str:
        """What goes into the option `view`."""

    @property
    @abstractmethod
    def options(self) -> dict[str, str]:
        """How Holdfast reaches it."""

    @abstractmethod
    def get(self, table: str, **key: Any) -> Row | None:
        """The row of a key."""

    @abstractmethod
    def rows(self, table: str) -> list[Row]:
        """All rows that are there."""

    @abstractmethod
    def create(self, table: str) -> None:
        """A table of somebody else's, with a row in it."""

    @abstractmethod
    def drop(self, table: str) -> None:
        """Drop a table."""

    @abstractmethod
    def forget_commit(self, table: str) -> None:
        """Leave the note of a view as earlier releases made it."""

    @abstractmethod
    def decode(self, kind: DataType, cell: Any) -> Any:
        """A cell as `plain_cells` gives it."""

    def decoded(self, schema: Schema | str, row: Mapping[str, Any]) -> dict[str, Any]:
        """The columns of a schema out of a row that was found."""
        return {
            field.name: self.decode(field.type, row[field.name]) for field in parse_schema(schema)
        }

    def totals(self, table: str) -> dict[str, tuple[int, int]]:
        """By user the total and its version, of a view (user string, total long)."""
        found = {}
        for row in self.rows(table):
            cells = self.decoded("user string, total long, _version long", row)
            found[cells["user"]] = (cells["total"], cells["_version"])
        return found


class InCassandra(ViewDatabase):
    def __init__(self, node: Cassandra) -> None:
        super().__init__()
        self.node = node

    def location(self, table: str) -> str:
        return f"cassandra://{self.node.address}/state/{table}"

    @property
    def options(self) -> dict[str, str]:
        return self.node.options

    @cached_property
    def session(self) -> Any:
        from cassandra.query import dict_factory

        session = self.node.cluster().connect("state")
        session.row_factory = dict_factory
        session.default_timeout = 60
        return session

    def close(self) -> None:
        if "session" in self.__dict__:
            self.session.cluster.shutdown()

    def get(self, table: str, **key: Any) -> Row | None:
        where = " AND ".join(f"{quote_cql(name)} = %s" for name in key)
        rows = self.session.execute(f"SELECT * FROM {table} WHERE {where}", tuple(key.values()))
        return rows.one()  # type: ignore[no-any-return]

    def rows(self, table: str) -> list[Row]:
        return list(self.session.execute(f"SELECT * FROM {table}"))

    def create(self, table: str) -> None:
        self.session.execute(f'CREATE TABLE {table} ("user" text PRIMARY KEY, total bigint)')
        self.session.execute(f"INSERT INTO {table} (\"user\", total) VALUES ('Jade', 1)")

    def drop(self, table: str) -> None:
        self.session.execute(f"DROP TABLE {table}")

    def forget_commit(self, table: str) -> None:
        forget = "UPDATE holdfast_views SET commit_id = null, filled = null, begun = null"
        self.session.execute(f"{forget} WHERE name = %s IF EXISTS", (table,))

    def decode(self, kind: DataType, cell: Any) -> Any:
        decode = cql(kind).decode
        return cell if cell is None or decode is None else decode(cell)


class InDynamoDb(ViewDatabase):
    def __init__(self, server: DynamoDb) -> None:
        super().__init__()
        self.server = server

    def location(self, table: str) -> str:
        return f"dynamodb://{self.server.region}/{table}"

    @property
    def options(self) -> dict[str, str]:
        return self.server.options

    @cached_property
    def client(self) -> Any:
        return self.server.client()

    def close(self) -> None:
        pass

    def get(self, table: str, **key: Any) -> Row | None:
        typed = {
            name: {"S": cell} if isinstance(cell, str) else {"N": str(cell)}
            for name, cell in key.items()
        }
        item = self.client.get_item(TableName=table, Key=typed, ConsistentRead=True).get("Item")
        return None if item is None or "_deleted" in item else item

    def rows(self, table: str) -> list[Row]:
        pages = self.client.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
        return [item for page in pages for item in page["Items"] if "_deleted" not in item]

    def create(self, table: str) -> None:
        self.client.create_table(
            TableName=table,
            BillingMode="PAY_PER_REQUEST",
            KeySchema=[{"AttributeName": "user", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "user", "AttributeType": "S"}],
        )
        self.client.put_item(TableName=table, Item={"user": {"S": "Jade"}, "total": {"N": "1"}})

    def drop(self, table: str) -> None:
        self.client.delete_table(TableName=table)

    def forget_commit(self, table: str) -> None:
        self.client.update_item(
            TableName="holdfast_views",
            Key={"name": {"S": table}},
            UpdateExpression="REMOVE commit_id, filled, begun",
        )

    def decode(self, kind: DataType, cell: Any) -> Any:
        decode = attribute(kind).decode
        assert decode is not None
        return decode(cell)


def open_with_view(
    database: ViewDatabase, root: Path | str, table: str, **more: Any
) -> holdfast.VersionedStore:
    """A store of totals, or of what `more` says, with its view."""
    given = {**TOTALS, **more}
    return holdfast.open(
        root, **given, view=database.location(table), view_options=database.options
    )


def put_totals(db: holdfast.VersionedStore, totals: dict[str | None, int | None]) -> None:
    """Commit totals; users with None go."""
    with db.update() as store:
        for user, total in totals.items():
            if total is None:
                store.remove((user,))
            else:
                store.put((user,), (total,))
