"""Names of stores and providers."""

from __future__ import annotations

import pickle
from uuid import UUID

import pytest

from holdfast.errors import InvalidArgument
from holdfast.ids import (
    DEFAULT_STORE_NAME,
    StateStoreId,
    StateStoreProviderId,
    check_store_name,
    join_location,
)

RUN = UUID("12345678-1234-5678-1234-567812345678")


def test_default_store_lies_in_operator_and_partition() -> None:
    store_id = StateStoreId("/data/state", 1, 2)
    assert store_id.store_name == DEFAULT_STORE_NAME == "default"
    assert store_id.store_checkpoint_location() == "/data/state/1/2"
    assert store_id.relative_location() == "1/2"


def test_named_store_lies_below_its_partition() -> None:
    store_id = StateStoreId("hdfs://host/state", 1, 2, "left-keys")
    assert store_id.store_checkpoint_location() == "hdfs://host/state/1/2/left-keys"
    assert store_id.relative_location() == "1/2/left-keys"


@pytest.mark.parametrize(
    ("root", "location"),
    [
        ("/data/", "/data/0/0"),
        ("/data//", "/data/0/0"),
        ("s3://bucket", "s3://bucket/0/0"),
        ("memory://", "memory:///0/0"),
        ("relative", "relative/0/0"),
    ],
)
def test_slashes_at_the_end_of_a_root_do_not_matter(root: str, location: str) -> None:
    assert StateStoreId(root, 0, 0).store_checkpoint_location() == location


def test_location_parts_are_joined_by_one_slash() -> None:
    assert join_location("/a/", "b", 3) == "/a/b/3"


def test_text_names_operator_and_partition_and_a_name_of_its_own() -> None:
    assert str(StateStoreId("/r", 3, 4)) == "(op=3,part=4)"
    assert str(StateStoreId("/r", 3, 4, "left")) == "(op=3,part=4,name=left)"
    assert str(StateStoreProviderId(StateStoreId("/r", 3, 4), RUN)) == f"(op=3,part=4)@{RUN}"


@pytest.mark.parametrize(("operator", "partition"), [(-1, 0), (0, -1)])
def test_negative_ids_are_refused(operator: int, partition: int) -> None:
    with pytest.raises(InvalidArgument, match="start at 0"):
        StateStoreId("/r", operator, partition)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/a", "-a", ".hidden", "a b", "a" * 201, "ü", "a\n"]
)
def test_store_name_that_is_no_plain_directory_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be used"):
        StateStoreId("/r", 0, 0, name)


@pytest.mark.parametrize("name", ["versions", "packs", "tags"])
def test_directories_of_the_engine_are_no_store_names(name: str) -> None:
    with pytest.raises(InvalidArgument, match="cannot be used"):
        check_store_name(name)


@pytest.mark.parametrize("name", ["default", "left-keys", "$ttl_index", "a.b", "0", "a" * 200])
def test_plain_store_names_are_taken(name: str) -> None:
    assert StateStoreId("/r", 0, 0, name).store_name == name


def test_ids_are_equal_by_what_they_name() -> None:
    one, same, other = (StateStoreId("/r", 0, n, "s") for n in (1, 1, 2))
    assert one == same
    assert len({one, same, other}) == 2
    run = StateStoreProviderId(one, RUN)
    assert run == StateStoreProviderId(same, RUN)
    assert run != StateStoreProviderId(same, UUID(int=1))


def test_ids_survive_pickling_and_cannot_be_changed() -> None:
    provider_id = StateStoreProviderId(StateStoreId("/r", 0, 1, "s"), RUN)
    assert pickle.loads(pickle.dumps(provider_id)) == provider_id
    with pytest.raises(AttributeError):
        provider_id.store_id.partition_id = 5  # type: ignore[misc]
