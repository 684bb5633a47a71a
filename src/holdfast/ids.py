"""The ids of stores and providers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import InvalidArgument

if TYPE_CHECKING:
    from uuid import UUID

DEFAULT_STORE_NAME = "default"
OPERATOR = 0
"""The operator id of a store without a query."""
TIMERS = "$timers"
"""The store of an operator's timers."""
_STORE_NAME = re.compile(r"[A-Za-z0-9_$][A-Za-z0-9_$.\-]{0,199}")
_RESERVED_STORE_NAMES = frozenset({"versions", "packs", "tags", "retiring", "delivered"})


def check_store_name(name: str) -> str:
    """Return `name` if it can name a store; raise InvalidArgument for paths and reserved words."""
    if not _STORE_NAME.fullmatch(name) or name in _RESERVED_STORE_NAMES:
        raise InvalidArgument(
            f"The store name {name!r} cannot be used. Use letters, digits, '_', '$', '.' and '-', "
            f"starting with none of '.' and '-', and avoid {sorted(_RESERVED_STORE_NAMES)}."
        )
    return name


def join_location(root: str, *parts: object) -> str:
    """Append `parts` to `root` with one slash between each, whatever slashes `root` ends with."""
    base = root if root.endswith("://") else root.rstrip("/")
    return "/".join([base, *(str(part) for part in parts)])


@dataclass(frozen=True, slots=True)
class StateStoreId:
    """The id of one store: the keyed state of one operator, partition and store name.

    `checkpoint_root_location` is the directory of all the state of a query. `operator_id` and
    `partition_id` count from 0. An operator may have several stores in each partition, with
    different values of `store_name`. Raises InvalidArgument for a negative id and for a name that
    cannot be used.
    """

    checkpoint_root_location: str
    operator_id: int
    partition_id: int
    store_name: str = DEFAULT_STORE_NAME

    def __post_init__(self) -> None:
        if self.operator_id < 0 or self.partition_id < 0:
            raise InvalidArgument(
                f"operator_id and partition_id start at 0, not "
                f"{self.operator_id} and {self.partition_id}."
            )
        check_store_name(self.store_name)

    def store_checkpoint_location(self) -> str:
        """The directory of this store: root/operator/partition[/name]."""
        return join_location(self.checkpoint_root_location, self.relative_location())

    def relative_location(self) -> str:
        """The directory of this store, relative to the root."""
        location = f"{self.operator_id}/{self.partition_id}"
        if self.store_name == DEFAULT_STORE_NAME:
            return location
        return f"{location}/{self.store_name}"

    def __str__(self) -> str:
        name = "" if self.store_name == DEFAULT_STORE_NAME else f",name={self.store_name}"
        return f"(op={self.operator_id},part={self.partition_id}{name})"


@dataclass(frozen=True, slots=True)
class StateStoreProviderId:
    """The id of one provider: the store `store_id` in the run `query_run_id` of a query.

    Every run has an id of its own, so a restarted query never reuses a provider.
    """

    store_id: StateStoreId
    query_run_id: UUID

    def __str__(self) -> str:
        return f"{self.store_id}@{self.query_run_id}"
