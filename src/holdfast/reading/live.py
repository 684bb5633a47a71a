"""The state of a stream as anybody reads it, in any process, while the stream goes on."""

from __future__ import annotations

import html
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Self

from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.reading.find import open_root
from holdfast.reading.model import StoreInfo
from holdfast.reading.reader import VersionReader
from holdfast.reading.root import Root
from holdfast.reading.state import ReadableState
from holdfast.reading.store import InspectedStore, VersionLike

log = logging.getLogger(__name__)


def read_state(
    location: str | os.PathLike[str],
    *,
    operator: int | None = None,
    store: str | None = None,
    options: Mapping[str, str] | None = None,
) -> LiveState:
    """Open the newest state at a location for reading.

        state = holdfast.read("checkpoints/totals")
        state.get("Sankar")

    `location` is the checkpoint of a stream, its root, or the root of a store that `holdfast.open`
    made: a path or an address.

    `operator` and `store` choose one of several stores. By default they are 0 and "default" then;
    the log says so, and the state's own `operator` and `store`.

    `options` say how to reach a remote root, such as endpoints and credentials.

    Returns a `LiveState`. Nothing is ever written, and the writer is not disturbed. Raises
    InvalidArgument if there is no state, or no such store; Corruption if every version is damaged;
    and Unavailable if the storage does not answer.
    """
    root = open_root(location, operator, store, options=options)
    state = LiveState(choose_store(root, operator, store))
    fitting = fitting_stores(state.stores, operator, store)
    if len(fitting) > 1:
        others = ", ".join(
            f"operator {info.operator}, store {info.store}"
            for info in fitting
            if (info.operator, info.store) != (state.operator, state.store)
        )
        log.warning(
            "%s has several stores; reading operator %d, store %s. Choose with operator= and "
            "store= among the others: %s.",
            root.location,
            state.operator,
            state.store,
            others,
        )
    return state


def choose_store(
    root: Root, operator: int | None, name: str | None, partition: int | None = None
) -> InspectedStore:
    """The only store that fits; of several, that of operator 0 and the one named "default".

    Where nothing fits, the error lists what there is.
    """
    if len(fitting_stores(root.info().stores, operator, name)) > 1:
        operator = 0 if operator is None else operator
        name = DEFAULT_STORE_NAME if name is None else name
    return root.store(operator, name, partition)


def fitting_stores(
    stores: Sequence[StoreInfo], operator: int | None, name: str | None
) -> list[StoreInfo]:
    """Those of some stores that have this operator and name (None: any)."""
    return [i for i in stores if operator in (None, i.operator) and name in (None, i.store)]


class LiveState(ReadableState):
    """One store of a stream at one version, over all its partitions. Made by `holdfast.read`.

    It stays at its version until `refresh`, whatever the stream commits, merges and cleans up
    meanwhile. Once retention has removed that version, reads may raise VersionNotFound.
    """

    def __init__(self, store: InspectedStore, at: VersionLike = None) -> None:
        self._at = _opened(store, at)

    def refresh(self) -> Self:
        """Continue with the newest version; return this same object."""
        self._at = _opened(self._reopened())
        return self

    def at(self, version: int | str) -> LiveState:
        """Open another version, by number or tag; this object stays at its own.

        Raises VersionNotFound if there is no such version, or if retention has removed it.
        """
        return LiveState(self._reopened(), version)

    def _reopened(self) -> InspectedStore:
        """The same store, with the versions there are by now."""
        place = self._at.place
        return Root(place.log.storage).store(place.operator, place.name)

    @property
    def _location(self) -> str:
        return self._at.place.log.storage.location

    def __repr__(self) -> str:
        return (
            f"LiveState[{self._location}, operator={self.operator}, "
            f"store={self.store}, version={self.version}, keys={self.num_keys:,}]"
        )

    def _repr_html_(self) -> str:
        rows = [
            ("root", self._location),
            ("operator", self.operator),
            ("store", self.store),
            ("version", self.version),
            ("watermark", self.watermark or "–"),
            ("keys", f"{self.num_keys:,}"),
            ("key", self.key_schema.ddl()),
            ("value", self.value_schema.ddl()),
        ]
        cells = "".join(
            f"<tr><th>{name}</th><td>{html.escape(str(cell))}</td></tr>" for name, cell in rows
        )
        return f"<table>{cells}</table>"


def _opened(store: InspectedStore, at: VersionLike = None) -> VersionReader:
    root = store.root
    version = root.newest_readable().version if at is None else root.resolve(at)
    if at is None and version != root.versions[-1]:
        log.warning(
            "Version %d of %s is damaged; reading version %d. Run `holdfast verify`.",
            root.versions[-1],
            root.location,
            version,
        )
    return store.at(version)
