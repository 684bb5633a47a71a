"""Every file name the engine uses is spelled here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import InvalidArgument

VERSIONS, PACKS, TAGS, RETIRING = "versions", "packs", "tags", "retiring"
DELIVERED, OUTBOXES = "delivered", "outbox"
COPYING = f"{VERSIONS}/copying"
"""The mark on a root that is being copied to. Among the manifests, whoever lists them sees it."""
PLACE = "place"
"""The file by which tasks on other hosts know the driver's disk."""
STATE = "holdfast"
"""The folder of a query's checkpoint that its state is in."""
KINDS = ("delta", "merge", "snapshot")
PACK, OUTBOX = "pack", "outbox"
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_DATA = re.compile(
    rf"(?P<version>{_NUMBER.pattern})-(?P<attempt>{_ATTEMPT.pattern})\.(?P<kind>[a-z]+)"
)
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """What the name of a data file says."""

    version: int
    attempt: str
    kind: str


def manifest_path(version: int) -> str:
    """Where a version's manifest is."""
    return f"{VERSIONS}/{version}"


def manifest_version(path: str) -> int | None:
    """The version of a manifest's path; None for other files."""
    directory, _, name = path.rpartition("/")
    return int(name) if directory == VERSIONS and _NUMBER.fullmatch(name) else None


def turn_path(copy_id: str, number: int) -> str:
    """Where a run says that it goes on with an unfinished copy, the runs of which are numbered."""
    return f"{COPYING}-{copy_id}-{number}"


def turn_number(copy_id: str, path: str) -> int | None:
    """The number of a copy's run by its path; None for other files."""
    number = path.removeprefix(f"{COPYING}-{copy_id}-")
    return int(number) if number != path and _NUMBER.fullmatch(number) else None


def segment_path(directory: str, version: int, attempt: str, kind: str) -> str:
    """Where a segment is, in its store's directory ("" when that is the root)."""
    name = f"{version}-{attempt}.{kind}"
    return f"{directory}/{name}" if directory else name


def pack_path(version: int, attempt: str) -> str:
    """Where a pack is."""
    return f"{PACKS}/{version}-{attempt}.{PACK}"


def outbox_path(version: int, attempt: str) -> str:
    """Where rows wait that a version has to deliver."""
    return f"{OUTBOXES}/{version}-{attempt}.{OUTBOX}"


def tag_path(name: str) -> str:
    """Where a tag is; a name that cannot be one file is refused."""
    if not _TAG.fullmatch(name):
        raise InvalidArgument(
            f"The tag {name!r} cannot be used: take up to 100 letters, digits, '_', '-' or '.', "
            "not starting with '-' or '.'."
        )
    return f"{TAGS}/{name}"


def tag_name(path: str) -> str | None:
    """The name of a tag's path; None for other files."""
    directory, _, name = path.rpartition("/")
    return name if directory == TAGS and _TAG.fullmatch(name) else None


def delivered_path(version: int) -> str:
    """Where a stream notes at its end that a version has reached the sink."""
    return f"{DELIVERED}/{version}"


def retiring_path(attempt: str) -> str:
    """Where a clean-up notes which versions it is about to remove."""
    return f"{RETIRING}/{attempt}"


def is_retiring(path: str) -> bool:
    """Whether that is such a note."""
    directory, _, name = path.rpartition("/")
    return directory == RETIRING and _ATTEMPT.fullmatch(name) is not None


def data_file(path: str) -> DataFile | None:
    """What a data file's name says; None for files of another kind or of somebody else."""
    match = _DATA.fullmatch(path.rpartition("/")[2])
    if match is None or match["kind"] not in (*KINDS, PACK, OUTBOX):
        return None
    return DataFile(int(match["version"]), match["attempt"], match["kind"])
