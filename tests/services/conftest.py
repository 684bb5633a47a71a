"""Servers for the tests of this folder. One that cannot start fails the tests that need it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from servers import Kafka, SparkCluster


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker for the whole run; tests use topics of their own."""
    with Kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A Spark master with two workers of one core; one application at a time fits in."""
    with SparkCluster(tmp_path_factory.mktemp("spark")) as cluster:
        yield cluster
