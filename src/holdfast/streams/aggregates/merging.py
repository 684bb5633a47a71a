"""Merging a batch's partial aggregates into those in state, by Spark's arithmetic.

An aggregate is kept as one or more *partial* columns. `Merge` names the columns and how a value
from the batch joins the one in state; a key that is new simply takes the batch's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.engine.arrays import Mask
from holdfast.engine.partition.columns import equal, valid_mask, words
from holdfast.errors import ArithmeticOverflow
from holdfast.streams.aggregates import registers

Columns = list[pa.Array]
_EXACT = Context(prec=80)


@dataclass(frozen=True, slots=True)
class Merge:
    """How some partial columns are merged: `kind` is a key of `KINDS`."""

    kind: str
    columns: tuple[str, ...]


def merge_table(
    merges: Sequence[Merge], batch: pa.Table, state: pa.Table, *, ansi: bool
) -> pa.Table:
    """The partial columns after the batch, row for row; both tables have all of `merges`."""
    if not merges:
        return batch.select([])
    merged: dict[str, pa.Array] = {}
    for merge in merges:
        new = [_array(batch, name) for name in merge.columns]
        old = [_array(state, name) for name in merge.columns]
        for name, column in zip(merge.columns, KINDS[merge.kind](old, new, ansi), strict=True):
            merged[name] = column
    return pa.table(merged)


def settled_table(merges: Sequence[Merge], batch: pa.Table, *, ansi: bool) -> pa.Table:
    """A batch's columns as they are where its keys are new and nothing was merged into them."""
    for merge in merges:
        if merge.kind in _SETTLED:
            new = [_array(batch, name) for name in merge.columns]
            old = [pa.nulls(len(column), column.type) for column in new]
            for name, column in zip(merge.columns, KINDS[merge.kind](old, new, ansi), strict=True):
                batch = batch.set_column(batch.column_names.index(name), name, column)
    return batch


