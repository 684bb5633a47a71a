"""State as a processor sees it, which is as PySpark gives it: structs are Rows, and timestamps are
naive, in the local time of the Python process.

The store keeps canonical rows (`types.RowCodec`), in which structs are tuples and timestamps are
aware, in UTC.
"""

from __future__ import annotations

import functools
from collections import _tuplegetter  # type: ignore[attr-defined]  # as named tuples have
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.types import (
    ArrayType,
    AtomicType,
    DataType,
    MapType,
    Row,
    RowCodec,
    Schema,
    StructType,
)

_Change = Callable[[Any], Any]
_TIMESTAMP = AtomicType("timestamp")
_EPOCH, _SECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(seconds=1)


@functools.cache
def row_maker(names: tuple[str, ...]) -> Callable[[tuple[Any, ...]], Any]:
    """Return a function that makes a PySpark Row of cells, with these column names.

    The rows are of a subclass that finds a column by an attribute of the class, as a named tuple
    does; Row itself searches the list of names each time. Names that Row already has, such as
    `count`, stay Row's own.
    """
    from pyspark.sql.types import Row as SparkRow

    has = functools.partial(hasattr, SparkRow)
    own = {name: _tuplegetter(at, "") for at, name in enumerate(names) if not has(name)}
    kind = type("Row", (SparkRow,), {"__fields__": list(names), "__slots__": (), **own})
    return functools.partial(tuple.__new__, kind)


_SPARKS_WORDS = {"exists": "checking", "get": "getting", "clear": "clearing"}
"""How Spark begins its errors about a variable, by the method that was called."""


def deleted_error(name: str, kind: str, method: str) -> Exception:
    """PySpark's error for the use of a variable that init() has deleted, in its words."""
    from pyspark.errors import PySparkRuntimeError

    doing = _SPARKS_WORDS.get(method, "updating")
    what = f"{'map' if kind == 'map' else 'value'} state{' exists' * (method == 'exists')}"
    return PySparkRuntimeError(
        f"Error {doing} {what}: init() deleted the state variable {name!r} with deleteIfExists. "
        "Delete it only where it is not used any more."
    )


class StateForm:
    """How rows of one schema come to a processor, and from it.

    Naive timestamps are in local time, or else in the time zone `zone`.
    """

    def __init__(self, schema: Schema, zone: str | None = None) -> None:
        self._codec = RowCodec(schema)
        self._names = schema.names
        kinds = [field.type for field in schema]
        moment = naive if zone is None else _naive_in(pa.lib.string_to_tzinfo(zone))
        self._showers = [_shower(kind, moment) for kind in kinds]
        self._takers = [_taker(kind) for kind in kinds]
        self._is_shown = any(self._showers)
        self._is_taken = any(self._takers)

    def show(self, row: Row) -> Row:
        """A canonical row as a tuple that the processor may change the inside of."""
        if not self._is_shown:
            return row
        return _changed(self._showers, row)

    def show_row(self, row: Row) -> Any:
        """A canonical row as a Row with the names of the columns."""
        return row_maker(self._names)(self.show(row))

    def take(self, row: Any) -> Row:
        """The canonical row of what a processor gave.

        Like Spark it takes whatever gives the cells one by one, so also a text of one character
        for one column. Raises InvalidArgument as `RowCodec.encode` does.
        """
        if not isinstance(row, (tuple, list, dict)) and hasattr(row, "__iter__"):
            cells = tuple(row)
            row = cells if len(cells) == len(self._names) else row
        if self._is_taken:
            row = _taken(self._names, self._takers, row)
        return self._codec.encode(row)


def naive(moment: Any) -> Any:
    """A timestamp of the store without a zone, in local time.

    One that no datetime can hold there stays a `numpy.datetime64` in UTC.
    """
    if not isinstance(moment, datetime):
        return moment
    try:  # unlike astimezone, this tells a time that comes twice from its first coming
        local = datetime.fromtimestamp((moment - _EPOCH) // _SECOND)
        return local.replace(microsecond=moment.microsecond)
    except (OverflowError, ValueError, OSError):
        return np.datetime64(moment.replace(tzinfo=None), "us")


def _naive_in(zone: tzinfo) -> _Change:
    def changed(moment: Any) -> Any:
        is_near = isinstance(moment, datetime)
        return moment.astimezone(zone).replace(tzinfo=None) if is_near else moment

    return changed


def aware(moment: Any) -> Any:
    """A timestamp of a processor with a zone; one without is in local time."""
    if not isinstance(moment, datetime) or moment.tzinfo is not None:
        return moment
    if hasattr(moment, "to_pydatetime") and not getattr(moment, "nanosecond", 0):
        moment = moment.to_pydatetime()  # pandas cannot tell where a naive timestamp is
    return moment if hasattr(moment, "to_pydatetime") else moment.astimezone(UTC)


def rank(cell: Any) -> tuple[Any, ...]:
    """What canonical cells and rows are sorted by: null is first, and NaN last."""
    if cell is None:
        return (0,)
    if isinstance(cell, (tuple, list)):
        return (2, tuple(map(rank, cell)))
    if isinstance(cell, np.datetime64):  # outside of what datetimes can hold, on either side
        return (1 if cell < np.datetime64(0, "us") else 3, int(cell.astype(np.int64)))
    return (3,) if cell != cell else (2, cell)


def _changed(changes: Sequence[_Change | None], cells: Sequence[Any]) -> tuple[Any, ...]:
    pairs = zip(changes, cells, strict=True)
    return tuple([c if change is None or c is None else change(c) for change, c in pairs])


def _shower(kind: DataType, moment: _Change) -> _Change | None:
    """What makes a processor's cell of a canonical one; None where that is the same."""
    if kind == _TIMESTAMP:
        return moment
    inside = [_shower(child, moment) for child in kind.children()]
    if isinstance(kind, ArrayType):
        return _in_list(inside[0])
    if isinstance(kind, MapType):
        return _in_dict(*inside)
    if isinstance(kind, StructType):
        make, changes = row_maker(kind.names), inside
        return lambda cells: make(_changed(changes, cells))
    return None


def _taker(kind: DataType) -> _Change | None:
    """What gives the timestamps in a processor's cell a zone; None where there are none."""
    if kind == _TIMESTAMP:
        return aware
    inside = [_taker(child) for child in kind.children()]
    if not any(inside):
        return None
    if isinstance(kind, ArrayType):
        return _in_list(inside[0])
    if isinstance(kind, MapType):
        return _in_dict(*inside)
    assert isinstance(kind, StructType)
    return functools.partial(_taken, kind.names, inside)


def _in_list(change: _Change | None) -> _Change:
    def changed(cells: Any) -> Any:
        if not isinstance(cells, (list, tuple)):
            return cells
        return [c if change is None or c is None else change(c) for c in cells]

    return changed


def _in_dict(key: _Change | None, value: _Change | None) -> _Change:
    def changed(cells: Any) -> Any:
        if not isinstance(cells, dict):
            return cells
        return dict(_changed((key, value), pair) for pair in cells.items())

    return changed


def _taken(names: Sequence[str], changes: Sequence[_Change | None], row: Any) -> Any:
    """A row or struct by position or by name; what is neither is left for the codec to refuse."""
    if isinstance(row, dict):
        by_name = dict(zip(names, changes, strict=True))
        return {
            name: change(cell) if (change := by_name.get(name)) else cell
            for name, cell in row.items()
        }
    if isinstance(row, (tuple, list)) and len(row) == len(names):
        return _changed(changes, row)
    return row
