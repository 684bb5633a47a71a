"""The key hash of one row at a time, in plain Python integers; XXH64 is the C package's.

For a single row numpy's calls would cost more than the hash. Python's integers have no size, so
every product and shift is cut to 32 bits by hand.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import numpy as np
from xxhash import xxh64_intdigest

from holdfast.engine.hashing.murmur3 import C1, C2, F1, F2, N
from holdfast.types import (
    AtomicType,
    DataType,
    DecimalType,
    IntervalType,
    Row,
    Schema,
    StringType,
    TimeType,
    far_number,
)

_M = 0xFFFFFFFF
_M64 = 0xFFFFFFFFFFFFFFFF
_SEED = 42
_NO_NULLS = bytes(8)
_MICROSECOND = timedelta(microseconds=1)
_EPOCH, _EPOCH_UTC = datetime(1970, 1, 1), datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_DOUBLE_NAN, _FLOAT_NAN = 0x7FF8000000000000, 0x7FC00000

ToBytes = Callable[[Any], bytes]
Murmur = Callable[[bytes, int], int]


def row_hasher(schema: Schema, num_routing: int) -> Callable[[Row], int] | None:
    """A function from a canonical key to its hash; None for keys with nested columns."""
    encoders = [_encoder(f.type) for f in schema.fields]
    if not all(encoders):
        return None
    if len(encoders) == 1 and num_routing == 1:
        if schema.fields[0].type == AtomicType("long"):
            return _hash_one_long
        if schema.fields[0].type == StringType():
            return _hash_one_string
    return _general([e for e in encoders if e], num_routing)


# -- murmur3 -------------------------------------------------------------------------------------


def murmur3_bytes(data: bytes, seed: int) -> int:
    """Spark's Murmur3 of a byte string, unsigned. Words and longs are their little-endian bytes."""
    h, size = seed, len(data)
    whole = size & ~3
    for k in struct.unpack_from(f"<{whole >> 2}I", data):
        k = k * C1 & _M
        h ^= (k << 15 | k >> 17) * C2 & _M
        h = (h << 13 | h >> 19) * 5 + N & _M
    for k in data[whole:]:  # Spark's deviation: each byte is a word, sign extended
        if k > 127:
            k |= 0xFFFFFF00
        k = k * C1 & _M
        h ^= (k << 15 | k >> 17) * C2 & _M
        h = (h << 13 | h >> 19) * 5 + N & _M
    h ^= size
    h = (h ^ h >> 16) * F1 & _M
    h = (h ^ h >> 13) * F2 & _M
    return h ^ h >> 16


def _joined(top: int, low: int) -> int:
    # The top half is a signed number in Spark, so the whole is negative where its top bit is set.
    return (top - 0x100000000 if top > 0x7FFFFFFF else top) << 32 | low & _M


def _hash_one_long(row: Row) -> int:
    # murmur3_bytes with its loop unrolled, for the most common type of key.
    value: int | None = row[0]
    if value is None:
        return _hash_null(row)
    k = (value & _M) * C1 & _M
    h = _SEED ^ (k << 15 | k >> 17) * C2 & _M
    h = (h << 13 | h >> 19) * 5 + N & _M
    k = (value >> 32 & _M) * C1 & _M
    h ^= (k << 15 | k >> 17) * C2 & _M
    h = (h << 13 | h >> 19) * 5 + N & _M
    h ^= 8
    h = (h ^ h >> 16) * F1 & _M
    h = (h ^ h >> 13) * F2 & _M
    h ^= h >> 16
    low = xxh64_intdigest((value & _M64).to_bytes(8, "little"), _SEED)
    low = xxh64_intdigest(_NO_NULLS, low)
    return (h - 0x100000000 if h > 0x7FFFFFFF else h) << 32 | low & _M


