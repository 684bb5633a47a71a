"""Many requests to DynamoDB: a bounded number at a time, sent again when it has no room."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest
from botocore.exceptions import (
    ClientError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    UnauthorizedSSOTokenError,
)

from holdfast.clients import dynamodb as dynamodb_client
from holdfast.clients.dynamodb import (
    IN_FLIGHT,
    DynamoDbAddress,
    DynamoDbClient,
    DynamoDbOptions,
    passes,
)
from holdfast.errors import InvalidArgument, Unavailable

LOCATION = "dynamodb://eu-west-1/totals"


def failure(code: str, status: int = 400, *reasons: str) -> ClientError:
    return ClientError(
        {
            "Error": {"Code": code},
            "ResponseMetadata": {"HTTPStatusCode": status},
            "CancellationReasons": [{"Code": reason} for reason in reasons],
        },
        "PutItem",
    )


@pytest.fixture
def client() -> DynamoDbClient:
    return DynamoDbClient(
        LOCATION, DynamoDbAddress.of(LOCATION), DynamoDbOptions(), limit_ms=10_000
    )


@pytest.mark.parametrize(
    "error",
    [
        *map(failure, sorted(dynamodb_client._DENIED)),
        NoCredentialsError(),
        UnauthorizedSSOTokenError(),
        CredentialRetrievalError(provider="sso", error_msg="expired"),
    ],
    ids=str,
)
def test_whoever_may_not_ask_is_told_what_to_set_and_not_to_try_again(
    client: DynamoDbClient, error: Exception
) -> None:
    calls = 0

    def request() -> None:
        nonlocal calls
        calls += 1
        raise error

    with pytest.raises(InvalidArgument, match="Set credentials that may") as refused:
        client.call("write to", request)
    assert refused.value.condition == "STATE_STORE_ACCESS_DENIED"
    assert calls == 1


def test_requests_in_flight_are_bounded_and_throttled_ones_are_sent_again(
    client: DynamoDbClient,
) -> None:
    lock = threading.Lock()
    running, most = 0, 0
    sent: Counter[int] = Counter()

    def request(number: int) -> None:
        nonlocal running, most
        with lock:
            sent[number] += 1
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        if number % 50 == 0 and sent[number] < 3:
            raise failure("ProvisionedThroughputExceededException")

    client.call_all("write", [lambda n=n: request(n) for n in range(4 * IN_FLIGHT)])
    assert 1 < most <= IN_FLIGHT
    assert {sent[number] for number in range(0, 4 * IN_FLIGHT, 50)} == {3}
    assert sum(sent.values()) == 4 * IN_FLIGHT + 2 * len(range(0, 4 * IN_FLIGHT, 50))


def test_after_the_first_failure_no_more_are_sent(client: DynamoDbClient) -> None:
    sent: list[int] = []
    ended = 0

    def request(number: int) -> None:
        nonlocal ended
        sent.append(number)
        if number == 1:
            raise failure("ValidationException")
        time.sleep(0.05)
        ended += 1

    with pytest.raises(InvalidArgument, match=r"Could not write .*ValidationException"):
        client.call_all("write", [lambda n=n: request(n) for n in range(20 * IN_FLIGHT)])
    assert len(sent) < 4 * IN_FLIGHT
    assert ended == len(sent) - 1  # those on their way were waited for


def test_an_outage_is_waited_out_once_for_all_requests() -> None:
    hasty = DynamoDbClient(LOCATION, DynamoDbAddress.of(LOCATION), DynamoDbOptions(), limit_ms=300)

    def refused() -> None:
        raise EndpointConnectionError(endpoint_url="x", error=ConnectionRefusedError())

    began = time.monotonic()
    with pytest.raises(Unavailable, match="Nothing is lost"):
        hasty.call_all("write", [refused] * (20 * IN_FLIGHT))
    assert time.monotonic() - began < 5 * 0.3


def test_requests_that_go_through_slowly_are_no_outage() -> None:
    hasty = DynamoDbClient(LOCATION, DynamoDbAddress.of(LOCATION), DynamoDbOptions(), limit_ms=600)
    began, lock, sent = time.monotonic(), threading.Lock(), 0

    def throttled() -> None:
        """One goes through in 50 ms, and that takes 1.6 s for all."""
        nonlocal sent
        with lock:
            if time.monotonic() - began < 0.05 * sent:
                raise failure("ThrottlingException")
            sent += 1

    hasty.call_all("write", [throttled] * IN_FLIGHT)
    assert sent == IN_FLIGHT


def test_threads_that_ask_at_once_share_one_client(
    client: DynamoDbClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []

    def slowly_made(*_: object) -> object:
        time.sleep(0.05)
        made.append(object())
        return made[-1]

    monkeypatch.setattr(dynamodb_client, "new_client", slowly_made)
    dynamodb_client._client_of.cache_clear()
    try:
        client.call_all("write", [lambda: client.boto] * (2 * IN_FLIGHT))
    finally:
        dynamodb_client._client_of.cache_clear()
    assert len(made) == 1


def test_what_has_no_answer_for_long_is_unavailable() -> None:
    hasty = DynamoDbClient(LOCATION, DynamoDbAddress.of(LOCATION), DynamoDbOptions(), limit_ms=50)
    with pytest.raises(Unavailable, match="Nothing is lost"):
        hasty.call("write", lambda: (_ for _ in ()).throw(failure("ThrottlingException")))


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (failure("ThrottlingException"), True),
        (failure("Whatever", 503), True),
        (failure("TransactionCanceledException", 400, "None", "TransactionConflict"), True),
        (failure("TransactionCanceledException", 400, "ConditionalCheckFailed"), False),
        (failure("ValidationException"), False),
        (EndpointConnectionError(endpoint_url="x", error=ConnectionRefusedError()), True),
        (NoCredentialsError(), False),
    ],
)
def test_only_what_passes_by_itself_is_sent_again(error: Exception, again: bool) -> None:
    assert passes(error) is again
