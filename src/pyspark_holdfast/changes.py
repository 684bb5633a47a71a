"""Readers of changes: those of a range of versions, and of all that follow, as a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from holdfast.engine.files.filenames import manifest_path
from holdfast.errors import IllegalState, InvalidArgument, VersionNotFound
from holdfast.reading import InspectedStore, Root
from pyspark_holdfast.options import EARLIEST, LATEST, ReadOptions
from pyspark_holdfast.reading import (
    ROWS_PER_BATCH,
    StatePartition,
    StateReader,
    opened,
    shaped,
)

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _StopsAtTarget
except ImportError:  # PySpark 4.0 and 4.1: Spark plans every batch up to the newest version
    HAS_LIMITS = False
    _StopsAtTarget = object  # type: ignore[misc,assignment]
else:
    HAS_LIMITS = True

Offset = dict[str, Any]
_VERSION, _COMMIT, _STATE = "version", "commit", "state"
"""The keys of an offset: the version up to which changes were read, its commit, and whether the
state at the version is still to be read."""


@dataclass
class ChangePartition(StatePartition):
    """One partition of a store at some versions whose changes are read."""

    begins_with_state: bool = False
    """Whether the whole state is read of the first version, instead of its changes."""


def plan_changes(
    options: ReadOptions,
    root: Root,
    store: InspectedStore,
    versions: Iterable[int],
    *,
    begins_with_state: bool = False,
) -> list[InputPartition]:
    """The input partitions for changes of some versions."""
    places: dict[int, list[int]] = {}
    first = None
    for version in versions:
        first = version if first is None else first
        for index in _indexes(root, store, version):
            places.setdefault(index, []).append(version)
    return [
        ChangePartition(
            root.location,
            store.operator,
            store.name,
            index,
            tuple(found),
            storage=options.storage,
            begins_with_state=begins_with_state and found[0] == first,
        )
        for index, found in sorted(places.items())
    ]


def read_changes(partition: InputPartition, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The changes of one partition, version by version."""
    if not isinstance(partition, ChangePartition):
        return  # Spark's own partition, if none was left
    target = to_arrow_schema(schema, timezone="UTC")
    store = partition.open()
    for place, version in enumerate(partition.versions):
        is_state = partition.begins_with_state and not place
        for table, gone in (_state if is_state else _changes)(store, version):
            kinds = pc.if_else(gone, "delete", "update")
            table = table.append_column("_gone", gone).append_column("_kind", kinds)
            for batch in table.to_batches(max_chunksize=ROWS_PER_BATCH):
                yield shaped(target, batch, partition.partition, version)


def _changes(store: InspectedStore, version: int) -> Iterator[tuple[pa.Table, pa.Array]]:
    return store.at(version).changes()


def _state(store: InspectedStore, version: int) -> Iterator[tuple[pa.Table, pa.Array]]:
    for table in store.at(version).tables():
        yield table, pa.repeat(pa.scalar(False), table.num_rows)


def _indexes(root: Root, store: InspectedStore, version: int) -> list[int]:
    """The partitions of a store at a version; none if it was added later."""
    entry = root.manifest(version).operators.get(store.operator, {}).get(store.name)
    return [] if entry is None else [part.index for part in entry.partitions]


class ChangeReader(StateReader):
    """Reads what each version of a range wrote."""

    def partitions(self) -> list[InputPartition]:
        root, store = opened(self._options)
        return plan_changes(self._options, root, store, self._versions(root))

    def _versions(self, root: Root) -> range:
        start, end = self._options.start or 0, self._options.end
        last = root.versions[-1]
        wanted = range(start, (last if end is None else end) + 1)
        if not wanted or not set(wanted) <= set(root.versions):
            raise VersionNotFound(
                f"{root.location} has versions {root.versions[0]} to {last}, not all of {start} to "
                f"{last if end is None else end}: they were never committed, or retention has "
                "removed them. option('metadata', 'versions') lists those there are."
            )
        return wanted

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(partition, self._schema)


