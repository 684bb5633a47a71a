"""`holdfast.open`: opens the store at a root, and creates it if there is none."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.backends.locations import open_storage
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.hashing.samples import check_samples
from holdfast.engine.partition.shape import StoreShape, check_same_store, check_shape
from holdfast.engine.storage import Runtime, Storage
from holdfast.engine.versions.first import first_version, new_store_entries
from holdfast.engine.versions.log import VersionLog
from holdfast.errors import Conflict, InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME, OPERATOR
from holdfast.standalone.versioned_store import VersionedStore
from holdfast.types import parse_schema
from holdfast.views import ViewSchema, ViewSpec

log = logging.getLogger(__name__)


def open_versioned_store(
    root: str | os.PathLike[str],
    key: Any = None,
    value: Any = None,
    *,
    partitions: int | None = None,
    key_index_ordinal: int | None = None,
    num_cols_prefix_key: int | None = None,
    conf: StateStoreConf | Mapping[str, Any] | None = None,
    options: Mapping[str, str] | None = None,
    view: str | None = None,
    view_options: Mapping[str, str] | None = None,
) -> VersionedStore:
    """Open the store at `root`, and create it if there is none.

        db = holdfast.open("totals", key="user string", value="total long")

    The arguments that describe the store are needed only to create it. For an existing store you
    can leave them out; if you pass one, it has to match.

    `root` is a local path, or the URL of a root on HDFS, S3, Cassandra, DynamoDB or in memory
    (`memory://name`).

    `key` and `value` are the schemas: DDL text such as "user string", a Spark StructType, or an
    Arrow schema.

    `partitions` is how many partitions the keys are spread over by their hash; 1 by default. It
    cannot be changed later.

    `key_index_ordinal` is the position, counted from 0, of the key column that ranges go by:
    `get_range(start, end)` then returns only keys in that range of the column, and `evict(upto)`
    drops all keys up to a value of it. Choose the column that says how old a key is, such as the
    end of a window. By default there is none.

    `num_cols_prefix_key` is how many leading key columns form a prefix: `prefix_scan(prefix)`
    then finds all keys that begin with it. Keys with equal prefixes are stored in one partition,
    side by side. By default there is no prefix.

    `conf` are the settings of this process, such as retention: a StateStoreConf or a dict by
    setting name. They are not stored.

    `options` say how to reach a remote root, such as endpoints and credentials. They are not
    stored either.

    `view` is the URL of a table that shows the newest version to other services, such as
    cassandra://host:9042/keyspace/table or dynamodb://region/table. It is created and filled if
    necessary, and every commit updates it. `view_options` say how to reach its database; by
    default as the clients' own configuration says.

    Returns a `VersionedStore`; close it, or use it as a context manager. Raises InvalidArgument if
    there is no store and a schema is missing, or if an argument differs from the existing store;
    Corruption if every version is damaged; and Unavailable if the storage does not answer.
    """
    settings = conf if isinstance(conf, StateStoreConf) else StateStoreConf.of(conf or {})
    return open_on(
        open_storage(_location(root), options, settings),
        Runtime.system(),
        key,
        value,
        partitions=partitions,
        key_index_ordinal=key_index_ordinal,
        num_cols_prefix_key=num_cols_prefix_key,
        conf=settings,
        options=options,
        view=view,
        view_options=view_options,
    )


def open_on(
    storage: Storage, runtime: Runtime, key: Any = None, value: Any = None, **arguments: Any
) -> VersionedStore:
    """Like `open_versioned_store`, with the storage, clocks and randomness given by a test.

    `storage` takes the place of `root`, and `runtime` of the system's clocks.
    """
    wanted = _WantedStore(storage.location, key, value, **arguments)
    versions = VersionLog(storage, runtime)
    manifest = versions.newest_intact()
    if manifest is None:
        manifest = wanted.created(versions, runtime)
    wanted.check_matches(manifest)
    settings, options, view = wanted.settings, wanted.options or {}, wanted.view_spec(manifest)
    return VersionedStore(
        storage.location, storage, versions, manifest, settings, options, runtime, view
    )


def _location(root: str | os.PathLike[str]) -> str:
    text = os.fspath(root)
    return (
        text
        if "://" in text or text.startswith("file:")
        else str(Path(text).expanduser().absolute())
    )


@dataclass(frozen=True)
class _WantedStore:
    """What the caller of `open_versioned_store` wants; None is left to what is there."""

    location: str
    key: Any
    value: Any
    partitions: int | None = None
    key_index_ordinal: int | None = None
    num_cols_prefix_key: int | None = None
    conf: StateStoreConf | Mapping[str, Any] | None = None
    options: Mapping[str, str] | None = None
    view: str | None = None
    view_options: Mapping[str, str] | None = None

    @property
    def settings(self) -> StateStoreConf:
        """Those of this process."""
        conf = self.conf
        return conf if isinstance(conf, StateStoreConf) else StateStoreConf.of(conf or {})

    def view_spec(self, manifest: Manifest) -> ViewSpec | None:
        """The view that is to show the store, if there is to be one."""
        if self.view is None:
            return None
        entry = manifest.operators[OPERATOR][DEFAULT_STORE_NAME]
        schema = ViewSchema(entry.key_schema, entry.value_schema)
        timeout_ms = self.settings.retry_timeout_ms
        return ViewSpec(self.view, schema, self.view_options or {}, timeout_ms)

    def created(self, versions: VersionLog, runtime: Runtime) -> Manifest:
        """Version 0 of the store, made here or by another process meanwhile."""
        if self.key is None or self.value is None:
            raise InvalidArgument(
                f"{self.location} holds no Holdfast state. To create a store there, pass its "
                'schemas: open(root, key="user string", value="total long").',
                condition="STATE_STORE_NOT_A_STORE",
            )
        partitions = 1 if self.partitions is None else self.partitions
        if partitions < 1:
            raise InvalidArgument(f"partitions must be 1 or more, not {partitions}.")
        key_schema, value_schema = parse_schema(self.key), parse_schema(self.value)
        prefix = self.num_cols_prefix_key or 0
        check_shape(key_schema, value_schema, self.key_index_ordinal, prefix)
        shape = StoreShape.of(key_schema, value_schema, self.key_index_ordinal, prefix)
        stores = new_store_entries({DEFAULT_STORE_NAME: shape}, partitions)
        try:
            versions.publish(first_version({OPERATOR: stores}, runtime), 1, runtime.monotonic_ms())
        except Conflict:
            log.info("%s was created by another process meanwhile", self.location)
        return versions.load(versions.newest() or 0)

    def check_matches(self, manifest: Manifest) -> None:
        """Raise InvalidArgument if the store that is there is another one."""
        try:
            stored = manifest.operators[OPERATOR][DEFAULT_STORE_NAME]
        except KeyError:
            raise InvalidArgument(
                f"{self.location} holds the state of a query, not a single store. Inspect it with "
                "`holdfast show`.",
                condition="STATE_STORE_NOT_A_STORE",
            ) from None
        shape = StoreShape.of(
            stored.key_schema if self.key is None else parse_schema(self.key),
            stored.value_schema if self.value is None else parse_schema(self.value),
            stored.key_index if self.key_index_ordinal is None else self.key_index_ordinal,
            stored.prefix if self.num_cols_prefix_key is None else self.num_cols_prefix_key,
        )
        check_same_store(stored, shape, self.location)
        check_samples(shape, manifest.hash_name, stored.hash_samples)
        if self.partitions is not None and self.partitions != len(stored.partitions):
            raise InvalidArgument(
                f"{self.location} has {len(stored.partitions)} partitions, not {self.partitions}. "
                "Leave the argument out to open it as it is.",
                condition="STATE_STORE_SCHEMA_MISMATCH",
            )
