"""Registers of HyperLogLog++ in a binary column, merged many cells at a time.

A cell is two bytes, its form and its precision p, and then the registers of 2**p that are not 0.
PAIRS has one big-endian word of 4 bytes for each, `index * 64 + rank`; DENSE has a byte for every
register. A batch's cells are PAIRS in any order, in which an index may come again with another
rank. A merged cell is PAIRS in the order of the index while that is shorter than DENSE, so equal
registers are equal bytes.

Earlier versions kept a *sketch*: a cell of the form HASHES, the hashes themselves with 8 bytes
each, or DENSE. `of_sketches` makes registers of these.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.streams.aggregates.hll import HASH_BITS, Longs, estimates

HASHES, DENSE, PAIRS = 0, 1, 2
_HEADER = 2
_RANK_BITS = 6
_WORD_BYTES = 4
_REGISTERS_AT_A_TIME = 1 << 22
Words = npt.NDArray[np.int64]


def header(precision: int) -> bytes:
    """How a cell of pairs starts; it is the cell of no values."""
    return bytes([PAIRS, precision])


def pair_sql(hashed: str, precision: int) -> str:
    """SQL of the word of a hash: the register it belongs to, and its rank there."""
    index = f"shiftrightunsigned({hashed}, {HASH_BITS - precision})"
    # The text of a number in base 2 has no leading zeros, so its length counts them.
    digits = f"length(bin(shiftleft({hashed}, {precision}) | {1 << (precision - 1)}L))"
    return f"(shiftleft({index}, {_RANK_BITS}) | ({HASH_BITS + 1} - {digits}))"


def words_of(hashes: npt.NDArray[np.uint64], precision: int) -> Words:
    """The words of hashes, as `pair_sql` makes them."""
    index = (hashes >> np.uint64(HASH_BITS - precision)).astype(np.int64)
    rest = (hashes << np.uint64(precision)) | np.uint64(1 << (precision - 1))
    return (index << _RANK_BITS) | (_leading_zeros(rest) + 1)


def _leading_zeros(numbers: npt.NDArray[np.uint64]) -> Longs:
    """The leading zero bits of numbers above 0."""
    high = numbers >> np.uint64(32)
    is_high = high > 0
    # Below 2**32 a number is exact as a double, whose exponent is how many bits it has.
    part = np.where(is_high, high, numbers & np.uint64(0xFFFF_FFFF)).astype(np.float64)
    return HASH_BITS - np.frexp(part)[1] - 32 * is_high.astype(np.int64)


def of_hashes(hashes: npt.NDArray[np.uint64], there: npt.NDArray[np.bool_], p: int) -> pa.Array:
    """A cell for each hash, of no values where it is not `there`."""
    return _cells(words_of(hashes[there], p), there.astype(np.int64), p)


def of_sketches(sketches: pa.Array) -> pa.Array:
    """The registers of sketches that earlier versions kept; null where there is none."""
    precision = _precision(sketches)
    if precision is None:
        return sketches
    at = np.flatnonzero(_forms(sketches) == HASHES)
    some = sketches.take(pa.array(at))
    hashes = _payload(some).view(">u8").astype(np.uint64)
    sparse = _cells(words_of(hashes, precision), _lengths(some) // 8, precision)
    return _placed([(at, sparse)], sketches)


def merged(old: pa.Array, new: pa.Array) -> tuple[pa.Array, pa.Array]:
    """The registers of both columns, row by row, and the estimates of them; null is no registers.

    Both are chunked where a column would be too large for one array.
    """
    precision = _precision(old)
    precision = _precision(new) if precision is None else precision
    if precision is None:
        return new, pa.array(np.zeros(len(new), np.int64))
    step = max(1, _REGISTERS_AT_A_TIME >> precision)
    starts = range(0, len(new), step)
    parts = [_merged(old.slice(at, step), new.slice(at, step), precision) for at in starts]
    cells = [part for part, _ in parts]
    counted = np.concatenate([found for _, found in parts]) if parts else np.zeros(0, np.int64)
    fits = sum(part.nbytes for part in cells) < 1 << 31
    joined = pa.concat_arrays(cells) if fits and cells else pa.chunked_array(cells, new.type)
    return joined, pa.array(counted)


def _merged(old: pa.Array, new: pa.Array, p: int) -> tuple[pa.Array, Longs]:
    """One slice of `merged`."""
    size, rows = 1 << p, len(new)
    words, counts = _joined_pairs(old, new)
    is_dense = (_forms(old) == DENSE) | (_forms(new) == DENSE) | (_WORD_BYTES * counts >= size)
    owner = np.repeat(np.arange(rows), counts)
    of_pairs = ~is_dense[owner]
    sparse = np.flatnonzero(~is_dense)
    cells = _cells(words[of_pairs], counts[sparse], p)
    ranks = words[of_pairs] & ((1 << _RANK_BITS) - 1)
    zeros = size - counts
    inverses = np.bincount(owner[of_pairs], np.ldexp(1.0, -ranks), rows).astype(np.float64)
    inverses += zeros
    dense = np.flatnonzero(is_dense)
    place = np.cumsum(is_dense) - 1
    matrix = np.zeros((len(dense), size), np.uint8)
    own = owner[~of_pairs]
    matrix[place[own], words[~of_pairs] >> _RANK_BITS] = words[~of_pairs] & 63
    for at, registers in (_dense_of(old, p), _dense_of(new, p)):
        matrix[place[at]] = np.maximum(matrix[place[at]], registers)
    inverses[dense] = np.ldexp(1.0, -np.arange(HASH_BITS))[matrix].sum(axis=1)
    zeros[dense] = size - np.count_nonzero(matrix, axis=1)
    full = _from_rows(np.insert(matrix, 0, np.array([[DENSE], [p]]), axis=1))
    found = _placed([(sparse, cells), (dense, full)], new)
    return found, estimates(inverses, zeros, p)


def _joined_pairs(old: pa.Array, new: pa.Array) -> tuple[Words, Longs]:
    """The pairs of both columns in the order of row and index, and how many each row has.

    Of equal indexes in a row, the one with the highest rank is left.
    """
    keys = []
    for column in (old, new):
        at, words, counts = _pairs_of(column)
        keys.append((np.repeat(at, counts) << 32) | words)
    every = np.sort(np.concatenate(keys))
    last = np.ones(len(every), bool)
    last[:-1] = (every[1:] >> _RANK_BITS) != (every[:-1] >> _RANK_BITS)
    kept = every[last]
    return kept & 0xFFFF_FFFF, np.bincount(kept >> 32, minlength=len(new)).astype(np.int64)


def _pairs_of(column: pa.Array) -> tuple[Longs, Words, Longs]:
    """The rows that are pairs, their words, and how many each has."""
    at = np.flatnonzero(_forms(column) == PAIRS)
    some = column.take(pa.array(at))
    return at, _payload(some).view(">u4").astype(np.int64), _lengths(some) // _WORD_BYTES


def _dense_of(column: pa.Array, p: int) -> tuple[Longs, npt.NDArray[np.uint8]]:
    """The rows that are dense, and their registers."""
    at = np.flatnonzero(_forms(column) == DENSE)
    return at, _payload(column.take(pa.array(at))).reshape(len(at), 1 << p)


def _forms(column: pa.Array) -> npt.NDArray[np.int16]:
    """The form of each cell, -1 for null."""
    data, ends = _bytes_of(column)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    forms = np.full(len(column), -1, np.int16)
    forms[there] = data[ends[:-1][there]]
    return forms


def _precision(column: pa.Array) -> int | None:
    """The precision of a column's cells; None if all are null."""
    data, ends = _bytes_of(column)
    there = np.flatnonzero(column.is_valid().to_numpy(zero_copy_only=False))
    return int(data[ends[there[0]] + 1]) if len(there) else None


