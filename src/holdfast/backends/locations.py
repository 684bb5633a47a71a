"""Which storage a root means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

from holdfast.backends.cache import cached
from holdfast.backends.fsspec import FsspecStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.storage import Storage
from holdfast.errors import InvalidArgument
from holdfast.schemes import Scheme, scheme_of


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
    if scheme is None:
        return FsspecStorage(text, dict(options or {}))
    if scheme.is_database:
        check_database_address(text)
    storage: Storage = loaded(scheme, scheme.storage)(text, options or {}, conf)
    return cached(storage, conf) if scheme.is_remote else storage


def check_database_address(location: str) -> None:
    """Refuse an address in a database that says who asks, whatever else is wrong with it, and one
    with what a URI takes for a query or a fragment: two whose names differ in that would be one.

    The former is not shown: a password may have any character in it, so that no part is safe.
    """
    if "@" in location:
        scheme = scheme_of(location)
        variables = Scheme.credentials if scheme is None else scheme.credentials
        raise InvalidArgument(
            "A name, a password or keys do not belong into an address, which is shown and kept: "
            f"give them as options, or as {variables}. Without them an address has no '@'."
        )
    if found := sorted({"?", "#"} & set(location)):
        raise InvalidArgument(
            f"{location} cannot be an address in a database, for it has a {found[0]!r} in it. "
            "Choose a name without."
        )


def loaded(scheme: Scheme, path: str) -> Any:
    """What `path` in a scheme's record names. Raises InvalidArgument where the client is missing,
    and names the extra that brings it.
    """
    try:
        if scheme.client is not None:
            import_module(scheme.client)
    except ImportError as error:
        raise InvalidArgument(
            f"{scheme.name}:// needs the package {scheme.package}, which is not installed: "
            f'pip install "holdfast[{scheme.extra}]"'
        ) from error
    module, _, name = path.partition(":")
    return attrgetter(name)(import_module(module))
