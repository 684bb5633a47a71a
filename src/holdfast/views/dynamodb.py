"""A view in DynamoDB.

A row is put on condition that the item there is of an older version, or none. A row that goes is
marked for a while, so that a late write of an older version finds it; DynamoDB removes the mark by
its time to live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from botocore.exceptions import ClientError

from holdfast.backends.aws_client import code_of
from holdfast.backends.dynamodb_client import (
    CONDITION_FAILED,
    IN_USE,
    MISSING,
    Client,
    DynamoDbOptions,
    Place,
)
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import Field
from holdfast.views.attributes import (
    GREATEST,
    MOST_ITEM_BYTES,
    SMALLEST,
    Attribute,
    attribute,
    attribute_bytes,
    item_bytes,
    name_bytes,
)
from holdfast.views.cells import plain_cells
from holdfast.views.keys import fits_in_columns, key_texts
from holdfast.views.mapping import is_leaf
from holdfast.views.owning import NOTES, Note, check_columns, check_note, columns_text
from holdfast.views.view import (
    DELETED,
    ENCODED,
    EXPIRES,
    KEY,
    VERSION,
    Standing,
    View,
    ViewSpec,
    is_unbounded,
)

Item = dict[str, Attribute]
MARK_DAYS = 7
"""How long a row that is gone stays marked."""
_MOST_KEY_COLUMNS = 2
_BYTES_PER_BYTE = 20
"""What a byte of Arrow can at most count in an item: a list of booleans holds eight in it."""
_IF_NEWER = {
    "ConditionExpression": "attribute_not_exists(#v) OR #v < :v",
    "ExpressionAttributeNames": {"#v": VERSION},
}


class DynamoDbView(View):
    """The first key column is the partition key, the second one sorts its items."""

    number_sizes = (SMALLEST, GREATEST)

    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        self._place = Place.of(spec.location)
        self._client = Client(
            spec.location, self._place, DynamoDbOptions.of(spec.options), spec.retry_timeout_ms
        )
        self._owner = ""
        keys = spec.schema.keys
        self.is_by_columns = len(keys) <= _MOST_KEY_COLUMNS and all(
            fits_in_columns(field.type, booleans=False) for field in keys
        )

    # -- making it -----------------------------------------------------------------------------

    def prepare(self, owner: str, root: str) -> Standing:
        note = self._note()
        found = self._keys_of(self._place.name)
        check_note(note, owner, self.spec.schema, self.spec.location, has_table=found is not None)
        self._owner = owner
        if note is None or found is None:
            return self._made(note, owner, root).standing
        return self._checked(note, found)

    def _checked(self, note: Note, found: dict[str, str]) -> Standing:
        """How far the view is, once its tables are seen to be as it made them."""
        check_columns(found, self._shape(self.is_by_columns), self._place.name)
        if not note.has_encoded:
            return note.standing
        name = self._place.name + ENCODED
        encoded = self._keys_of(name)
        if encoded is None:
            # Somebody deleted it, or a crash came before it was made: it has to be filled.
            self._create_rows(name, by_columns=False)
            return replace(note.standing, through=None)
        check_columns(encoded, self._shape(False), name)
        return note.standing

    def _made(self, before: Note | None, owner: str, root: str) -> Note:
        """Claim the name, then make the table: a claim without a table is made good later."""
        if self._keys_of(self._place.name + ENCODED) is not None:
            raise InvalidArgument(
                f"There is no table of the view {self.spec.location}, but one called "
                f"{self._place.name + ENCODED!r}, of an earlier view perhaps. Nothing was touched. "
                "Delete it, or name another table.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        if self._keys_of(NOTES) is None:
            self._create(NOTES, {"name": "S HASH"})
        note = Note(owner, root, columns_text(self.spec.schema))
        self._claim(before, note)
        self._create_rows(self._place.name, by_columns=self.is_by_columns)
        return note

    def _claim(self, before: Note | None, note: Note) -> None:
        item = {
            "name": {"S": self._place.name}, "owner": {"S": note.owner}, "root": {"S": note.root},
            "columns": {"S": note.columns}, "has_encoded": {"BOOL": False},
            "through": {"N": str(note.through)},
        }  # fmt: skip
        # After a reply that was lost the note is our own already.
        owners = {":own": {"S": note.owner}}
        condition = "attribute_not_exists(#o) OR #o = :own"
        if before is not None:
            owners[":before"] = {"S": before.owner}
            condition += " OR #o = :before"
        if not self._unless_refused(
            "note the view",
            lambda: self._client.boto.put_item(
                TableName=NOTES, Item=item, ConditionExpression=condition,
                ExpressionAttributeNames={"#o": "owner"}, ExpressionAttributeValues=owners,
            ),
        ):  # fmt: skip
            raise Unavailable(
                f"Another query has just claimed the view {self.spec.location}. Give each its own."
            )

    def _create_rows(self, name: str, *, by_columns: bool) -> None:
        self._create(name, self._shape(by_columns))
        ttl = {"Enabled": True, "AttributeName": EXPIRES}

        def let_marks_go() -> None:
            try:
                self._client.boto.update_time_to_live(TableName=name, TimeToLiveSpecification=ttl)
            except ClientError as error:
                if code_of(error) != "ValidationException":  # it was set already
                    raise

        self._client.call("set the time to live", let_marks_go)

    def _create(self, name: str, shape: dict[str, str]) -> None:
        parts = [(key, *text.split()) for key, text in shape.items()]

        def create() -> None:
            try:
                self._client.boto.create_table(
                    TableName=name,
                    KeySchema=[{"AttributeName": k, "KeyType": role} for k, _, role in parts],
                    AttributeDefinitions=[
                        {"AttributeName": k, "AttributeType": kind} for k, kind, _ in parts
                    ],
                    BillingMode="PAY_PER_REQUEST",
                )
            except ClientError as error:
                if code_of(error) != IN_USE:
                    raise

        self._client.call("create the table", create)
        self._client.call(
            "wait for the table",
            lambda: self._client.boto.get_waiter("table_exists").wait(
                TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 300}
            ),
        )

    def _shape(self, by_columns: bool) -> dict[str, str]:
        """The attributes of a table's key, with type and role."""
        if not by_columns:
            return {KEY: "S HASH"}
        roles = ("HASH", "RANGE")
        return {
            field.name: f"{attribute(field.type).type} {role}"
            for field, role in zip(self.spec.schema.keys, roles, strict=False)
        }

    def _keys_of(self, name: str) -> dict[str, str] | None:
        """The key of a table, None where there is none."""

        def describe() -> dict[str, str] | None:
            try:
                found = self._client.boto.describe_table(TableName=name)["Table"]
            except ClientError as error:
                if code_of(error) == MISSING:
                    return None
                raise
            kinds = {d["AttributeName"]: d["AttributeType"] for d in found["AttributeDefinitions"]}
            return {
                part["AttributeName"]: f"{kinds[part['AttributeName']]} {part['KeyType']}"
                for part in found["KeySchema"]
            }

        return self._client.call("look at the table", describe)

    def _note(self) -> Note | None:
        def read() -> Item | None:
            try:
                found = self._client.boto.get_item(
                    TableName=NOTES, Key={"name": {"S": self._place.name}}, ConsistentRead=True
                )
            except ClientError as error:
                if code_of(error) == MISSING:
                    return None
                raise
            item: Item | None = found.get("Item")
            return item

        item = self._client.call("read what is noted of the view", read)
        if item is None:
            return None
        return Note(
            item["owner"]["S"], item["root"]["S"], item["columns"]["S"],
            int(item["through"]["N"]), item["has_encoded"]["BOOL"],
        )  # fmt: skip

    def add_encoded(self) -> None:
        name = self._place.name + ENCODED
        note = self._note()
        if not (note is not None and note.has_encoded) and self._keys_of(name) is not None:
            raise InvalidArgument(
                f"The view {self.spec.location} needs a table {name!r} for keys that no primary "
                "key takes, and there is one that is not its own. Name another table for the view.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._update_note("SET has_encoded = :new", "", {":new": {"BOOL": True}})
        self._create_rows(name, by_columns=False)

    def note(self, version: int) -> None:
        self._update_note("SET through = :new", " AND through < :new", _version(":new", version))

    def _update_note(self, change: str, condition: str, values: dict[str, Attribute]) -> None:
        self._unless_refused(
            "note the version",
            lambda: self._client.boto.update_item(
                TableName=NOTES,
                Key={"name": {"S": self._place.name}},
                UpdateExpression=change,
                ConditionExpression="#o = :own" + condition,
                ExpressionAttributeNames={"#o": "owner"},
                ExpressionAttributeValues={":own": {"S": self._owner}, **values},
            ),
        )

    # -- keeping it up to date -----------------------------------------------------------------

    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        by_columns = self.is_by_columns and not encoded
        names = [*self._key_names(by_columns), *self._other_names(by_columns)]
        self._put_all(encoded, version, self._items(rows, names, _version(VERSION, version)))

    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = self._key_names(self.is_by_columns and not encoded)
        self._put_all(encoded, version, self._items(rows, names, self._mark(version)))

    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        removed = 0
        for encoded in (False, True) if has_encoded else (False,):
            names = self._key_names(self.is_by_columns and not encoded)
            for page in self._older_pages(version, self._name(encoded), names):
                mark = self._mark(version)
                self._put_all(encoded, version, ({**item, **mark} for item in page))
                removed += len(page)
        return removed

    def _older_pages(self, version: int, table: str, names: Sequence[str]) -> Iterator[list[Item]]:
        aliases = {f"#k{place}": name for place, name in enumerate(names)}
        request: dict[str, Any] = {
            "TableName": table,
            "ConsistentRead": True,
            "ProjectionExpression": ", ".join(aliases),
            "FilterExpression": "#v < :v AND attribute_not_exists(#d)",
            "ExpressionAttributeNames": {**aliases, "#v": VERSION, "#d": DELETED},
            "ExpressionAttributeValues": _version(":v", version),
        }
        while True:
            page = self._client.call("read rows", lambda: self._client.boto.scan(**request))
            yield page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def _mark(self, version: int) -> Item:
        until = int(time.time()) + MARK_DAYS * 86_400
        return {
            **_version(VERSION, version), DELETED: {"BOOL": True}, EXPIRES: {"N": str(until)},
        }  # fmt: skip

    def _put_all(self, encoded: bool, version: int, items: Iterator[Item]) -> None:
        table, newer = self._name(encoded), _version(":v", version)
        self._client.call_all("write rows", (self._put(table, item, newer) for item in items))

    def _put(self, table: str, item: Item, newer: Item) -> Callable[[], object]:
        def put() -> None:
            try:
                self._client.boto.put_item(
                    TableName=table, Item=item, ExpressionAttributeValues=newer, **_IF_NEWER
                )
            except ClientError as error:
                if code_of(error) != CONDITION_FAILED:
                    raise

        return put

    def _unless_refused(self, what: str, call: Callable[[], object]) -> bool:
        """Whether a conditional call went through."""

        def attempt() -> bool:
            try:
                call()
            except ClientError as error:
                if code_of(error) != CONDITION_FAILED:
                    raise
                return False
            return True

        return self._client.call(what, attempt)

    # -- limits --------------------------------------------------------------------------------

    @property
    def has_limits(self) -> bool:
        return any(is_unbounded(field) for field in self._fields.values())

    def check(self, rows: pa.Table) -> None:
        if rows.nbytes * _BYTES_PER_BYTE < MOST_ITEM_BYTES or not self._may_be_large(rows):
            return
        names = list(self._fields)
        for item in self._items(rows, [KEY, *names], _version(VERSION, 1 << 60)):
            size = item_bytes(item)
            if size > MOST_ITEM_BYTES:
                sizes = {n: name_bytes(n) + attribute_bytes(item[n]) for n in names}
                largest = max(sizes, key=lambda name: sizes[name])
                raise InvalidArgument(
                    f"A row of the view {self.spec.location} has {size:,} bytes, and an item of "
                    f"DynamoDB holds {MOST_ITEM_BYTES:,}; its column {largest!r} alone has "
                    f"{sizes[largest]:,}. Nothing of the version was written to the view. Leave "
                    "the column out of the state, or put the view in Cassandra.",
                    condition="STATE_STORE_VIEW_ROW_TOO_LARGE",
                )

    def _may_be_large(self, rows: pa.Table) -> bool:
        """False where no row can be too large, as far as the lengths of texts tell."""
        sizes = np.zeros(rows.num_rows, np.int64)
        for field in self._fields.values():
            if not is_leaf(field.type):
                return True
            if is_unbounded(field) and pa.types.is_struct(field.type.arrow):
                return True
            if is_unbounded(field):
                lengths = pc.binary_length(rows.column(field.name).combine_chunks())
                sizes += 2 * pc.fill_null(lengths, 0).to_numpy(zero_copy_only=False)
        spare = sum(64 + name_bytes(name) for name in self._fields)
        return bool(sizes.max(initial=0) + spare > MOST_ITEM_BYTES // 2)

    # -- names and cells -----------------------------------------------------------------------

    def _name(self, encoded: bool) -> str:
        return self._place.name + ENCODED if encoded else self._place.name

    def _key_names(self, by_columns: bool) -> list[str]:
        return list(self.spec.schema.keys.names) if by_columns else [KEY]

    def _other_names(self, by_columns: bool) -> list[str]:
        keys = () if by_columns else self.spec.schema.keys.names
        return [*keys, *self.spec.schema.values.names]

    @cached_property
    def _fields(self) -> dict[str, Field]:
        schema = self.spec.schema
        return {field.name: field for field in (*schema.keys, *schema.values)}

    def _items(self, rows: pa.Table, names: Sequence[str], more: Item) -> Iterator[Item]:
        columns = [self._attributes(rows, name) for name in names]
        for cells in zip(*columns, strict=True):
            yield {**dict(zip(names, cells, strict=True)), **more}

    def _attributes(self, rows: pa.Table, name: str) -> list[Attribute]:
        if name == KEY:
            return [{"S": text} for text in key_texts(self.spec.schema.keys, self._keys(rows))]
        kind = self._fields[name].type
        encode = attribute(kind).encode
        assert encode is not None
        return [encode(cell) for cell in plain_cells(kind, rows.column(name))]


def _version(name: str, version: int) -> Item:
    return {name: {"N": str(version)}}