class ChangeStreamReader(DataSourceStreamReader, _StopsAtTarget):
    """Reads what each version wrote, from one version on.

    An offset is the version up to which changes were read, with the id of its commit, so that a
    root that went back and continued in another way is noticed. `columns` gives the columns as
    they are now.
    """

    def __init__(
        self, options: ReadOptions, schema: StructType, columns: Callable[[], StructType]
    ) -> None:
        if options.most is not None and not HAS_LIMITS:
            raise InvalidArgument("maxVersionsPerTrigger needs Spark 4.2 or later. Leave it out.")
        self._options = options
        self._schema = schema
        self._columns = columns
        self._root: Root | None = None
        """As it was when it was opened last."""
        self._target: int | None = None
        """The last version to read, under the trigger availableNow."""

    def initialOffset(self) -> Offset:
        """Before the changes of startingVersion, or at the state of the oldest version."""
        root, _ = opened(self._options)
        newest, wanted = root.versions[-1], self._options.starting
        if wanted == LATEST:
            return _offset(root, newest)
        if wanted == EARLIEST:
            return {_VERSION: _oldest(root), _STATE: True}
        assert isinstance(wanted, int)
        if wanted > newest + 1:
            raise InvalidArgument(
                f"startingVersion is {wanted}, but the newest version of {root.location} is "
                f"{newest}. Use latest for the changes from now on."
            )
        self._check_there(root, range(wanted, newest + 1))
        return {_VERSION: wanted - 1}

    def getDefaultReadLimit(self) -> Any:
        """At most maxVersionsPerTrigger versions; the limit on files is Spark's nearest to it."""
        most = self._options.most
        return ReadAllAvailable() if most is None else ReadMaxFiles(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Read up to what is the newest version now."""
        self._target = opened(self._options)[0].versions[-1]

    def latestOffset(self, start: Offset | None = None, limit: Any = None) -> Offset:
        """The version up to which the next batch goes; `start` if there is nothing to read."""
        if start is None:  # PySpark 4.0 and 4.1
            root = opened(self._options)[0]
            return _offset(root, root.versions[-1])
        if self._has_nothing_after(start):
            return start
        self._root, _ = root, _ = opened(self._options)
        self._check_history(root, start)
        last = root.versions[-1]
        if self._target is not None:
            last = min(last, self._target)
        unread = _versions(start, last)
        self._check_there(root, unread)
        self._check_columns(root)
        if HAS_LIMITS and isinstance(limit, ReadMaxFiles):
            unread = unread[: limit.max_files]
        return _offset(root, unread[-1]) if unread else start

    def reportLatestOffset(self) -> Offset | None:
        """The newest version, as it was when versions were last looked at."""
        return None if self._root is None else {_VERSION: self._root.versions[-1]}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """The partitions of the store with the versions after `start` up to `end`."""
        root, store = opened(self._options)
        self._check_history(root, start)
        self._check_history(root, end)
        versions = _versions(start, end[_VERSION])
        self._check_there(root, versions)
        begins_with_state = bool(start.get(_STATE))
        return plan_changes(
            self._options, root, store, versions, begins_with_state=begins_with_state
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_changes(partition, self._schema)

    def _has_nothing_after(self, start: Offset) -> bool:
        """Whether one look is enough to see that there is no version yet after the last one read.

        Spark asks this many times a second, and listing versions is slow on a remote root.
        """
        known = self._root
        return (
            known is not None
            and _STATE not in start
            and known.versions[-1] == start[_VERSION]
            and known.storage.size(manifest_path(start[_VERSION] + 1)) is None
        )

    def _check_history(self, root: Root, offset: Offset) -> None:
        """Raise IllegalState if the version that was read is no longer part of the history."""
        version, commit = offset[_VERSION], offset.get(_COMMIT)
        newest = root.versions[-1]
        is_another = version in root.versions and commit not in (
            None,
            root.manifest(version).commit_id,
        )
        if (version > newest and commit is not None) or is_another:
            raise IllegalState(
                f"The stream has read the changes of {root.location} up to version {version}, but "
                f"the root went back before that version; its newest is {newest} now. What was "
                "read of the versions that are undone stays where it was written. Start again "
                "with a new checkpoint."
            )

    def _check_there(self, root: Root, versions: Sequence[int]) -> None:
        """Raise VersionNotFound unless all versions can be read."""
        lost = sorted(set(versions) - set(root.versions))
        if lost:
            raise VersionNotFound(
                f"The changes of version {lost[0]} of {root.location} are gone: retention has "
                f"removed it, and the oldest version there is {_oldest(root)}. Start again with a "
                "new checkpoint and without startingVersion, which begins with the state at the "
                "oldest version. To keep versions longer, raise "
                "spark.sql.streaming.minBatchesToRetain for the query that writes them."
            )

    def _check_columns(self, root: Root) -> None:
        """Raise IllegalState if the store has other columns than when the stream started."""
        now = self._columns()
        if now.simpleString() != self._schema.simpleString():
            raise IllegalState(
                f"The columns of the store in {root.location} have changed from "
                f"{self._schema.simpleString()} to {now.simpleString()}. Load the stream and start "
                "the query again; it resumes where it was, with the new columns."
            )


def _offset(root: Root, version: int) -> Offset:
    return {_VERSION: version, _COMMIT: root.manifest(version).commit_id}


def _versions(start: Offset, last: int) -> range:
    """The versions to read after an offset, up to a version."""
    return range(start[_VERSION] + (0 if start.get(_STATE) else 1), last + 1)


def _oldest(root: Root) -> int:
    """The oldest version after which none is missing; tags may keep older ones."""
    there, oldest = set(root.versions), root.versions[-1]
    while oldest - 1 in there:
        oldest -= 1
    return oldest
