"""Blobs as items of one table of DynamoDB.

Changes that belong together are one transaction, and one that must not happen twice is a
conditional write. All reads are strongly consistent. Clients belong to a process, and all storages
with the same options share one.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from holdfast.backends.chunked import ChunkedStorage
from holdfast.backends.root_rows import BlobRow, DirectoryEntry, RootRows, UploadRow
from holdfast.clients.aws import code_of, title_of
from holdfast.clients.dynamodb import (
    BUSY_REASONS,
    CONDITION_FAILED,
    IN_USE,
    MISSING,
    DynamoDbOptions,
    client_of,
    passes,
    reasons_of,
    refusal,
)
from holdfast.clients.retrying import Retrier
from holdfast.conf import StateStoreConf
from holdfast.errors import HoldfastError, InvalidArgument, Unavailable
from holdfast.schemes import DYNAMODB

T = TypeVar("T")
Item = dict[str, dict[str, Any]]
PLACE_ATTRIBUTE, NAME = "holdfast_place", "holdfast_name"
"""The key of the table, with names by which Holdfast recognises it."""
_KEY = ((PLACE_ATTRIBUTE, "HASH"), (NAME, "RANGE"))
_DIRECTORIES = "directories"
_BLOB, _UPLOAD = "blob:", "upload:"
_PREFIX = re.compile(r"[A-Za-z0-9_.\-]{1,200}")
_IN_FLIGHT = 16
_ACTIVE_S, _ACTIVE_CHECKS = 0.5, 240
_FAILED = "ConditionalCheckFailed"


class DynamoDbStorage(ChunkedStorage):
    """Blobs below a folder of one root. Each root has its own table, which is created."""

    def __init__(
        self,
        location: str,
        options: Mapping[str, str] | None = None,
        conf: StateStoreConf = StateStoreConf.empty,
    ) -> None:
        parts = urlsplit(location)
        prefix, _, folder = parts.path.strip("/").partition("/")
        if not (parts.netloc and prefix):
            raise InvalidArgument(f"{location} is not complete. Write {DYNAMODB.form}.")
        if not _PREFIX.fullmatch(prefix):
            raise InvalidArgument(
                f"{prefix!r} cannot begin the name of a table. Use up to 200 letters, digits, "
                "'_', '-' or '.'."
            )
        reached = DynamoDbOptions.of(options or {})
        rows = _DynamoDbRows(f"{prefix}-holdfast", parts.netloc, reached, conf.retry_timeout_ms)
        where = f"dynamodb://{parts.netloc}/{parts.path.strip('/')}"
        super().__init__(where, folder, rows)


class _DynamoDbRows(RootRows):
    chunk_bytes = 350_000
    errors = (BotoCoreError, ClientError)

    def __init__(self, table: str, region: str, options: DynamoDbOptions, limit_ms: int) -> None:
        super().__init__(limit_ms)
        self.table, self._region, self._options = table, region, options

    def passes(self, error: Exception) -> bool:
        return passes(error)

    def mapped(self, error: Exception, failed: str) -> HoldfastError:
        failed = f"{failed}{title_of(error)}."
        if (refused := refusal(error, failed)) is not None:
            return refused
        if not self.passes(error):
            return Unavailable(f"{failed} The server rejected the request.")
        return Unavailable(f"{failed} Try again; `holdfast doctor` checks the root.")

    @property
    def client(self) -> Any:
        """boto3's client in this process."""
        return self._process.client

    @property
    def _process(self) -> _Process:
        try:
            return _process_of(os.getpid(), self._region, self._options)
        except (ValueError, BotoCoreError) as error:
            raise InvalidArgument(
                f"The table {self.table} cannot be reached with its options or the environment's: "
                f"{type(error).__name__}. Check endpoint_url, region and profile."
            ) from None  # its text may show an option's value

    # The table

    def exist(self) -> bool:
        known = (self.table, "")
        if known in self._process.known:
            return True
        status = self._status()
        if status in ("ACTIVE", "UPDATING"):
            self._process.known.add(known)
            return True
        return False

    def make(self) -> None:
        if self.exist():
            return
        if self._status() is None:
            self._create()
        for _ in range(_ACTIVE_CHECKS):
            if self.exist():
                return
            time.sleep(_ACTIVE_S)
        raise Unavailable(f"The table {self.table} does not become active. Try again later.")

    def _status(self) -> str | None:
        """The table's status; None without a table. Raises InvalidArgument for another key."""
        try:
            found = self.client.describe_table(TableName=self.table)["Table"]
        except ClientError as error:
            if code_of(error) == MISSING:
                return None
            raise
        key = {(each["AttributeName"], each["KeyType"]) for each in found["KeySchema"]}
        types = {
            each["AttributeName"]: each["AttributeType"] for each in found["AttributeDefinitions"]
        }
        if key != set(_KEY) or any(types.get(name) != "S" for name, _ in _KEY):
            raise InvalidArgument(
                f"The table {self.table} is not Holdfast's: its key is not the texts "
                f"{PLACE_ATTRIBUTE} and {NAME}. Nothing was changed. Use another "
                "prefix, or move that table away.",
                condition="STATE_STORE_SCHEMA_MISMATCH",
            )
        return str(found["TableStatus"])

    def _create(self) -> None:
        try:
            self.client.create_table(
                TableName=self.table,
                BillingMode="PAY_PER_REQUEST",
                KeySchema=[{"AttributeName": name, "KeyType": kind} for name, kind in _KEY],
                AttributeDefinitions=[
                    {"AttributeName": name, "AttributeType": "S"} for name, _ in _KEY
                ],
            )
        except ClientError as error:
            if code_of(error) != IN_USE:  # another process was faster
                raise

    # Directories

    def note_directory(self, directory: str) -> None:
        known = (self.table, f"/{directory}")
        if known not in self._process.known:
            self.client.put_item(TableName=self.table, Item=_key(_DIRECTORIES, f"/{directory}"))
            self._process.known.add(known)

    def directories(self, prefix: str) -> list[str]:
        found = [item[NAME]["S"][1:] for item in self._query(_DIRECTORIES, f"/{prefix}")]
        return [name for name in found if not prefix or f"{name}/".startswith(f"{prefix}/")]

    # Blob and upload rows

    def blob(self, place: DirectoryEntry) -> BlobRow | None:
        item = self._get(_blob_key(place))
        if item is None:
            return None
        data = item.get("data")
        return BlobRow(
            item["upload"]["S"],
            _number(item, "size"),
            _number(item, "chunks"),
            _number(item, "chunk_bytes"),
            None if data is None else bytes(data["B"]),
        )

    def blobs(self, directories: Sequence[str]) -> list[tuple[DirectoryEntry, int]]:
        return [
            (DirectoryEntry(directory, item[NAME]["S"].removeprefix(_BLOB)), _number(item, "size"))
            for directory, item in self._of_all(directories, _BLOB)
        ]

    def uploads(self, directories: Sequence[str]) -> list[UploadRow]:
        return [
            UploadRow(
                DirectoryEntry(directory, item[NAME]["S"].removeprefix(_UPLOAD)),
                _number(item, "chunks"),
                _number(item, "touched_ms"),
                item["live"]["BOOL"],
            )
            for directory, item in self._of_all(directories, _UPLOAD)
        ]

    def create(self, place: DirectoryEntry, row: BlobRow) -> bool:
        return self._holds(lambda: self.client.put_item(**self._new_blob(place, row)))

    def begin(self, upload: UploadRow) -> None:
        item = {**_upload_key(upload.place), **_upload_values(upload)}
        self._holds(
            lambda: self.client.put_item(
                TableName=self.table,
                Item=item,
                ConditionExpression=f"attribute_not_exists({PLACE_ATTRIBUTE})",
            )
        )

    def touch(self, upload: UploadRow) -> bool:
        return self._update(
            upload,
            "SET chunks = :chunks, touched_ms = :touched",
            "live = :live",
            {
                ":chunks": _n(upload.chunks),
                ":touched": _n(upload.touched_ms),
                ":live": {"BOOL": True},
            },
        )

    def finish(self, place: DirectoryEntry, row: BlobRow) -> bool:
        return self._together({"Put": self._new_blob(place, row)}, self._end_of(place, row))

    def replace(self, place: DirectoryEntry, before: BlobRow, row: BlobRow) -> bool:
        put = {
            **self._new_blob(place, row),
            "ConditionExpression": "upload = :before",
            "ExpressionAttributeValues": {":before": {"S": before.upload}},
        }
        changes: list[Mapping[str, Any]] = [{"Put": put}]
        if row.data is None:
            changes.append(self._end_of(place, row))
        if before.chunks:
            changes.append(self._dead(place, before))
        return self._together(*changes)

    def give_up(self, upload: UploadRow) -> bool:
        return self._update(
            upload,
            "SET live = :dead",
            "live = :live AND touched_ms = :touched",
            {":dead": {"BOOL": False}, ":live": {"BOOL": True}, ":touched": _n(upload.touched_ms)},
        )

    def remove(self, place: DirectoryEntry, row: BlobRow) -> None:
        removed = {
            "TableName": self.table,
            "Key": _blob_key(place),
            "ConditionExpression": "upload = :upload",
            "ExpressionAttributeValues": {":upload": {"S": row.upload}},
        }
        if not row.chunks:
            self._holds(lambda: self.client.delete_item(**removed))
            return
        self._together({"Delete": removed}, self._dead(place, row))

    def forget(self, upload: DirectoryEntry) -> None:
        self.client.delete_item(**self._upload(upload))

    # Chunks

    def put_chunks(self, upload: str, first: int, chunks: Sequence[bytes]) -> None:
        self._all(
            lambda chunk: self.client.put_item(
                TableName=self.table,
                Item={**_chunk_key(upload, chunk[0]), "data": {"B": chunk[1]}},
            ),
            enumerate(chunks, first),
        )

    def get_chunks(self, upload: str, numbers: range) -> list[bytes | None]:
        found = self._all(lambda number: self._get(_chunk_key(upload, number)), numbers)
        return [None if item is None else bytes(item["data"]["B"]) for item in found]

    def delete_chunks(self, upload: str, count: int) -> None:
        self._all(
            lambda number: self.client.delete_item(
                TableName=self.table, Key=_chunk_key(upload, number)
            ),
            range(count),
        )

    # Requests

    def _new_blob(self, place: DirectoryEntry, row: BlobRow) -> dict[str, Any]:
        """The request to put a blob's item where there is none."""
        item: Item = {
            **_blob_key(place),
            "upload": {"S": row.upload},
            "size": _n(row.size),
            "chunks": _n(row.chunks),
            "chunk_bytes": _n(row.chunk_bytes),
        }
        if row.data is not None:
            item["data"] = {"B": row.data}
        return {
            "TableName": self.table,
            "Item": item,
            "ConditionExpression": f"attribute_not_exists({PLACE_ATTRIBUTE})",
        }

    def _end_of(self, place: DirectoryEntry, row: BlobRow) -> dict[str, Any]:
        """The part of a transaction that ends the live upload of a blob."""
        return {
            "Delete": {
                **self._upload(DirectoryEntry(place.directory, row.upload)),
                "ConditionExpression": "live = :live",
                "ExpressionAttributeValues": {":live": {"BOOL": True}},
            }
        }

    def _dead(self, place: DirectoryEntry, row: BlobRow) -> dict[str, Any]:
        """The part of a transaction that makes a blob's chunks those of a dead upload."""
        dead = UploadRow(DirectoryEntry(place.directory, row.upload), row.chunks, 0, is_live=False)
        item = {**_upload_key(dead.place), **_upload_values(dead)}
        return {"Put": {"TableName": self.table, "Item": item}}

    def _upload(self, upload: DirectoryEntry) -> dict[str, Any]:
        return {"TableName": self.table, "Key": _upload_key(upload)}

    def _update(
        self, upload: UploadRow, change: str, condition: str, values: Mapping[str, Any]
    ) -> bool:
        return self._holds(
            lambda: self.client.update_item(
                **self._upload(upload.place),
                UpdateExpression=change,
                ConditionExpression=condition,
                ExpressionAttributeValues=values,
            )
        )

    def _together(self, *changes: Mapping[str, Any]) -> bool:
        return self._holds(lambda: self.client.transact_write_items(TransactItems=list(changes)))

    def _holds(self, change: Callable[[], object]) -> bool:
        """Make a change; return False where its condition does not hold."""
        try:
            change()
        except ClientError as error:
            if code_of(error) == CONDITION_FAILED:
                return False
            reasons = reasons_of(error)
            if _FAILED in reasons and BUSY_REASONS.isdisjoint(reasons):
                return False
            raise
        return True

    def _get(self, key: Item) -> Item | None:
        found = self.client.get_item(TableName=self.table, Key=key, ConsistentRead=True)
        item: Item | None = found.get("Item")
        return item

    def _query(self, place: str, prefix: str) -> list[Item]:
        """The items of a place whose names begin with `prefix`, without their data."""
        pages = self.client.get_paginator("query").paginate(
            TableName=self.table,
            ConsistentRead=True,
            KeyConditionExpression=f"{PLACE_ATTRIBUTE} = :place AND begins_with({NAME}, :prefix)",
            ExpressionAttributeValues={":place": {"S": place}, ":prefix": {"S": prefix}},
            ProjectionExpression=f"{NAME}, #size, chunks, touched_ms, live",
            ExpressionAttributeNames={"#size": "size"},
        )
        return [item for page in pages for item in page["Items"]]

    def _of_all(self, directories: Sequence[str], prefix: str) -> list[tuple[str, Item]]:
        """The items of a kind in several directories, each with its directory."""
        found = self._all(lambda each: self._query(_directory(each), prefix), directories)
        return [
            (directory, item)
            for directory, items in zip(directories, found, strict=True)
            for item in items
        ]

    def _all(self, call: Callable[[Any], T], values: Iterable[Any]) -> list[T]:
        """Return what `call` returns for each value, several at a time, each retried.

        When one fails for good, requests that were not sent are dropped, and the others awaited.
        """
        together = Retrier(self.passes, self.limit_ms)
        calls = [partial(call, value) for value in values]
        if len(calls) == 1:
            return [together.call(calls[0])]
        return together.call_all(self._process.pool, calls)


