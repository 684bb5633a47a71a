"""Real servers for tests and examples: fetched once, started on loopback, stopped by process id.

    with Kafka(folder) as broker:
        print(broker.address)

Downloads are kept in HOLDFAST_CACHE, ~/.cache/holdfast by default. A server comes back on the
same data and the same ports when it is started again.
"""

from __future__ import annotations

from servers.base import QUICK_START, Server, ServerError
from servers.cassandra import Cassandra
from servers.dynamodb import DynamoDb
from servers.hdfs import Hdfs
from servers.kafka import Kafka, connector_jars
from servers.minio import Minio
from servers.spark import SparkCluster

__all__ = [
    "QUICK_START",
    "Cassandra",
    "DynamoDb",
    "Hdfs",
    "Kafka",
    "Minio",
    "Server",
    "ServerError",
    "SparkCluster",
    "connector_jars",
]
