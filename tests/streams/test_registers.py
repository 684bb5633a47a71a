"""Registers of approx_count_distinct: what merging leaves, and what earlier sketches become."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import InvalidArgument
from holdfast.streams.aggregates.functions import BY_NAME
from holdfast.streams.aggregates.grouping import Runs, merged_runs
from holdfast.streams.aggregates.hll import precision_of
from holdfast.streams.aggregates.merging import Merge
from holdfast.streams.aggregates.parts import FunctionCall
from holdfast.streams.aggregates.registers import (
    DENSE,
    HASHES,
    PAIRS,
    header,
    merged,
    of_hashes,
    of_sketches,
    words_of,
)
from holdfast.streams.aggregates.stored import stored_aggregates
from holdfast.types import parse_schema

PRECISIONS = (4, 9, 12)


def _random() -> np.random.Generator:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    return np.random.default_rng(seed)


def _hashes(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 2**64, count, dtype=np.uint64)


def _batch(groups: list[np.ndarray], p: int) -> pa.Array:
    """The cells that Spark makes of a batch, in any order and with indexes that come again."""
    return pa.array(
        [header(p) + words_of(hashes, p).astype(">u4").tobytes() for hashes in groups], pa.binary()
    )


def _registers(hashes: np.ndarray, p: int) -> dict[int, int]:
    """What one value after the other leaves, bit by bit."""
    found: dict[int, int] = {}
    for number in map(int, hashes):
        rest = (number << p) & (2**64 - 1) | 1 << (p - 1)
        index, rank = number >> (64 - p), 65 - rest.bit_length()
        found[index] = max(found.get(index, 0), rank)
    return found


def _read(cell: bytes) -> dict[int, int]:
    if cell[0] == DENSE:
        return {at: rank for at, rank in enumerate(cell[2:]) if rank}
    words = np.frombuffer(cell[2:], ">u4").tolist()
    assert words == sorted(words)
    return {word >> 6: word & 63 for word in words}


def _nothing(count: int) -> pa.Array:
    return pa.nulls(count, pa.binary())


@pytest.mark.parametrize("p", PRECISIONS)
def test_merged_cells_are_the_registers_of_all_values(p: int) -> None:
    rng = _random()
    sizes = [0, 1, 5, (1 << p) // 8, 1 << p, 5 << p]
    parts = [[_hashes(rng, rng.choice(sizes)) for _ in range(40)] for _ in range(3)]
    state = _nothing(40)
    for part in parts:
        state, estimates = merged(state, _batch(part, p))
    for at, cell in enumerate(state.to_pylist()):
        every = np.concatenate([part[at] for part in parts])
        assert _read(cell) == _registers(every, p)
        assert cell[0] == (DENSE if 4 * len(_read(cell)) >= 1 << p else PAIRS)
        error = abs(estimates[at].as_py() - len(every)) / max(len(every), 1)
        assert error < 8 * 1.04 / 2 ** (p / 2)


def test_cells_do_not_depend_on_the_order_of_merging() -> None:
    rng = _random()
    parts = [_batch([_hashes(rng, size)], 9) for size in (10, 900, 40, 5_000, 0)]
    forward = backward = _nothing(1)
    for part in parts:
        forward, some = merged(forward, part)
    for part in reversed(parts):
        backward, others = merged(part, backward)
    assert forward.equals(backward)
    assert some.equals(others)


def test_a_group_of_one_cell_is_settled_as_a_merged_one_is() -> None:
    cells = _batch([_hashes(_random(), 900), np.array([], np.uint64)], 9)
    table = pa.table({"n": pa.array([0, 0], pa.int64()), "r": cells})
    runs = Runs.of(np.arange(2))
    found = merged_runs((Merge("distinct", ("n", "r")),), table, runs, ansi=True)
    kept, estimates = merged(_nothing(2), cells)
    assert found.column("n").combine_chunks().equals(estimates)
    assert found.column("r").combine_chunks().equals(kept)


def test_no_values_are_estimated_as_none() -> None:
    none, empty = _nothing(3), pa.array([None, header(9), None], pa.binary())
    assert merged(none, none)[1].to_pylist() == [0, 0, 0]
    assert merged(none, empty)[1].to_pylist() == [0, 0, 0]


def test_a_slice_of_a_column_is_merged_as_the_column() -> None:
    rng = _random()
    groups = [_hashes(rng, size) for size in (3, 2000, 0, 7, 900)]
    whole, estimates = merged(_nothing(5), _batch(groups, 9))
    some, few = merged(_nothing(5)[2:], _batch(groups, 9)[2:])
    assert some.equals(whole[2:])
    assert few.equals(estimates[2:])
    again, same = merged(whole[1:4], _batch(groups, 9)[1:4])
    assert again.equals(whole[1:4])
    assert same.equals(estimates[1:4])


@pytest.mark.parametrize("p", PRECISIONS)
def test_sketches_of_earlier_versions_become_the_registers_of_their_values(p: int) -> None:
    rng = _random()
    groups = [_hashes(rng, size) for size in (0, 1, 30, 4000)]
    sparse = [bytes([HASHES, p]) + part.astype(">u8").tobytes() for part in groups]
    ranks = _registers(groups[3], p)
    dense = bytes([DENSE, p, *(ranks.get(at, 0) for at in range(1 << p))])
    kept, _ = merged(_nothing(6), of_sketches(pa.array([*sparse, None, dense], pa.binary())))
    found = [None if cell is None else _read(cell) for cell in kept.to_pylist()]
    assert found == [*(_registers(part, p) for part in groups), {}, ranks]


def test_rows_have_the_cells_of_their_hashes() -> None:
    rng = _random()
    hashes, there = _hashes(rng, 4), np.array([True, False, True, True])
    expected = [hashes[at : at + 1] if there[at] else hashes[:0] for at in range(4)]
    assert of_hashes(hashes, there, 9).equals(_batch(expected, 9))


@pytest.mark.parametrize("rsd", [0.4, 1.0, 0.0, -0.1, float("nan")])
def test_an_error_that_spark_refuses_is_refused(rsd: float) -> None:
    with pytest.raises(InvalidArgument, match=r"at most 0\.39"):
        precision_of(rsd)


def test_a_smaller_error_takes_more_registers() -> None:
    assert [precision_of(rsd) for rsd in (0.39, 0.05, 0.01, 1e-9)] == [4, 9, 14, 24]


@pytest.mark.parametrize(
    "kind", ["map<int, int>", "string collate UNICODE_CI", "array<string collate UTF8_LCASE>"]
)
def test_what_spark_hashes_in_another_way_is_refused(kind: str) -> None:
    inputs = (parse_schema(f"x {kind}").fields[0].type,)
    with pytest.raises(InvalidArgument, match="no maps"):
        BY_NAME["approx_count_distinct"].take_apart(FunctionCall("f(x)", inputs))


@pytest.mark.parametrize("kept", ["n_sketch", "n_hyperloglog"])
@pytest.mark.parametrize("told", ["", " kept in n, n_sketch"])
def test_the_columns_of_an_estimate_are_told_by_its_definition(kept: str, told: str) -> None:
    values = parse_schema(f"n long, {kept} binary")
    definition = {"aggregate n": f"approx_count_distinct(v){told}"}
    (found,) = stored_aggregates(definition, values)
    assert found.columns == ("n", kept)
    assert found.nothing == (0, None)
    assert not found.is_set_by_value
