"""The output of a version, read from its state.

An aggregation's output follows from the committed version, so nothing is stored for it and a
repeated delivery reads the same rows: in update mode the version's delta, in append mode the groups
whose index the version's eviction bound has passed, in complete mode everything. Evicted rows can
still be read, because eviction only raises a bound in the manifest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.streams import process
from holdfast.streams.tasks.task import StoreSpec


@dataclass(frozen=True)
class StoredOutput:
    """What to read from a version; `mode` is update, append or complete.

    In append mode these are the rows that the version evicted: those whose index is above `above`,
    the bound of the version before, and at or below `upto`.
    """

    store: StoreSpec
    version: int
    mode: str
    above: int | None = None
    upto: int | None = None


def read_output(output: StoredOutput, partition: int) -> Iterator[pa.Table]:
    """Read one partition of a version's output, as tables of key and partial columns."""
    reader = output.store.engine(partition).get_read_store(output.version)
    if output.mode == "complete":
        yield from reader.tables()
    elif output.mode == "update":
        yield from reader.delta_tables()
    elif output.upto is not None:
        yield from reader.evicted_tables(output.above, output.upto)
    process.settle("read")