def _payload(column: pa.Array) -> npt.NDArray[np.uint8]:
    """What follows on the headers, one cell after the other. Requires: no cell is null."""
    data, ends = _bytes_of(column)
    kept = np.zeros(len(data), bool)
    kept[ends[0] : ends[-1]] = True
    for place in range(_HEADER):
        kept[ends[:-1] + place] = False
    return data[kept]


def _lengths(column: pa.Array) -> Longs:
    """The bytes of each cell behind its header. Requires: no cell is null."""
    return np.diff(_bytes_of(column)[1]) - _HEADER


def _bytes_of(column: pa.Array) -> tuple[npt.NDArray[np.uint8], Longs]:
    """The data of a column, and where in it each cell begins and the last one ends."""
    _, offsets, data = column.buffers()
    if offsets is None or not len(column):
        return np.zeros(0, np.uint8), np.zeros(len(column) + 1, np.int64)
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    cells = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return cells, ends.astype(np.int64)


def _cells(words: Words, counts: Longs, p: int) -> pa.Array:
    """Cells of pairs: `counts` of `words` each."""
    ends = np.concatenate([[0], np.cumsum(counts * _WORD_BYTES)]).astype(np.int32)
    data = words.astype(">u4").tobytes()
    payload = pa.Array.from_buffers(
        pa.binary(), len(counts), [None, pa.py_buffer(ends), pa.py_buffer(data)]
    )
    start, nothing = (pa.scalar(part, pa.binary()) for part in (header(p), b""))
    return pc.binary_join_element_wise(start, payload, nothing)


def _from_rows(matrix: npt.NDArray[np.uint8]) -> pa.Array:
    """A cell of the bytes of each row."""
    ends = (np.arange(len(matrix) + 1) * matrix.shape[1]).astype(np.int32)
    data = pa.py_buffer(np.ascontiguousarray(matrix))
    return pa.Array.from_buffers(pa.binary(), len(matrix), [None, pa.py_buffer(ends), data])


def _placed(parts: list[tuple[Longs, pa.Array]], column: pa.Array) -> pa.Array:
    """`column` with other cells at some rows."""
    places, cells = np.arange(len(column)), [column]
    for at, some in parts:
        places[at] = sum(map(len, cells)) + np.arange(len(at))
        cells.append(some)
    return pa.concat_arrays(cells).take(pa.array(places))