def _array(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _sum(old: Columns, new: Columns, ansi: bool) -> Columns:
    """Nothing plus x is x, so that a sum over nothing stays null."""
    left, right = old[0], new[0]
    added = _add(left, right, ansi)
    if left.null_count or right.null_count:
        # Not coalesce: where both are there and overflow, nothing is the answer.
        added = pc.if_else(pc.is_null(right), left, added)
        added = pc.if_else(pc.is_null(left), right, added)
    return [added]


def _add(left: pa.Array, right: pa.Array, ansi: bool) -> pa.Array:
    kind = left.type
    if pa.types.is_decimal(kind):
        return _add_decimals(left, right, ansi)
    if not pa.types.is_integer(kind):
        return pc.add(left, right)
    if not ansi:
        return pc.add(left, right)
    try:
        return pc.add_checked(left, right)
    except pa.ArrowInvalid:
        raise _overflow("sum of bigint") from None


def _add_decimals(left: pa.Array, right: pa.Array, ansi: bool) -> pa.Array:
    kind = left.type
    added = pc.add(left.cast(pa.decimal256(kind.precision, kind.scale)), right)
    largest = Decimal(10**kind.precision - 1).scaleb(-kind.scale, _EXACT)
    too_big = pc.greater(pc.abs(added), pa.scalar(largest, added.type))
    if pc.any(too_big).as_py():
        if ansi:
            raise _overflow(f"sum of {kind}")
        added = pc.if_else(too_big, pa.scalar(None, added.type), added)
    return added.cast(kind)


def _count(old: Columns, new: Columns, ansi: bool) -> Columns:
    return [pc.add(pc.fill_null(old[0], 0), new[0])]


def _sum_and_count(old: Columns, new: Columns, ansi: bool) -> Columns:
    """(sum, count), the sum as `_kept_sum` has it."""
    filled = [pc.greater(pc.fill_null(count, 0), 0) for _, count in (old, new)]
    return [_kept_sum(old[0], new[0], filled, ansi), *_count(old[1:], new[1:], ansi)]


def _sum_and_seen(old: Columns, new: Columns, ansi: bool) -> Columns:
    """(sum, whether it is of something), the sum as `_kept_sum` has it.

    A null in the second place is that of a new key, or of state that was written before there was
    such a column: it says what the sum says.
    """
    filled = [pc.coalesce(seen, pc.is_valid(total)) for total, seen in (old, new)]
    return [_kept_sum(old[0], new[0], filled, ansi), pc.or_(*filled)]


def _kept_sum(left: pa.Array, right: pa.Array, filled: list[pa.Array], ansi: bool) -> pa.Array:
    """A sum of something that is null did overflow, and stays null whatever is added."""
    added = _sum([left], [right], ansi)[0]
    for total, has_some in zip((left, right), filled, strict=True):
        if total.null_count:
            lost = pc.and_(pc.is_null(total), has_some)
            if ansi and pc.any(lost).as_py():
                raise _overflow(f"sum of {total.type}")
            added = pc.if_else(lost, pa.scalar(None, added.type), added)
    return added


def _least(old: Columns, new: Columns, ansi: bool) -> Columns:
    return [_pick(old[0], new[0], smaller=True)]


def _greatest(old: Columns, new: Columns, ansi: bool) -> Columns:
    return [_pick(old[0], new[0], smaller=False)]


def _pick(left: pa.Array, right: pa.Array, *, smaller: bool) -> pa.Array:
    """The smaller or larger of two cells; null loses, and NaN is above every number."""
    if pa.types.is_floating(left.type):
        take_right = _float_below(right, left) if smaller else _float_below(left, right)
    else:
        compare = pc.less if smaller else pc.greater
        take_right = _mask(compare(right, left))
    left_valid, right_valid = valid_mask(left), valid_mask(right)
    if left_valid is not None:
        take_right = take_right | ~left_valid
    if right_valid is not None:
        take_right = take_right & right_valid
    return pc.if_else(pa.array(take_right), right, left)


def _float_below(left: pa.Array, right: pa.Array) -> Mask:
    a = left.to_numpy(zero_copy_only=False)
    b = right.to_numpy(zero_copy_only=False)
    below: Mask = (a < b) | (~np.isnan(a) & np.isnan(b))
    return below


def _mask(column: pa.Array) -> Mask:
    mask: Mask = pc.fill_null(column, False).to_numpy(zero_copy_only=False)
    return mask


def _bits(operation: Callable[[pa.Array, pa.Array], pa.Array]) -> Callable[..., Columns]:
    def merge(old: Columns, new: Columns, ansi: bool) -> Columns:
        return [pc.coalesce(operation(old[0], new[0]), old[0], new[0])]

    return merge


def _first(old: Columns, new: Columns, ansi: bool) -> Columns:
    """(value, whether one was seen): the one in state stays once there is one."""
    seen = _mask(old[1])
    return [_choose(seen, old[0], new[0]), pa.array(seen | _mask(new[1]))]


def _last(old: Columns, new: Columns, ansi: bool) -> Columns:
    """(value, whether one was seen): the batch's, where it has one."""
    seen = _mask(new[1])
    return [_choose(seen, new[0], old[0]), pa.array(seen | _mask(old[1]))]


def _choose(first: Mask, left: pa.Array, right: pa.Array) -> pa.Array:
    """`left` where `first`, otherwise `right`; for every type, nested ones too."""
    if words(left) is not None and not pa.types.is_nested(left.type):
        return pc.if_else(pa.array(first), left, right)
    both = pa.concat_arrays([left, right])
    size = len(left)
    at = np.where(first, np.arange(size), np.arange(size) + size)
    return both.take(pa.array(at))


def _moments(old: Columns, new: Columns, ansi: bool) -> Columns:
    """(count, mean, sum of squared deviations), merged as two samples are."""
    n1, mean1, square1 = (_filled(column) for column in old)
    n2, mean2, square2 = (_filled(column) for column in new)
    total = n1 + n2
    # Infinities are no mistake: what they make of a mean and of deviations is what Spark gives.
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        delta = mean2 - mean1
        share = np.where(total == 0, 0.0, delta / total)
        mean = np.where(n1 == 0, mean2, mean1 + share * n2)
        square = square1 + square2 + np.where(n1 == 0, 0.0, delta * share * n1 * n2)
    return [pa.array(total), pa.array(mean), pa.array(square)]


def _filled(column: pa.Array) -> npt.NDArray[np.float64]:
    filled: npt.NDArray[np.float64] = pc.fill_null(column, 0.0).to_numpy(zero_copy_only=False)
    return filled


def _best_by(*, largest: bool) -> Callable[..., Columns]:
    def merge(old: Columns, new: Columns, ansi: bool) -> Columns:
        """(value, ordering): the value whose ordering wins; on a tie the one in state stays."""
        picked = _pick(old[1], new[1], smaller=not largest)
        from_batch = _changed(old[1], picked)
        return [_choose(~from_batch, old[0], new[0]), picked]

    return merge


def _changed(before: pa.Array, after: pa.Array) -> Mask:
    return ~equal(before, after)


def _lists(old: Columns, new: Columns, ansi: bool) -> Columns:
    """What is in state, then what came with the batch."""
    empty = pa.scalar([], old[0].type)
    left, right = pc.fill_null(old[0], empty), pc.fill_null(new[0], empty)
    sizes_left = pc.list_value_length(left).to_numpy(zero_copy_only=False)
    sizes_right = pc.list_value_length(right).to_numpy(zero_copy_only=False)
    values = pa.concat_arrays([left.flatten(), right.flatten()])
    offsets = np.concatenate([[0], np.cumsum(sizes_left + sizes_right)])
    order = np.empty(len(values), np.int64)
    starts_left = np.concatenate([[0], np.cumsum(sizes_left)])
    starts_right = np.concatenate([[0], np.cumsum(sizes_right)]) + len(left.flatten())
    for sizes, starts, shift in (
        (sizes_left, starts_left, np.zeros(len(sizes_left), np.int64)),
        (sizes_right, starts_right, sizes_left),
    ):
        rows = np.repeat(np.arange(len(sizes)), sizes)
        within = np.arange(len(rows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        order[offsets[rows] + shift[rows] + within] = starts[rows] + within
    cells = values.take(pa.array(order))
    return [pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), cells, type=old[0].type)]


def _sets(old: Columns, new: Columns, ansi: bool) -> Columns:
    """The values of both, each once."""
    joined = _lists(old, new, ansi)[0]
    sizes = pc.list_value_length(joined).to_numpy(zero_copy_only=False)
    rows = np.repeat(np.arange(len(sizes)), sizes)
    codes = joined.flatten().dictionary_encode().indices.to_numpy(zero_copy_only=False)
    pairs = rows * (int(codes.max(initial=0)) + 1) + codes
    kept = np.sort(np.unique(pairs, return_index=True)[1])
    counts = np.bincount(rows[kept], minlength=len(sizes))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    cells = joined.flatten().take(pa.array(kept))
    return [pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), cells, type=joined.type)]


def _distinct(old: Columns, new: Columns, ansi: bool) -> Columns:
    """(estimate, registers) of the values of both."""
    joined, estimates = registers.merged(old[1], new[1])
    return [estimates, joined]


def _overflow(what: str) -> ArithmeticOverflow:
    return ArithmeticOverflow(
        f"[ARITHMETIC_OVERFLOW] The {what} does not fit its type. Nothing of the batch was "
        "committed. Cast the column to a wider type before the aggregation."
    )


KINDS: dict[str, Callable[[Columns, Columns, bool], Columns]] = {
    "sum": _sum,
    "count": _count,
    "sum_count": _sum_and_count,
    "sum_seen": _sum_and_seen,
    "min": _least,
    "max": _greatest,
    "bit_and": _bits(pc.bit_wise_and),
    "bit_or": _bits(pc.bit_wise_or),
    "bit_xor": _bits(pc.bit_wise_xor),
    "first": _first,
    "last": _last,
    "moments": _moments,
    "max_by": _best_by(largest=True),
    "min_by": _best_by(largest=False),
    "list": _lists,
    "set": _sets,
    "distinct": _distinct,
}
_SETTLED = frozenset({"distinct"})
"""Kinds for which what a batch brings is not yet what a store keeps."""
