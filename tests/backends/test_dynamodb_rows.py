"""Chunks in DynamoDB: only those it had no room for are sent again, and none arrives too late."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from botocore.exceptions import ClientError

from holdfast.backends import dynamodb
from holdfast.backends.dynamodb import DynamoDbStorage
from holdfast.backends.root_rows import RootRows
from holdfast.conf import StateStoreConf

CHUNKS = 40


def failure(code: str) -> ClientError:
    response = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": 400}}
    return ClientError(response, "PutItem")


class Client:
    """Takes items, but for those `put` refuses."""

    def __init__(self, put: Callable[[int], None]) -> None:
        self._put = put
        self.sent: Counter[int] = Counter()
        self._lock = threading.Lock()

    def put_item(self, *, Item: dict[str, Any], **_: Any) -> None:
        number = int(Item["holdfast_place"]["S"].rpartition(":")[2])
        with self._lock:
            self.sent[number] += 1
        self._put(number)


def rows_of(monkeypatch: pytest.MonkeyPatch, client: Client, limit_ms: int = 10_000) -> RootRows:
    process = dynamodb._Process(client, ThreadPoolExecutor(8))
    monkeypatch.setattr(dynamodb, "_process_of", lambda *_: process)
    conf = StateStoreConf(retry_timeout_ms=limit_ms)
    return DynamoDbStorage("dynamodb://local/any", {}, conf).rows


def test_of_many_chunks_only_the_throttled_one_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def put(number: int) -> None:
        if number == 7 and client.sent[7] < 3:
            raise failure("ProvisionedThroughputExceededException")

    client = Client(put)
    rows_of(monkeypatch, client).put_chunks("upload", 0, [b"x"] * CHUNKS)
    assert client.sent == {**dict.fromkeys(range(CHUNKS), 1), 7: 3}


def test_nothing_is_on_its_way_any_more_when_a_chunk_was_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended: list[int] = []

    def put(number: int) -> None:
        if number == 0:
            raise failure("ValidationException")
        time.sleep(0.3)
        ended.append(number)

    client = Client(put)
    with pytest.raises(ClientError, match="ValidationException"):
        rows_of(monkeypatch, client).put_chunks("upload", 0, [b"x"] * CHUNKS)
    arrived = sorted(ended)
    assert sorted(client.sent) == [0, *arrived]
    assert len(arrived) < CHUNKS - 1, "those that were not sent are left out"
    time.sleep(0.5)
    assert sorted(ended) == arrived


def test_chunks_that_are_throttled_for_long_have_one_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def put(number: int) -> None:
        raise failure("ThrottlingException")

    started = time.monotonic()
    with pytest.raises(ClientError, match="ThrottlingException"):
        rows_of(monkeypatch, Client(put), 300).put_chunks("upload", 0, [b"x"] * CHUNKS)
    assert time.monotonic() - started < 3
