"""The databases of the kit: what they have answered is still there after a crash."""

from __future__ import annotations

import uuid

import pytest

from servers import Cassandra, DynamoDb

pytestmark = pytest.mark.services


def test_a_killed_cassandra_comes_back_with_its_data(cassandra: Cassandra) -> None:
    table = f"state.kit_{uuid.uuid4().hex}"
    with cassandra.cluster() as cluster:
        session = cluster.connect()
        session.execute(f"CREATE TABLE {table} (name text PRIMARY KEY)", timeout=60)
        session.execute(f"INSERT INTO {table} (name) VALUES ('kept') IF NOT EXISTS", timeout=60)
    cassandra.kill()
    cassandra.start()
    with cassandra.cluster() as cluster:
        assert [row.name for row in cluster.connect().execute(f"SELECT * FROM {table}")] == ["kept"]


def test_a_killed_dynamodb_comes_back_with_its_data(dynamodb: DynamoDb) -> None:
    table = f"kit-{uuid.uuid4().hex}"
    client = dynamodb.client()
    client.create_table(
        TableName=table,
        BillingMode="PAY_PER_REQUEST",
        KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
    )
    client.put_item(TableName=table, Item={"name": {"S": "kept"}})
    dynamodb.kill()
    dynamodb.start()
    assert client.scan(TableName=table)["Items"] == [{"name": {"S": "kept"}}]
