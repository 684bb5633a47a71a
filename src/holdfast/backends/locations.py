"""Which storage a root means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.backends.cache import cached
from holdfast.backends.fsspec import FsspecStorage
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage
from holdfast.errors import InvalidArgument

S3_SCHEMES = ("s3", "s3a")
DATABASE_SCHEMES = ("cassandra", "dynamodb")
_REMOTE = {
    "hdfs": ("hdfs", "hdfs_native", "holdfast.backends.hdfs", "HdfsStorage"),
    **dict.fromkeys(S3_SCHEMES, ("s3", "boto3", "holdfast.backends.s3", "S3Storage")),
    "cassandra": ("cassandra", "cassandra", "holdfast.backends.cassandra", "CassandraStorage"),
    "dynamodb": ("dynamodb", "boto3", "holdfast.backends.dynamodb", "DynamoDbStorage"),
}
"""By scheme the extra with the client, the client's module, and the storage over it."""
_SECRETS = {
    "cassandra": "HOLDFAST_CASSANDRA_USERNAME and HOLDFAST_CASSANDRA_PASSWORD",
    "dynamodb": "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
}
"""By scheme of a database the variables that say who asks."""


def open_storage(
    location: str | os.PathLike[str],
    options: Mapping[str, str] | None = None,
    conf: StateStoreConf = StateStoreConf.empty,
) -> Storage:
    """The storage for a root: a path or `file:` URI is local, `memory://name` lives in this
    process, `hdfs://`, `s3://` (or `s3a://`), `cassandra://` and `dynamodb://` are remote with
    copies of blobs kept locally, any other scheme goes through fsspec and can be read.

    `options` say how a remote storage is reached: credentials, an endpoint, settings of its own.
    """
    text = os.fspath(location)
    scheme = scheme_of(text)
    if scheme in DATABASE_SCHEMES:
        check_database_address(text)
    if scheme == "":
        return LocalStorage(Path(text).expanduser())
    if scheme in ("file", "local"):
        return LocalStorage(_path_of(text))
    if scheme == "memory":
        return MemoryStorage.named(text.removeprefix("memory://").strip("/"))
    if scheme in _REMOTE:
        remote: Storage = class_over(scheme, *_REMOTE[scheme])(text, options or {}, conf)
        return cached(remote, conf)
    return FsspecStorage(text, dict(options or {}))


def scheme_of(location: str) -> str:
    """The scheme of a root, "" for a path."""
    is_uri = "://" in location or location.startswith("file:")
    return urlsplit(location).scheme if is_uri else ""


def check_database_address(location: str) -> None:
    """Refuse an address in a database that says who asks, whatever else is wrong with it, and one
    with what a URI takes for a query or a fragment: two whose names differ in that would be one.

    The former is not shown: a password may have any character in it, so that no part is safe.
    """
    if "@" in location:
        variables = _SECRETS.get(scheme_of(location), "variables of the environment")
        raise InvalidArgument(
            "A name, a password or keys do not belong into an address, which is shown and kept: "
            f"give them as options, or as {variables}. Without them an address has no '@'."
        )
    if found := sorted({"?", "#"} & set(location)):
        raise InvalidArgument(
            f"{location} cannot be an address in a database, for it has a {found[0]!r} in it. "
            "Choose a name without."
        )


def _path_of(location: str) -> str:
    """The path of a `file:` URI, with what a URI would take for a query or a fragment.

    Spark writes such a location without escapes: a folder whose name has a `%` is taken as it is.
    """
    path = location.partition(":")[2]
    if path.startswith("//"):
        path = "/" + path[2:].partition("/")[2]
    return path if os.path.exists(path) else unquote(path)


def class_over(scheme: str, extra: str, client: str, module: str, name: str) -> Any:
    """A class that needs a client's package. Where that is missing, InvalidArgument names `extra`,
    which brings it.
    """
    try:
        import_module(client)
    except ImportError as error:
        raise InvalidArgument(
            f"{scheme}:// needs the package {client}, which is not installed: "
            f'pip install "holdfast[{extra}]"'
        ) from error
    return getattr(import_module(module), name)
