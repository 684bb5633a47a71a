"""How a view's table in DynamoDB comes to be, whatever state it is found in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError

from holdfast.clients.dynamodb import DynamoDbClient
from holdfast.errors import InvalidArgument, Unavailable
from holdfast.types import parse_schema
from holdfast.views import ViewSchema, ViewSpec, open_view
from holdfast.views.dynamodb import view as dynamodb
from holdfast.views.view import ViewProgress

SCHEMA = ViewSchema(parse_schema("user string"), parse_schema("total long"))
SPEC = ViewSpec("dynamodb://eu-west-1/totals", SCHEMA, retry_timeout_ms=0)


class Tables:
    """The calls of boto3's client that make tables, and keep one note."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[str, Any]] = {}
        self.statuses: dict[str, list[str | None]] = {}
        """What a table's next looks find, before it is as it is; None where it is gone."""
        self.expiring: set[str] = set()
        self.item: dict[str, Any] = {}
        self.crashes = False
        self.loses_replies = 0
        self.meanwhile: dict[str, Callable[[], None]] = {}
        """What others do, once, before a call."""

    def describe_table(self, *, TableName: str) -> dict[str, Any]:
        status: str | None = "ACTIVE"
        if self.statuses.get(TableName):
            status = self.statuses[TableName].pop(0)
        if status is None:
            self.tables.pop(TableName, None)
        if TableName not in self.tables:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException"}}, "DescribeTable")
        return {"Table": {**self.tables[TableName], "TableStatus": status}}

    def create_table(self, *, TableName: str, **given: Any) -> None:
        if TableName in self.tables:
            raise ClientError({"Error": {"Code": "ResourceInUseException"}}, "CreateTable")
        self.tables[TableName] = given
        self.statuses[TableName] = ["CREATING"] * 3

    def update_time_to_live(self, *, TableName: str, **_: Any) -> None:
        if self.crashes:
            raise KeyboardInterrupt
        assert not self.statuses.get(TableName)
        self.expiring.add(TableName)

    def get_item(self, **_: Any) -> dict[str, Any]:
        return {"Item": self.item} if self.item else {}

    def put_item(self, *, Item: dict[str, Any], **condition: Any) -> None:
        self.meanwhile.pop("put_item", lambda: None)()
        if not self._holds(**condition):
            raise ClientError({"Error": {"Code": "ConditionalCheckFailedException"}}, "PutItem")
        self.item = Item
        if self.loses_replies:
            self.loses_replies -= 1
            raise EndpointConnectionError(endpoint_url="http://away")

    def update_item(self, *, UpdateExpression: str, **condition: Any) -> None:
        if not self._holds(**condition):
            raise ClientError({"Error": {"Code": "ConditionalCheckFailedException"}}, "UpdateItem")
        sets, _, removes = UpdateExpression.removeprefix("SET ").partition(" REMOVE ")
        for part in sets.split(", "):
            name, value = part.split(" = ")
            self.item[name] = condition["ExpressionAttributeValues"][value]
        for name in removes.split(", "):
            self.item.pop(name, None)

    def _holds(
        self,
        ConditionExpression: str,
        ExpressionAttributeNames: dict[str, str],
        ExpressionAttributeValues: dict[str, Any] | None = None,
        **_: Any,
    ) -> bool:
        """Whether a condition holds of the note, which is made of `x = :y` and absences."""

        def holds(part: str) -> bool:
            if part.startswith("attribute_not_exists("):
                name = part.removeprefix("attribute_not_exists(").removesuffix(")")
                return ExpressionAttributeNames.get(name, name) not in self.item
            name, value = part.split(" = ")
            wanted = (ExpressionAttributeValues or {})[value]
            return bool(self.item.get(ExpressionAttributeNames.get(name, name)) == wanted)

        parts = ConditionExpression.split(" OR ")
        return any(all(map(holds, part.split(" AND "))) for part in parts)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    tables = Tables()
    monkeypatch.setattr(DynamoDbClient, "boto", tables)
    monkeypatch.setattr(dynamodb, "_SETTLED_S", 0)
    return tables


