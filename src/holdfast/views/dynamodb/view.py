"""A view in DynamoDB.

A row is put on condition that there is no item, or one of an older version. A removed row stays as
a mark for a while, so that a late write of an older version finds it and fails; DynamoDB then
deletes the mark by its time to live.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from botocore.exceptions import ClientError

from holdfast.clients.aws import code_of
from holdfast.clients.dynamodb import (
    CONDITION_FAILED,
    IN_USE,
    MISSING,
    DynamoDbAddress,
    DynamoDbClient,
    DynamoDbOptions,
)
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.views.cells import plain_cells
from holdfast.views.dynamodb.types import (
    GREATEST,
    MOST_ITEM_BYTES,
    SMALLEST,
    Attribute,
    attribute,
    attribute_bytes,
    item_bytes,
    name_bytes,
)
from holdfast.views.keys import fits_in_columns, key_texts
from holdfast.views.mapping import is_leaf
from holdfast.views.ownership import (
    NOTES,
    Note,
    check_notes,
    check_table_name,
    noted_begun,
    noted_standing,
    noted_through,
)
from holdfast.views.tables import TableView
from holdfast.views.view import (
    DELETED,
    EXPIRES_ATTRIBUTE,
    KEY,
    VERSION,
    ViewProgress,
    ViewSpec,
    is_unbounded,
)

NoteItem = dict[str, Attribute]
MARK_DAYS = 7
"""How long the mark of a removed row stays."""
_NOTES_KEY = {"name": "S HASH"}
_MOST_KEY_COLUMNS = 2
_UNSETTLED = ("CREATING", "DELETING")
_SETTLED_S, _SETTLED_CHECKS = 1.0, 300
_BYTES_PER_BYTE = 20
"""The most bytes of an item for one byte of Arrow, in which a list of booleans has eight cells."""
_IF_NEWER = {
    "ConditionExpression": "attribute_not_exists(#v) OR #v < :v",
    "ExpressionAttributeNames": {"#v": VERSION},
}


class DynamoDbView(TableView):
    """The first key column is the partition key, the second one sorts its items."""

    number_sizes = (SMALLEST, GREATEST)

    def __init__(self, spec: ViewSpec) -> None:
        self.spec = spec
        place = DynamoDbAddress.of(spec.location)
        self.name = place.name
        check_table_name(self.name)
        self._client = DynamoDbClient(
            spec.location, place, DynamoDbOptions.of(spec.options), spec.retry_timeout_ms
        )
        keys = spec.schema.keys
        self.is_by_columns = len(keys) <= _MOST_KEY_COLUMNS and all(
            fits_in_columns(field.type, booleans=False) for field in keys
        )

    # -- creating it ---------------------------------------------------------------------------

    def prepare(self, owner: str, root: str) -> ViewProgress:
        check_notes(self._found(NOTES), _NOTES_KEY, self.spec.location)
        return super().prepare(owner, root)

    def _make_notes(self) -> None:
        if self._found(NOTES) is None:
            self._create_table(NOTES, _NOTES_KEY)

    def _claim(self, before: Note | None, note: Note) -> bool:
        item = {
            "name": {"S": self.name},
            "owner": {"S": note.owner},
            "root": {"S": note.root},
            "columns": {"S": note.columns},
            "has_encoded": {"BOOL": False},
            **_number("through", noted_through(note.standing)),
        }
        condition: dict[str, Any] = {"ConditionExpression": "attribute_not_exists(#o)"}
        if before is not None:
            # Its owner may have updated it since: then it must not be created again.
            expression, values = _still(before.standing)
            values |= {":o": {"S": before.owner}, ":e": {"BOOL": before.standing.has_encoded}}
            condition = {
                "ConditionExpression": f"#o = :o AND has_encoded = :e AND {expression}",
                "ExpressionAttributeValues": values,
            }
        return self._unless_refused(
            "note the view",
            lambda: self._client.boto.put_item(
                TableName=NOTES, Item=item, ExpressionAttributeNames={"#o": "owner"}, **condition
            ),
        )

    def _create(self, table: str, *, by_columns: bool) -> None:
        self._create_table(table, self._shape(by_columns=by_columns))
        self._complete(table)

    def _complete(self, table: str) -> None:
        ttl = {"Enabled": True, "AttributeName": EXPIRES_ATTRIBUTE}

        def let_marks_go() -> None:
            try:
                self._client.boto.update_time_to_live(TableName=table, TimeToLiveSpecification=ttl)
            except ClientError as error:
                if code_of(error) != "ValidationException":  # it was set already
                    raise

        self._client.call("set the time to live", let_marks_go)

    def _create_table(self, table: str, shape: dict[str, str]) -> None:
        parts = [(key, *text.split()) for key, text in shape.items()]

        def create() -> None:
            try:
                self._client.boto.create_table(
                    TableName=table,
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
        self._settled(table, is_made=True)

    def _shape(self, *, by_columns: bool) -> dict[str, str]:
        if not by_columns:
            return {KEY: "S HASH"}
        roles = ("HASH", "RANGE")
        return {
            field.name: f"{attribute(field.type).type} {role}"
            for field, role in zip(self.spec.schema.keys, roles, strict=False)
        }

    def _found(self, table: str) -> dict[str, str] | None:
        found = self._settled(table, is_made=False)
        if found is None:
            return None
        kinds = {d["AttributeName"]: d["AttributeType"] for d in found["AttributeDefinitions"]}
        return {
            part["AttributeName"]: f"{kinds[part['AttributeName']]} {part['KeyType']}"
            for part in found["KeySchema"]
        }

    def _settled(self, table: str, *, is_made: bool) -> dict[str, Any] | None:
        """DynamoDB's description of a table, once creating or deleting it has ended.

        None where there is no table. With `is_made` the table was created, and may appear later.
        """
        found: dict[str, Any] | None = None
        for _ in range(_SETTLED_CHECKS):
            found = self._client.call("look at the table", lambda: self._described(table))
            if found is None and not is_made:
                return None
            if found is not None and found["TableStatus"] not in _UNSETTLED:
                return found
            time.sleep(_SETTLED_S)
        status = "not visible" if found is None else found["TableStatus"]
        raise Unavailable(
            f"The table {table!r} of the view {self.spec.location} is still {status}. Nothing is "
            "lost. Try again when it is ACTIVE, or deleted."
        )

    def _described(self, table: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._client.boto.describe_table(TableName=table)["Table"]
        except ClientError as error:
            if code_of(error) == MISSING:
                return None
            raise
        return found

    def _note(self) -> Note | None:
        def read() -> NoteItem | None:
            try:
                found = self._client.boto.get_item(
                    TableName=NOTES, Key={"name": {"S": self.name}}, ConsistentRead=True
                )
            except ClientError as error:
                if code_of(error) == MISSING:
                    return None
                raise
            item: NoteItem | None = found.get("Item")
            return item

        item = self._client.call("read what is noted of the view", read)
        if item is None:
            return None
        standing = noted_standing(
            int(item["through"]["N"]),
            item["has_encoded"]["BOOL"],
            item["commit_id"]["S"] if "commit_id" in item else None,
            int(item["filled"]["N"]) if "filled" in item else None,
            item["begun"]["S"] if "begun" in item else None,
        )
        return Note(item["owner"]["S"], item["root"]["S"], item["columns"]["S"], standing)

    def _note_encoded(self) -> None:
        self._update_note("SET has_encoded = :new", "", {":new": {"BOOL": True}})

    def note(self, before: ViewProgress, after: ViewProgress) -> ViewProgress:
        condition, values = _still(before)
        values |= _number(":through", noted_through(after))
        sets, removes = ["through = :through"], []
        if after.commit_id is None:
            removes.append("commit_id")
        else:
            sets.append("commit_id = :after")
            values[":after"] = {"S": after.commit_id}
        if after.filled is not None:
            sets.append("filled = :filled")
            values |= _number(":filled", after.filled)
        if after.begun != before.begun:
            condition += f" AND {_equal('begun', noted_begun(before), values)}"
            sets.append("begun = :begin")
            values[":begin"] = {"S": noted_begun(after)}
        change = f"SET {', '.join(sets)}" + (f" REMOVE {', '.join(removes)}" if removes else "")
        return after if self._update_note(change, condition, values) else self.standing()

    def _update_note(self, change: str, condition: str, values: NoteItem) -> bool:
        return self._unless_refused(
            "note the version",
            lambda: self._client.boto.update_item(
                TableName=NOTES,
                Key={"name": {"S": self.name}},
                UpdateExpression=change,
                ConditionExpression=f"#o = :own{condition and ' AND '}{condition}",
                ExpressionAttributeNames={"#o": "owner"},
                ExpressionAttributeValues={":own": {"S": self._owner}, **values},
            ),
        )

    # -- keeping it up to date -----------------------------------------------------------------

    def write(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = [*self._key_names(encoded=encoded), *self._other_names(encoded=encoded)]
        self._put_all(encoded, version, self._items(rows, names, _number(VERSION, version)))

    def remove(self, version: int, rows: pa.Table, *, encoded: bool) -> None:
        names = self._key_names(encoded=encoded)
        self._put_all(encoded, version, self._items(rows, names, self._mark(version)))

    def remove_older(self, version: int, *, has_encoded: bool) -> int:
        removed = 0
        for encoded in (False, True) if has_encoded else (False,):
            names = self._key_names(encoded=encoded)
            for page in self._older_pages(version, self._table_name(encoded=encoded), names):
                mark = self._mark(version)
                self._put_all(encoded, version, ({**item, **mark} for item in page))
                removed += len(page)
        return removed

    def _older_pages(
        self, version: int, table: str, names: Sequence[str]
    ) -> Iterator[list[NoteItem]]:
        aliases = {f"#k{place}": name for place, name in enumerate(names)}
        request: dict[str, Any] = {
            "TableName": table,
            "ConsistentRead": True,
            "ProjectionExpression": ", ".join(aliases),
            "FilterExpression": "#v < :v AND attribute_not_exists(#d)",
            "ExpressionAttributeNames": {**aliases, "#v": VERSION, "#d": DELETED},
            "ExpressionAttributeValues": _number(":v", version),
        }
        while True:
            page = self._client.call("read rows", lambda: self._client.boto.scan(**request))
            yield page["Items"]
            if "LastEvaluatedKey" not in page:
                return
            request["ExclusiveStartKey"] = page["LastEvaluatedKey"]

    def _mark(self, version: int) -> NoteItem:
        until = int(time.time()) + MARK_DAYS * 86_400
        return {
            **_number(VERSION, version),
            DELETED: {"BOOL": True},
            EXPIRES_ATTRIBUTE: {"N": str(until)},
        }

    def _put_all(self, encoded: bool, version: int, items: Iterator[NoteItem]) -> None:
        table, newer = self._table_name(encoded=encoded), _number(":v", version)
        self._client.call_all("write rows", (self._put(table, item, newer) for item in items))

    def _put(self, table: str, item: NoteItem, newer: NoteItem) -> Callable[[], object]:
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
        """Make a conditional call; return whether its condition held."""

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
        for item in self._items(rows, [KEY, *names], _number(VERSION, 1 << 60)):
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
        """False if no row can be too large, judging by the lengths of text and bytes."""
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

    def _items(self, rows: pa.Table, names: Sequence[str], more: NoteItem) -> Iterator[NoteItem]:
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


def _number(name: str, number: int) -> NoteItem:
    return {name: {"N": str(number)}}


def _still(before: ViewProgress) -> tuple[str, NoteItem]:
    """The condition that the note is still `before`, and its values."""
    values = _number(":then", noted_through(before))
    return f"through = :then AND {_equal('commit_id', before.commit_id, values)}", values


def _equal(name: str, text: str | None, values: NoteItem) -> str:
    """The condition that an attribute is a text, or absent; adds the text to `values`."""
    if text is None:
        return f"attribute_not_exists({name})"
    values[f":old_{name}"] = {"S": text}
    return f"{name} = :old_{name}"