@dataclass
class _Process:
    """What all storages of a process share."""

    client: Any
    pool: ThreadPoolExecutor
    known: set[tuple[str, str]] = field(default_factory=set)
    """Tables that exist, and directories that are noted."""


@lru_cache(maxsize=16)
def _process_of(pid: int, region: str, options: DynamoDbOptions) -> _Process:
    client = client_of(pid, region, options)
    return _Process(client, ThreadPoolExecutor(_IN_FLIGHT, "holdfast-dynamodb"))


def _key(place: str, name: str) -> Item:
    return {PLACE_ATTRIBUTE: {"S": place}, NAME: {"S": name}}


def _directory(directory: str) -> str:
    return f"directory:/{directory}"


def _blob_key(place: DirectoryEntry) -> Item:
    return _key(_directory(place.directory), _BLOB + place.name)


def _upload_key(upload: DirectoryEntry) -> Item:
    return _key(_directory(upload.directory), _UPLOAD + upload.name)


def _chunk_key(upload: str, number: int) -> Item:
    # Every chunk has its own partition key: DynamoDB limits the throughput of a single one.
    return _key(f"chunk:{upload}:{number}", "chunk")


def _upload_values(upload: UploadRow) -> Item:
    return {
        "chunks": _n(upload.chunks),
        "touched_ms": _n(upload.touched_ms),
        "live": {"BOOL": upload.is_live},
    }


def _n(number: int) -> dict[str, str]:
    return {"N": str(number)}


def _number(item: Item, name: str) -> int:
    return int(item[name]["N"])
