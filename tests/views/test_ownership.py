"""Whose tables are: names that are Holdfast's own, and notes that are somebody else's."""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidArgument
from holdfast.types import parse_schema
from holdfast.views import ViewSchema, ViewSpec, open_view
from holdfast.views.ownership import check_notes

SCHEMA = ViewSchema(parse_schema("user string"), parse_schema("total long"))


@pytest.mark.parametrize("place", ["cassandra://host/shop", "dynamodb://eu-west-1"])
@pytest.mark.parametrize("name", ["holdfast_views", "holdfast_rows", "holdfast_mine"])
def test_a_view_is_not_called_as_holdfasts_own_tables_are(place: str, name: str) -> None:
    with pytest.raises(InvalidArgument, match=f"'{name}' cannot be the table of a view.*another"):
        open_view(ViewSpec(f"{place}/{name}", SCHEMA))
    assert open_view(ViewSpec(f"{place}/my_{name}", SCHEMA)).spec.schema is SCHEMA


@pytest.mark.parametrize(
    "key", [{"id": "S HASH"}, {"name": "N HASH"}, {"name": "S HASH", "at": "N RANGE"}]
)
def test_a_table_of_notes_with_another_key_is_refused(key: dict[str, str]) -> None:
    wanted = {"name": "S HASH"}
    with pytest.raises(InvalidArgument, match=r"'holdfast_views' there is not Holdfast's") as found:
        check_notes(key, wanted, "dynamodb://eu-west-1/totals")
    assert found.value.condition == "STATE_STORE_NOT_A_VIEW"
    check_notes(wanted, wanted, "dynamodb://eu-west-1/totals")
    check_notes(None, wanted, "dynamodb://eu-west-1/totals")
