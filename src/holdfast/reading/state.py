"""The state of one store at one version, as people read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Self

import numpy as np
import pyarrow as pa

from holdfast.reading.figures import intact_history, store_infos
from holdfast.reading.keys import row_of
from holdfast.reading.model import Diff, KeyVersion, StoreInfo, VersionInfo
from holdfast.reading.reader import VersionReader
from holdfast.reading.root import Root
from holdfast.reading.store import InspectedStore
from holdfast.store import Row, RowPair
from holdfast.types import Field, RowCodec, Schema, StructType, moment


class ReadableState(ABC):
    """One store at one version: what `holdfast.read` and `holdfast.open(…).at(version)` have alike.

    A key is a tuple, a dict by column name, or a plain cell where the key has one column. DuckDB,
    Polars and all who speak Arrow's C stream interface read the state as a table.

    Reads raise InvalidArgument for a key, column or filter that does not fit, Corruption where
    stored data is damaged beyond repair, VersionNotFound once retention has removed the version,
    and Unavailable where the storage does not answer.
    """

    _at: VersionReader
    """Replaced as a whole, so that threads may share a state that is refreshed."""

    @property
    def version(self) -> int:
        """The version that is read."""
        return self._at.version

    @property
    def watermark(self) -> datetime | np.datetime64 | None:
        """The event time up to which this version's state is final and evicted; None without one.

        Spark's progress calls it `eventTime.watermark`. After the year 9999, which a datetime
        cannot hold, it is a `numpy.datetime64` in UTC.
        """
        evict_ms = (self._at.manifest.watermark or {}).get("evict_ms", 0)
        return moment(evict_ms) if evict_ms else None

    @property
    def committed_at(self) -> datetime | np.datetime64:
        """When this version was committed, by the writer's clock."""
        return moment(self._at.manifest.committed_at_ms)

    @property
    def operator(self) -> int:
        """The operator whose store is read."""
        return self._at.place.operator

    @property
    def store(self) -> str:
        """The name of the store that is read."""
        return self._at.place.name

    @property
    def stores(self) -> tuple[StoreInfo, ...]:
        """Every store of this version, with operator, name, columns and size."""
        return tuple(store_infos(self._at.manifest))

    @property
    def key_schema(self) -> Schema:
        """The columns of a key."""
        return self._at.key_schema

    @property
    def value_schema(self) -> Schema:
        """The columns of a value."""
        return self._at.value_schema

    @property
    def num_keys(self) -> int:
        """How many keys there are, without reading them."""
        return self._at.num_keys

    def get(self, key: Any) -> Row | None:
        """The value of a key, or None: a tuple, a dict, or a plain cell for a one-column key."""
        return self._at.get(key)

    def get_many(self, keys: pa.Table) -> pa.Table:
        """`keys` in their order, the value columns (null where absent) and a boolean `_found`."""
        return self._at.get_many(keys)

    def scan(
        self, columns: Sequence[str] | None = None, where: Any = None, prefix: Any = None
    ) -> pa.Table:
        """The state as a table. `columns` picks some; `where` is a filter.

        That is text as in `holdfast scan --where`, or a pyarrow.compute expression. `prefix` leaves
        the keys that begin with it: a plain cell or a tuple of the first columns of the key, or a
        dict of any of them. Where it has the columns of `num_cols_prefix_key`, it is read alone;
        otherwise all of the state is read.
        """
        return self._at.scan(columns, where, prefix)

    def iterator(self) -> Iterator[RowPair]:
        """All pairs of key and value, in no promised order, as of this call."""
        return self._at.iterator()

    def __iter__(self) -> Iterator[RowPair]:
        """The same: `for key, value in state`."""
        return self.iterator()

    def __len__(self) -> int:
        """How many keys there are, as `num_keys`."""
        return self.num_keys

    def __bool__(self) -> bool:
        """True, also without keys: it says that there is a state, not what is in it."""
        return True

    def __contains__(self, key: Any) -> bool:
        """Whether a key is there, given as in `get`."""
        return self.get(key) is not None

    def get_range(self, start: Any = None, end: Any = None) -> Iterator[RowPair]:
        """Pairs whose `key_index_ordinal` column lies in start..end, both inclusive, either open.

        A store without such a column gives every pair.
        """
        return self._at.get_range(start, end)

    def prefix_scan(self, prefix: Any) -> Iterator[RowPair]:
        """Pairs whose first key columns equal `prefix`, given as a key is.

        Requires: the store was made with `num_cols_prefix_key`, and these are so many columns.
        """
        return self._at.prefix_scan(prefix)

    def history(self) -> list[VersionInfo]:
        """Every version there is of this store, newest first; damaged ones are named in the log."""
        place = self._at.place
        return intact_history(place.log, place.operator, place.name)

    def key_history(self, key: Any) -> list[KeyVersion]:
        """The versions there are in which a key came, changed or went, oldest first."""
        return self._inspected().key_history(row_of(key, self._at.shape.keys))

    def diff(self, before: int | str | None = None, limit: int | None = None) -> Diff:
        """What changed from another version to this one, key by key.

        `before` is a version or tag, older or newer, by default the version before this one. At
        most `limit` changes are listed (None: all); the counts are of all of them.
        """
        store = self._inspected()
        other = store.root.before(self.version) if before is None else before
        return store.diff(other, self.version, limit)

    def _inspected(self) -> InspectedStore:
        place = self._at.place
        return Root(place.log.storage).store(place.operator, place.name)

    def to_arrow(self) -> pa.Table:
        """The whole state as a pyarrow.Table."""
        return self.scan()

    def to_pandas(self) -> Any:
        """The whole state as a pandas.DataFrame. Requires: pandas is installed.

        A column of dates, or of lists or structs of times, some of which are outside the years 1
        to 9999, has the cells that `get` gives.
        """
        return _to_pandas(self.scan(), (*self.key_schema.fields, *self.value_schema.fields))

    @abstractmethod
    def refresh(self) -> Self:
        """Continue with the newest version; return this same object."""

    @abstractmethod
    def at(self, version: int | str) -> ReadableState:
        """Open another version, by number or tag; this object stays at its own."""

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The whole state as an Arrow stream, read while it is consumed."""
        at = self._at
        batches = (batch for table in at.tables() for batch in table.to_batches())
        reader = pa.RecordBatchReader.from_batches(at.arrow_schema(), batches)
        return reader.__arrow_c_stream__(requested_schema)


def _to_pandas(table: pa.Table, fields: Sequence[Field]) -> Any:
    try:
        return table.to_pandas()
    except (ValueError, OverflowError):  # times that Python's types cannot hold
        pass
    frame = table.select([]).to_pandas()
    for place, (column, field) in enumerate(zip(table.columns, fields, strict=True)):
        try:
            cells = column.to_pandas()
        except (ValueError, OverflowError):
            rows = RowCodec(Schema(StructType((field,)))).from_arrow([column])
            cells = np.fromiter((cell for (cell,) in rows), object, len(rows))
        frame.insert(place, field.name, cells)
    return frame