def _hash_one_string(row: Row) -> int:
    value = row[0]
    if value is None:
        return _hash_null(row)
    data = value.encode()
    low = xxh64_intdigest(_NO_NULLS, xxh64_intdigest(data, _SEED))
    return _joined(murmur3_bytes(data, _SEED), low)


def _hash_null(row: Row) -> int:
    mask = sum(1 << i for i, cell in enumerate(row) if cell is None)
    return _joined(_SEED, xxh64_intdigest(mask.to_bytes(8, "little"), _SEED))


def _general(encoders: list[ToBytes], num_routing: int) -> Callable[[Row], int]:
    def hash_row(row: Row) -> int:
        top = low = _SEED
        mask = 0
        for number, cell in enumerate(row):
            if cell is None:
                mask |= 1 << number
                continue
            data = encoders[number](cell)
            low = xxh64_intdigest(data, low)
            if number < num_routing:
                top = murmur3_bytes(data, top)
        return _joined(top, xxh64_intdigest(mask.to_bytes(8, "little"), low))

    return hash_row


# -- cells as the bytes that are hashed ----------------------------------------------------------


def _encoder(kind: DataType) -> ToBytes | None:
    if isinstance(kind, StringType):
        return str.encode
    if isinstance(kind, DecimalType):
        return _decimal(kind)
    if isinstance(kind, TimeType):
        return _time
    if isinstance(kind, IntervalType):
        return _int if kind.year_month else _duration
    return _ENCODERS.get(kind.name) if isinstance(kind, AtomicType) else None


def _int(cell: int) -> bytes:
    return (cell & _M).to_bytes(4, "little")


def _long(cell: int) -> bytes:
    return (cell & _M64).to_bytes(8, "little")


def _bytes(cell: bytes) -> bytes:
    return cell


def _double(cell: float) -> bytes:
    if cell != cell:
        return _DOUBLE_NAN.to_bytes(8, "little")
    return _DOUBLE.pack(cell or 0.0)


def _float(cell: float) -> bytes:
    if cell != cell:
        return _FLOAT_NAN.to_bytes(4, "little")
    return _FLOAT.pack(cell or 0.0)


def _date(cell: date | np.datetime64) -> bytes:
    if isinstance(cell, np.datetime64):
        return _int(far_number(cell))
    return _int(cell.toordinal() - _EPOCH_DAY)


def _timestamp(cell: datetime | np.datetime64) -> bytes:
    if isinstance(cell, np.datetime64):
        return _long(far_number(cell))
    return _long((cell - _EPOCH_UTC) // _MICROSECOND)


def _timestamp_ntz(cell: datetime | np.datetime64) -> bytes:
    if isinstance(cell, np.datetime64):
        return _long(far_number(cell))
    return _long((cell - _EPOCH) // _MICROSECOND)


def _duration(cell: timedelta) -> bytes:
    return _long(cell // _MICROSECOND)


def _time(cell: Any) -> bytes:
    seconds = (cell.hour * 60 + cell.minute) * 60 + cell.second
    return _long((seconds * 1_000_000 + cell.microsecond) * 1000)


def _decimal(kind: DecimalType) -> ToBytes:
    scale = kind.scale

    def unscaled(cell: Any) -> int:
        sign, digits, exponent = cell.as_tuple()
        number: int = int("".join(map(str, digits))) * 10 ** (scale + exponent)
        return -number if sign else number

    def wide(cell: Any) -> bytes:
        number = unscaled(cell)
        size = (number if number >= 0 else ~number).bit_length() // 8 + 1
        return number.to_bytes(size, "big", signed=True)

    return (lambda cell: _long(unscaled(cell))) if kind.precision <= 18 else wide


_ENCODERS: dict[str, ToBytes] = {
    "boolean": _int,
    "byte": _int,
    "short": _int,
    "integer": _int,
    "long": _long,
    "float": _float,
    "double": _double,
    "binary": _bytes,
    "date": _date,
    "timestamp": _timestamp,
    "timestamp_ntz": _timestamp_ntz,
}