def test_a_crash_before_the_time_to_live_is_made_good_by_the_next_start(tables: Tables) -> None:
    tables.crashes = True
    with pytest.raises(KeyboardInterrupt):
        open_view(SPEC).prepare("me", "here")
    assert "totals" in tables.tables
    tables.crashes = False
    assert open_view(SPEC).prepare("me", "here") == ViewProgress()
    assert tables.expiring == {"totals"}


def test_a_table_that_is_being_made_is_waited_for(tables: Tables) -> None:
    open_view(SPEC).prepare("me", "here")
    tables.statuses["totals"] = ["CREATING"] * 5
    tables.expiring.clear()
    open_view(SPEC).prepare("me", "here")
    assert tables.expiring == {"totals"}


def test_a_table_that_is_being_deleted_is_made_anew_when_it_is_gone(tables: Tables) -> None:
    open_view(SPEC).prepare("me", "here")
    tables.item = {**tables.item, "through": {"N": "5"}, "commit_id": {"S": "x"}}
    tables.statuses["totals"] = ["DELETING", "DELETING", None]
    tables.expiring.clear()
    assert open_view(SPEC).prepare("other", "there") == ViewProgress()
    assert "totals" in tables.tables
    assert tables.expiring == {"totals"}


def test_a_table_that_stays_as_it_is_says_to_try_again(tables: Tables) -> None:
    open_view(SPEC).prepare("me", "here")
    tables.statuses["totals"] = ["DELETING"] * 1000
    with pytest.raises(Unavailable, match=r"'totals' .* is still DELETING.*Try again"):
        open_view(SPEC).prepare("me", "here")


@pytest.mark.parametrize("is_dropped", [False, True])
def test_a_view_that_its_owner_moves_on_while_it_is_claimed_is_not_begun_anew(
    tables: Tables, is_dropped: bool
) -> None:
    if is_dropped:
        open_view(SPEC).prepare("me", "here")
        tables.item = {**tables.item, "through": {"N": "5"}, "commit_id": {"S": "five"}}
        del tables.tables["totals"]

    def work() -> None:
        open_view(SPEC).prepare("me", "here")
        tables.item = {**tables.item, "through": {"N": "6"}, "commit_id": {"S": "six"}}

    tables.meanwhile["put_item"] = work
    assert open_view(SPEC).prepare("me", "here") == ViewProgress(6, commit_id="six")
    assert tables.item["commit_id"] == {"S": "six"}


def test_a_claim_whose_reply_was_lost_is_found(tables: Tables) -> None:
    tables.loses_replies = 1
    assert open_view(replace(SPEC, retry_timeout_ms=5_000)).prepare("me", "here") == ViewProgress()
    assert "totals" in tables.tables
    assert tables.item["owner"] == {"S": "me"}


def test_a_dropped_view_that_was_noted_meanwhile_is_filled_all_the_same(tables: Tables) -> None:
    open_view(SPEC).prepare("me", "here")
    tables.item = {**tables.item, "through": {"N": "5"}, "commit_id": {"S": "five"}}
    del tables.tables["totals"]

    def note_a_version_without_changes() -> None:
        tables.item = {**tables.item, "through": {"N": "6"}, "commit_id": {"S": "six"}}

    tables.meanwhile["put_item"] = note_a_version_without_changes
    assert open_view(SPEC).prepare("me", "here") == ViewProgress()
    assert tables.item["through"] == {"N": "-1"}


def test_a_table_of_encoded_keys_that_was_noted_and_not_made_is_made_by_who_reads_it(
    tables: Tables,
) -> None:
    view = open_view(SPEC)
    view.note(view.prepare("me", "here"), ViewProgress(1, commit_id="one"))
    tables.item["has_encoded"] = {"BOOL": True}
    assert view.standing() == ViewProgress(None, has_encoded=True)
    assert "totals_encoded" in tables.tables
    shown = ViewProgress(1, True, "one")
    assert view.note(view.standing(), shown) == view.standing() == shown


def test_notes_of_somebody_else_are_left_alone(tables: Tables) -> None:
    theirs = {
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
    }
    tables.tables["holdfast_views"] = theirs
    with pytest.raises(InvalidArgument, match=r"its primary key is 'id'\. Nothing was changed"):
        open_view(SPEC).prepare("me", "here")
    assert tables.tables == {"holdfast_views": theirs}
