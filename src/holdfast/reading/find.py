"""Finding the roots at a location: the location itself, or folders below it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from holdfast.backends.local import LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.engine.files.filenames import PACKS, STATE_FOLDER, TAGS, VERSIONS
from holdfast.engine.storage import Storage
from holdfast.errors import InvalidArgument
from holdfast.reading.root import HOW_TO_CHOOSE, Root, has_versions

_OWN = {VERSIONS, PACKS, TAGS}
DEPTH = 4
"""How many folders deep roots are looked for: checkpoint/holdfast, root/operator/partition/name."""


def open_roots(
    location: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> list[Root]:
    """Every root at a location, in name order; never empty.

    A location that has versions itself is the only one; so is the state of a query in its
    checkpoint. Otherwise folders below it are, such as those of providers used alone. Raises
    InvalidArgument (STATE_STORE_NOT_A_STORE) where there are none.
    """
    storage = open_storage(location, options)
    if has_versions(storage):
        return [Root(storage)]
    inside = open_storage(f"{storage.location}/{STATE_FOLDER}", options)
    if has_versions(inside):
        return [Root(inside)]
    found = [
        Root(open_storage(f"{storage.location}/{place}", options)) for place in _below(storage)
    ]
    roots = [root for root in found if root.versions]
    if not roots:
        raise _no_store(storage)
    return roots


def open_root(
    location: str | os.PathLike[str],
    operator: int | None = None,
    store: str | None = None,
    partition: int | None = None,
    options: Mapping[str, str] | None = None,
) -> Root:
    """The one root at a location that has this store, operator and partition (None: any).

    Where there are several, the message lists them.
    """
    roots = open_roots(location, options)
    if len(roots) == 1:
        return roots[0]
    found = [root for root in roots if _has(root, operator, store, partition)]
    if len(found) == 1:
        return found[0]
    names = [root.location for root in found or roots]
    listed = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    what = "several stores" if found else "no such store, but others"
    raise InvalidArgument(
        f"{os.fspath(location)} has {what}, each with a history of its own. {HOW_TO_CHOOSE}, by "
        f"--partition, or name one of the folders: {listed}"
    )


def _has(root: Root, operator: int | None, store: str | None, partition: int | None) -> bool:
    return any(
        operator in (None, info.operator)
        and store in (None, info.store)
        and any(partition in (None, part.partition) for part in info.partitions)
        for info in root.info().stores
    )


def _below(storage: Storage) -> Iterator[str]:
    if isinstance(storage, LocalStorage):
        yield from _local_folders(storage.location, "", DEPTH)
        return
    folders = {blob.path.rpartition(f"/{VERSIONS}/")[0] for blob in storage.list("")}
    yield from sorted(folder for folder in folders if folder)


def _local_folders(root: str, place: str, depth: int) -> Iterator[str]:
    """Folders with versions, not deeper than `depth`. They may lie inside each other."""
    try:
        with os.scandir(os.path.join(root, place)) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return
    if VERSIONS in names and place:
        yield place
    if depth:
        for name in sorted(set(names) - _OWN, key=_natural):
            yield from _local_folders(root, os.path.join(place, name), depth - 1)


def _natural(name: str) -> tuple[int, int, str]:
    return (0, int(name), "") if name.isdecimal() else (1, 0, name)


def _no_store(storage: Storage) -> InvalidArgument:
    location = storage.location
    if isinstance(storage, LocalStorage):
        path = Path(location)
        if not path.exists():
            return _refusal(f"{location} does not exist. Check the path.")
        if path.is_file():
            return _refusal(
                f"{location} is a file, not a root. Name the folder that has `versions` in it."
            )
        for parent in path.parents:
            if (parent / VERSIONS).is_dir() and has_versions(LocalStorage(parent)):
                return _refusal(f"{location} is inside a root. Name the root itself: {parent}")
    return _refusal(
        f"{location} holds no Holdfast state: neither it nor the folders below it have a version. "
        "Check the path. For a query, name its checkpoint or its stateLocation."
    )


def _refusal(message: str) -> InvalidArgument:
    return InvalidArgument(message, condition="STATE_STORE_NOT_A_STORE")
