"""Clients of DynamoDB, one for each process, region and options, and what failures mean."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from holdfast.clients.aws import (
    AwsOptions,
    code_of,
    is_lost,
    is_unknown_host,
    is_unreached,
    lacks_credentials,
    new_client,
    status_of,
    title_of,
)
from holdfast.clients.retrying import Retrier, retried
from holdfast.errors import HoldfastError, InvalidArgument, Unavailable
from holdfast.schemes import DYNAMODB

T = TypeVar("T")
IN_FLIGHT = 32
"""The most requests that one process has in flight."""
_DENIED = frozenset({
    "AccessDenied", "AccessDeniedException", "ExpiredTokenException", "IncompleteSignature",
    "IncompleteSignatureException", "InvalidSignatureException", "MissingAuthenticationToken",
    "MissingAuthenticationTokenException", "NotAuthorized", "OptInRequired",
    "UnrecognizedClientException",
})  # fmt: skip
_BUSY = frozenset({
    "InternalServerError", "LimitExceededException", "ProvisionedThroughputExceededException",
    "RequestLimitExceeded", "ServiceUnavailable", "Throttling", "ThrottlingException",
    "TransactionConflictException", "TransactionInProgressException",
})  # fmt: skip
BUSY_REASONS = frozenset(
    {"ProvisionedThroughputExceeded", "ThrottlingError", "TransactionConflict"}
)
_TABLE = re.compile(r"[A-Za-z0-9_.\-]{3,240}")
CONDITION_FAILED = "ConditionalCheckFailedException"
MISSING = "ResourceNotFoundException"
IN_USE = "ResourceInUseException"


@dataclass(frozen=True, kw_only=True)
class DynamoDbOptions(AwsOptions):
    """How DynamoDB is reached."""

    scheme = DYNAMODB
    whose = "DynamoDB"
    hint = " The region is in the address."


@dataclass(frozen=True)
class DynamoDbAddress:
    """The parts of `dynamodb://region/name`."""

    region: str
    name: str

    @classmethod
    def of(cls, location: str) -> DynamoDbAddress:
        """Parse an address. Raises InvalidArgument where a part is missing or cannot be used."""
        parts = urlsplit(location)
        name = parts.path.strip("/")
        if not parts.netloc or not name or "/" in name:
            raise InvalidArgument(
                f"An address in DynamoDB is {DYNAMODB.view_form}. Credentials are options, not "
                "part of it."
            )
        if not _TABLE.fullmatch(name):
            raise InvalidArgument(
                f"{name!r} cannot be the name of a table here. Use 3 to 240 letters, digits, '_', "
                "'-' or '.'."
            )
        return cls(parts.netloc, name)


class DynamoDbClient:
    """boto3's client in this process."""

    def __init__(
        self, location: str, place: DynamoDbAddress, options: DynamoDbOptions, limit_ms: int
    ) -> None:
        self._location, self._place, self._options = location, place, options
        self._limit_ms = limit_ms

    @property
    def boto(self) -> Any:
        """The client itself."""
        try:
            return client_of(os.getpid(), self._place.region, self._options)
        except (ValueError, BotoCoreError) as error:
            raise InvalidArgument(
                f"{self._location} cannot be reached with its options or the environment's: "
                f"{type(error).__name__}. Check region, endpoint_url and profile."
            ) from None

    def call(self, what: str, call: Callable[[], T]) -> T:
        """Return what `call` returns, retried, with failures mapped to Holdfast's errors.

        `what` says in messages what was tried. `call` must catch the failures that it expects.
        """
        with self._mapping(what):
            return retried(call, passes, self._limit_ms)

    def call_all(self, what: str, calls: Iterable[Callable[[], object]]) -> None:
        """Make many calls, several at a time, each retried. The first failure is raised.

        They wait for the server together: it counts as a failure when none has succeeded for the
        time limit. After a failure no more calls are made, and those in flight have ended.
        """
        with self._mapping(what):
            Retrier(passes, self._limit_ms).call_all(_pool_of(os.getpid()), calls)

    @contextmanager
    def _mapping(self, what: str) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError) as error:
            raise self._mapped(error, what) from None

    def _mapped(self, error: BotoCoreError | ClientError, what: str) -> HoldfastError:
        failed = f"Could not {what} at {self._location}: {title_of(error)}."
        if (refused := refusal(error, failed)) is not None:
            return refused
        if not passes(error):
            return InvalidArgument(f"{failed} DynamoDB rejected the request.")
        return Unavailable(f"{failed} Nothing is lost: try again when DynamoDB answers.")


_lock = threading.Lock()


def _renew_lock() -> None:
    """A process may be forked while another of its threads holds the lock."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def client_of(pid: int, region: str, options: DynamoDbOptions) -> Any:
    """The client of a process: connections must not be shared with a fork.

    Threads that ask at the same time get the same client.
    """
    with _lock:
        return _client_of(pid, region, options)


@lru_cache(maxsize=16)
def _client_of(pid: int, region: str, options: DynamoDbOptions) -> Any:
    return new_client("dynamodb", region, options, IN_FLIGHT)


@lru_cache(maxsize=1)
def _pool_of(pid: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(IN_FLIGHT, "holdfast-dynamodb")


def reasons_of(error: Exception) -> set[str]:
    """Why a transaction was cancelled, one code for each part of it."""
    if not isinstance(error, ClientError):
        return set()
    return {str(reason.get("Code")) for reason in error.response.get("CancellationReasons", ())}


def passes(error: Exception) -> bool:
    """Whether a request may succeed the next time. Requires: it may be repeated."""
    busy = code_of(error) in _BUSY or not BUSY_REASONS.isdisjoint(reasons_of(error))
    return busy or is_lost(error) or is_unreached(error) or status_of(error) >= 500


def refusal(error: Exception, failed: str) -> InvalidArgument | None:
    """The error for a failure that needs a change of credentials or address; else None."""
    if lacks_credentials(error) or code_of(error) in _DENIED:
        return InvalidArgument(
            f"{failed} Set credentials that may describe, create, read and write tables there: "
            "options key and secret, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile.",
            condition="STATE_STORE_ACCESS_DENIED",
        )
    if is_unknown_host(error):
        return InvalidArgument(
            f"{failed} No such host: check the region in the address, and endpoint_url."
        )
    return None
