"""What clients of S3 and DynamoDB share: options, connections and kinds of failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ResponseStreamingError,
    SSOError,
    TokenRetrievalError,
)

from holdfast.clients.options import ClientOptions

_CONNECT_S, _READ_S = 10, 60


@dataclass(frozen=True, kw_only=True)
class AwsOptions(ClientOptions):
    """How a service is reached; None means that boto3 finds the value in its usual places."""

    endpoint_url: str | None = None
    key: str | None = None
    secret: str | None = None
    token: str | None = None


def new_client(
    service: str, region: str | None, options: AwsOptions, connections: int, **more: Any
) -> Any:
    """A client for all threads of this process. A fork must not use it: connections are shared."""
    # Not boto3's default session, which several threads must not use at once.
    return boto3.session.Session().client(
        service,
        endpoint_url=options.endpoint_url,
        region_name=region,
        aws_access_key_id=options.key,
        aws_secret_access_key=options.secret,
        aws_session_token=options.token,
        config=Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            max_pool_connections=connections,
            # `retried` alone decides what is tried again, and for how long.
            retries={"mode": "standard", "total_max_attempts": 1},
            **more,
        ),
    )


def code_of(error: Exception) -> str:
    """The service's code for a failure; empty if the failure is not the service's."""
    return str(error.response["Error"].get("Code", "")) if isinstance(error, ClientError) else ""


def status_of(error: Exception) -> int:
    """The HTTP status of a failure; 0 if the failure is not the service's."""
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def title_of(error: Exception) -> str:
    """The name of a failure: the service's code, or the client's exception."""
    return code_of(error) or type(error).__name__


def is_unreached(error: Exception) -> bool:
    """Whether the request did not reach the service, which may be available later."""
    unconnected = isinstance(error, EndpointConnectionError | ConnectTimeoutError)
    return unconnected and not is_unknown_host(error)


def is_lost(error: Exception) -> bool:
    """Whether the connection failed, so that the outcome of the request is unknown."""
    return isinstance(error, HTTPClientError | IncompleteReadError | ResponseStreamingError)


def lacks_credentials(error: Exception) -> bool:
    """Whether the client found no credentials to send."""
    return isinstance(
        error,
        NoCredentialsError
        | PartialCredentialsError
        | CredentialRetrievalError
        | SSOError
        | TokenRetrievalError,
    )


def is_unknown_host(error: Exception) -> bool:
    """Whether there is no such host."""
    reason = error.kwargs.get("error") if isinstance(error, EndpointConnectionError) else None
    return type(reason).__name__ in ("NameResolutionError", "gaierror")
