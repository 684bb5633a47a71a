"""What a version gives to a sink, read from state: nothing is stored for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from holdfast.streams import process
from holdfast.streams.tasks.task import StoreSpec


@dataclass(frozen=True)
class StoredOutput:
    """What to read of a version: `mode` is update, append or complete.

    In append mode, rows whose index lies above `above` and at or below `upto` come out: those the
    version evicted.
    """

    store: StoreSpec
    version: int
    mode: str
    above: int | None = None
    upto: int | None = None


def read_output(output: StoredOutput, partition: int) -> Iterator[pa.Table]:
    """One partition of a version's output, as tables of key and partial columns."""
    reader = output.store.engine(partition).get_read_store(output.version)
    if output.mode == "complete":
        yield from reader.tables()
    elif output.mode == "update":
        yield from reader.delta_tables()
    elif output.upto is not None:
        yield from reader.evicted_tables(output.above, output.upto)
    process.settle("read")
