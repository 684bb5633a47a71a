"""Sample keys with their hashes, kept in the manifest so that a changed hash is noticed.

A build that hashed differently would find none of the stored keys, and silently write new ones.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.ipc as ipc

from holdfast.engine.hashing.spark_hash import HASH_NAME
from holdfast.engine.partition.shape import StoreShape
from holdfast.errors import HoldfastError, InvalidArgument
from holdfast.types import one_array


def make_samples(shape: StoreShape) -> dict[str, Any]:
    """Invented keys of the store's schema, never user data, and their hashes."""
    columns = [_samples(field.type, field.nullable) for field in shape.layout.keys]
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays(columns, schema=shape.layout.keys)
    with ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return {
        "keys": base64.b64encode(sink.getvalue()).decode(),
        "hashes": shape.hasher.hash_columns(columns).tolist(),
    }


def check_samples(shape: StoreShape, hash_name: str, samples: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for state whose hashes this build does not reproduce."""
    if hash_name != HASH_NAME:
        raise _mismatch(
            f"it was written with the hash {hash_name!r}, and this release has {HASH_NAME!r}"
        )
    stored = ipc.open_stream(base64.b64decode(samples["keys"])).read_all()
    columns = [one_array(column) for column in stored.columns]
    if shape.hasher.hash_columns(columns).tolist() != samples["hashes"]:
        raise _mismatch("this build hashes its sample keys differently")


def _mismatch(why: str) -> HoldfastError:
    return InvalidArgument(
        f"The state cannot be used: {why}, so every lookup would miss. Install the release that "
        "wrote it.",
        condition="STATE_STORE_HASH_MISMATCH",
    )


def _samples(kind: pa.DataType, nullable: bool) -> pa.Array:
    """Three cells of a type: two values and, where allowed, a null."""
    if pa.types.is_struct(kind):
        children = [_samples(field.type, field.nullable) for field in kind]
        return pa.StructArray.from_arrays(children, fields=list(kind))
    if pa.types.is_list(kind):
        cells = _samples(kind.value_type, kind.value_field.nullable)
        return pa.ListArray.from_arrays(pa.array([0, 2, 2, 3], pa.int32()), cells, type=kind)
    last = None if nullable else 1
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        text = ["holdfast", "", last if last is None else "state"]
        return pa.array(text, pa.string()).cast(kind)
    if pa.types.is_decimal(kind):
        digits = [None if d is None else Decimal(d).scaleb(-kind.scale) for d in (4, -1, last)]
        return pa.array(digits, kind)
    if pa.types.is_interval(kind):
        spans = [None if n is None else pa.MonthDayNano((n, -n, n * 1000)) for n in (42, -1, last)]
        return pa.array(spans, kind)
    if pa.types.is_boolean(kind):
        return pa.array([True, False, last if last is None else True], kind)
    numbers = pa.array([42, -1, last], pa.int32() if pa.types.is_date32(kind) else pa.int64())
    if pa.types.is_time(kind):
        numbers = pa.array([42, 0, last], pa.int64())
    return numbers.cast(kind)
