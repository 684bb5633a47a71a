"""Every file name the engine uses is spelled here and nowhere else."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.errors import InvalidArgument

VERSIONS, PACKS, TAGS, RETIRING = "versions", "packs", "tags", "retiring"
DELIVERED, OUTBOXES, CLAIMS, OPERATIONS = "delivered", "outbox", "claims", "operations"
REQUESTS = "requests"
COPYING = f"{VERSIONS}/copying"
"""Marks a root as the target of an unfinished copy; listing the manifests shows it."""
PLACE = "place"
"""The file by which tasks on other hosts recognise the driver's disk."""
STATE_FOLDER = "holdfast"
"""The folder of a query's checkpoint that its state is in."""
SEGMENT_KINDS = ("delta", "merge", "snapshot")
PACK, OUTBOX = "pack", "outbox"
_COPY, _DONE = ".copy", ".done"
_FOLDERS = frozenset(
    {VERSIONS, PACKS, TAGS, RETIRING, DELIVERED, OUTBOXES, CLAIMS, OPERATIONS, REQUESTS}
)
_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")
_JUMP = re.compile(rf"{VERSIONS}/(?P<version>\d{{1,18}})\.number-(?P<number>\d{{1,18}})")
_ATTEMPT = re.compile(r"[0-9a-f]{32}")
_DATA = re.compile(
    rf"(?P<version>{_NUMBER.pattern})-(?P<attempt>{_ATTEMPT.pattern})\.(?P<kind>[a-z]+)"
    rf"(?P<copy>{re.escape(_COPY)})?"
)
_DIRECTORY = re.compile(
    rf"|{PACKS}|{OUTBOXES}|({_NUMBER.pattern})/({_NUMBER.pattern})(/[A-Za-z0-9_$][A-Za-z0-9_$.\-]*)?"
)
"""The directories of data files below a root: those of stores, packs and outboxes."""
_OPERATION = re.compile(rf"{OPERATIONS}/({_NUMBER.pattern})-({_ATTEMPT.pattern})")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,99}")


@dataclass(frozen=True, slots=True)
class DataFile:
    """What the name of a data file says."""

    version: int
    attempt: str
    kind: str
    is_copy: bool = False
    """Whether it is the second copy of the file it is named after."""


def manifest_path(version: int) -> str:
    """Where a version's manifest is."""
    return f"{VERSIONS}/{version}"


def manifest_version(path: str) -> int | None:
    """The version of a manifest's path; None for other files."""
    directory, _, name = path.rpartition("/")
    return int(name) if directory == VERSIONS and _NUMBER.fullmatch(name) else None


def jump_path(version: int, number: int) -> str:
    """Where a note says that a version, made to replace one that was given up, has this number."""
    return f"{manifest_path(version)}.number-{number}"


def jump_of(path: str) -> tuple[int, int] | None:
    """Version and number of such a note's path; None for other files."""
    match = _JUMP.fullmatch(path)
    return None if match is None else (int(match["version"]), int(match["number"]))


def turn_path(copy_id: str, number: int) -> str:
    """Where a run notes that it resumes an unfinished copy; the runs of a copy are numbered."""
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


def copy_path(path: str) -> str:
    """Where the second copy of a segment or pack is."""
    return path + _COPY


def is_copy(path: str) -> bool:
    """Whether a path may be that of a second copy; `data_file` knows for certain."""
    return path.endswith(_COPY)


def copied_path(path: str) -> str:
    """The file that a path names the second copy of. Requires: `is_copy` says that it does."""
    return path.removesuffix(_COPY)


def outbox_path(version: int, attempt: str) -> str:
    """Where rows wait until their version is delivered."""
    return f"{OUTBOXES}/{version}-{attempt}.{OUTBOX}"


def tag_path(name: str) -> str:
    """Where a tag is; InvalidArgument for a name that cannot be a file name."""
    if not _TAG.fullmatch(name):
        raise InvalidArgument(
            f"The tag {name!r} cannot be used. Use up to 100 letters, digits, '_', '-' or '.', "
            "not starting with '-' or '.'."
        )
    return f"{TAGS}/{name}"


def tag_name(path: str) -> str | None:
    """The name of a tag's path; None for other files."""
    directory, _, name = path.rpartition("/")
    return name if directory == TAGS and _TAG.fullmatch(name) else None


def delivered_path(version: int, commit_id: str | None) -> str:
    """Where a stream notes at its end that a version has reached the sink.

    Without a commit id, this is where earlier releases noted it.
    """
    return f"{DELIVERED}/{version}" + ("" if commit_id is None else f"-{commit_id}")


def claim_path(number: int) -> str:
    """Where a driver says that it is the one that runs the stream."""
    return f"{CLAIMS}/{number}"


def claim_number(path: str) -> int | None:
    """The number of a claim's path; None for other files."""
    directory, _, name = path.rpartition("/")
    return int(name) if directory == CLAIMS and _NUMBER.fullmatch(name) else None


def operation_path(version: int, operation_id: str) -> str:
    """Where the journal keeps an operation that made a version, or was done at one."""
    return f"{OPERATIONS}/{version}-{operation_id}"


def done_path(version: int, operation_id: str) -> str:
    """Where the journal notes that an operation has made its version."""
    return operation_path(version, operation_id) + _DONE


def is_operation(path: str) -> bool:
    """Whether that is an entry of the journal."""
    return _OPERATION.fullmatch(path) is not None


def operation_version(path: str) -> int | None:
    """The version in the name of an entry of the journal, or of its note; None for other files."""
    match = _OPERATION.fullmatch(path.removesuffix(_DONE))
    return None if match is None else int(match[1])


def request_path(request_id: str) -> str:
    """Where somebody asks for merges, of whoever writes the root."""
    return f"{REQUESTS}/{request_id}"


def is_request(path: str) -> bool:
    """Whether that is such a request."""
    directory, _, name = path.rpartition("/")
    return directory == REQUESTS and _ATTEMPT.fullmatch(name) is not None


def retiring_path(attempt: str) -> str:
    """Where a clean-up notes which versions it is about to remove."""
    return f"{RETIRING}/{attempt}"


def is_retiring(path: str) -> bool:
    """Whether that is such a note."""
    directory, _, name = path.rpartition("/")
    return directory == RETIRING and _ATTEMPT.fullmatch(name) is not None


def data_file(path: str) -> DataFile | None:
    """What a data file's name says; None for files of other kinds, or not Holdfast's."""
    match = _DATA.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    is_copy = match["copy"] is not None
    if match["kind"] not in ((*SEGMENT_KINDS, PACK) if is_copy else (*SEGMENT_KINDS, PACK, OUTBOX)):
        return None
    return DataFile(int(match["version"]), match["attempt"], match["kind"], is_copy)


def is_own_file(path: str) -> bool:
    """Whether a path, relative to a root, is this root's own: data, a version, a tag or a note."""
    first, slash, _ = path.partition("/")
    return not slash or first in _FOLDERS or is_own_data(path)


def is_own_data(path: str) -> bool:
    """Whether a path, relative to a root, is one of this root's own data files by its name.

    Files of other roots below it are not.
    """
    directory, _, _ = path.rpartition("/")
    return _DIRECTORY.fullmatch(directory) is not None and data_file(path) is not None
