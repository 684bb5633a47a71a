"""Record batches as DataFrames, and DataFrames as tables."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.errors import InvalidArgument
from holdfast.streams.processors.pandas import FrameLimits, PandasFrames, key_cells
from holdfast.types import parse_schema

_UTC = dt.UTC
_BERLIN = "Europe/Berlin"


def _style(output: str = "a long", columns: Any = (("c0", "v"),), **more: Any) -> PandasFrames:
    return PandasFrames(tuple(columns), parse_schema(output), _BERLIN, **more)


def _frames(column: pa.Array, *cuts: tuple[int, int], **more: Any) -> list[pd.DataFrame]:
    style = _style(**more)
    rows = style.rows(pa.record_batch([column], names=["c0"]))
    return list(style.group(iter([rows[start:stop] for start, stop in cuts])))


def test_a_cut_is_a_frame_of_its_own() -> None:
    first, second = _frames(pa.array([1, 2, 3, 4]), (0, 2), (2, 4))
    assert list(second.index) == [0, 1]
    with pd.option_context("mode.chained_assignment", "raise"):
        first["w"] = first["v"] * 2
        first.loc[0, "v"] = 50
        second.loc[0, "v"] = 60
    assert first.to_dict("list") == {"v": [50, 2], "w": [2, 4]}
    assert second.to_dict("list") == {"v": [60, 4]}


@pytest.mark.parametrize(
    ("limits", "sizes"),
    [
        (FrameLimits(), [5, 3]),
        (FrameLimits(rows=2), [2, 2, 1, 2, 1]),
        (FrameLimits(rows=-1), [5, 3]),
        (FrameLimits(rows=0, bytes=1), [1] * 8),
        (FrameLimits(bytes=3 * 8), [3, 2, 3]),
    ],
)
def test_large_cuts_come_as_several_frames(limits: FrameLimits, sizes: list[int]) -> None:
    cells = [1, 2, None, 4, 5, 6, 7, 8]
    frames = _frames(pa.array(range(8)), (0, 5), (5, 8), limits=limits)
    assert [len(frame) for frame in frames] == sizes
    assert [list(frame.index) for frame in frames] == [list(range(size)) for size in sizes]
    assert [cell for frame in frames for cell in frame.v] == list(range(8))
    loose = _frames(pa.array(cells), (0, 5), (5, 8), limits=FrameLimits(rows=2))
    assert [frame.v.dtype for frame in loose] == ["int64", "float64", "int64", "int64", "int64"]


@pytest.mark.parametrize(
    ("cells", "kind", "with_null", "without"),
    [
        ([2**60 + 1, None], pa.int64(), "float64", "int64"),
        ([1, None], pa.int16(), "float64", "int64"),
        ([True, None], pa.bool_(), "object", "bool"),
        ([1.5, None], pa.float32(), "float64", "float64"),
        (["a", None], pa.string(), "object", "object"),
    ],
)
def test_a_null_of_one_key_does_not_change_the_cells_of_another(
    cells: list[Any], kind: pa.DataType, with_null: str, without: str
) -> None:
    clean, mixed = _frames(pa.array([cells[0], *cells], kind), (0, 1), (1, 3))
    assert clean.v.dtype == without
    assert clean.v[0] == cells[0]
    assert mixed.v.dtype == with_null


def test_numbers_keep_their_width_where_they_should() -> None:
    (frame,) = _frames(pa.array([1, 2], pa.int16()), (0, 2), is_wide=False)
    assert frame.v.dtype == "int16"


def test_timestamps_are_times_of_the_session_without_a_zone() -> None:
    moment = dt.datetime(2024, 7, 1, 12, tzinfo=_UTC)
    kind = pa.timestamp("us", tz="UTC")
    (frame,) = _frames(pa.array([moment, None], kind), (0, 2))
    assert frame.v.dtype == "datetime64[ns]"
    assert frame.v[0] == pd.Timestamp(2024, 7, 1, 14)
    nested = pa.struct([("t", kind), ("ts", pa.list_(kind)), ("m", pa.map_(pa.string(), kind))])
    cell = {"t": moment, "ts": [moment, None], "m": [("k", moment)]}
    (frame,) = _frames(pa.array([cell, None], nested), (0, 2))
    local = pd.Timestamp(2024, 7, 1, 14)
    assert frame.v[0]["t"] == local
    assert list(frame.v[0]["ts"]) == [local, None]
    assert frame.v[0]["m"] == {"k": local}
    assert frame.v[1] is None


def test_a_time_pandas_cannot_keep_is_refused_without_telling_it() -> None:
    column = pa.array([dt.datetime(3024, 7, 1)], pa.timestamp("us"))
    with pytest.raises(InvalidArgument, match="'v' holds what pandas cannot keep") as caught:
        _frames(column, (0, 1))
    assert "3024" not in str(caught.value)


def test_tables_take_columns_by_name_or_by_place_and_frames_as_they_were_when_given() -> None:
    style = _style("a long, b string")

    def results() -> Any:
        frame = pd.DataFrame({"b": ["x"], "a": [1], "more": [0]})
        yield frame
        frame.loc[0, "a"] = 2
        yield frame
        yield pd.DataFrame()
        yield pd.DataFrame([[3.0, None]])
        yield pd.DataFrame({"a": [np.nan], "b": pd.Categorical(["y"])})

    (table,) = style.tables(results())
    assert table.schema.names == ["a", "b"]
    assert table.to_pydict() == {"a": [1, 2, 3, None], "b": ["x", "x", None, "y"]}


def test_output_of_many_types_comes_back() -> None:
    output = (
        "t timestamp, n timestamp_ntz, d date, c decimal(5,2), l array<long>, "
        "m map<string, long>, s struct<a: long>, z binary, i int"
    )
    moment = dt.datetime(2024, 7, 1, 14)
    frame = pd.DataFrame(
        {
            "t": [moment], "n": [moment], "d": [dt.date(2024, 7, 1)], "c": [Decimal("1.50")],
            "l": [np.array([1, 2])], "m": [{"k": 1}], "s": [{"a": 5}], "z": [b"z"],
            "i": pd.array([7], "Int32"),
        }
    )  # fmt: skip
    (table,) = _style(output).tables(iter([frame]))
    assert table.to_pylist() == [
        {
            "t": dt.datetime(2024, 7, 1, 12, tzinfo=_UTC), "n": moment, "d": dt.date(2024, 7, 1),
            "c": Decimal("1.50"), "l": [1, 2], "m": [("k", 1)], "s": {"a": 5}, "z": b"z", "i": 7,
        }
    ]  # fmt: skip
    aware = frame[["t"]].assign(t=frame.t.dt.tz_localize("UTC"))
    (table,) = _style("t timestamp").tables(iter([aware]))
    assert table.to_pylist() == [{"t": dt.datetime(2024, 7, 1, 14, tzinfo=_UTC)}]


@pytest.mark.parametrize(
    ("given", "message", "is_strict"),
    [
        ({"a": [1]}, "returned dict, not a pandas.DataFrame", False),
        (pd.DataFrame({"b": [1]}), "without the output's column 'a'", False),
        (pd.DataFrame({"a": ["secret"]}), "'a' .* is object in pandas .* to int64", False),
        (pd.DataFrame({"a": [1.5]}), "'a' .* is float64 in pandas .* to int64", False),
        (pd.DataFrame({"a": [1], "b": [2]}), "of 2 columns, but the output has 1: a", True),
    ],
)
def test_what_does_not_fit_is_refused(given: Any, message: str, is_strict: bool) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        list(_style(is_strict=is_strict).tables(iter([given])))
    assert "secret" not in str(caught.value)


def test_key_cells_are_of_numpys_types() -> None:
    whole = key_cells(pa.chunked_array([pa.array([1, 2], pa.int32())]), "k", _BERLIN)
    assert [type(cell) for cell in whole] == [np.int32, np.int32]
    mixed = key_cells(pa.chunked_array([pa.array([1, None])]), "k", _BERLIN)
    assert mixed[0] == 1
    assert np.isnan(mixed[1])
    assert type(mixed[1]) is np.float64
    assert key_cells(pa.chunked_array([pa.array(["a", None])]), "k", _BERLIN) == ["a", None]
    moment = pa.array([dt.datetime(2024, 7, 1, 12, tzinfo=_UTC)], pa.timestamp("us", tz="UTC"))
    assert key_cells(pa.chunked_array([moment]), "k", _BERLIN) == [pd.Timestamp(2024, 7, 1, 14)]


def test_whole_numbers_are_no_decimals() -> None:
    style = _style("a decimal(10,2)")
    (table,) = style.tables(iter([pd.DataFrame({"a": [Decimal(5)]})]))
    assert table.column("a").to_pylist() == [Decimal("5.00")]
    with pytest.raises(InvalidArgument, match="'a' that the processor returned is int64"):
        list(style.tables(iter([pd.DataFrame({"a": [5]})])))


@pytest.mark.parametrize("dtype", ["int64", "int32", "Int64"])
def test_integers_become_decimals_where_the_setting_says_so(dtype: str) -> None:
    returned = pd.DataFrame({"d": pd.Series([7, 120], dtype=dtype)})
    output = parse_schema("d decimal(10,2)")
    style = PandasFrames((), output, "UTC", limits=FrameLimits(coerces_integers=True))
    (table,) = style.tables(iter([returned]))
    assert table.column("d").to_pylist() == [Decimal(7), Decimal(120)]
    with pytest.raises(InvalidArgument, match="Failed to convert the values: the column 'd'"):
        list(PandasFrames((), output, "UTC").tables(iter([returned])))
    narrow = PandasFrames((), parse_schema("d decimal(4,2)"), "UTC", limits=style.limits)
    with pytest.raises(InvalidArgument, match="'d'"):
        list(narrow.tables(iter([returned])))


def test_nulls_among_integers_stay_null_as_decimals() -> None:
    returned = pd.DataFrame({"d": pd.array([7, None], dtype="Int64")})
    output = parse_schema("d decimal(10,2)")
    style = PandasFrames((), output, "UTC", limits=FrameLimits(coerces_integers=True))
    (table,) = style.tables(iter([returned]))
    assert table.column("d").to_pylist() == [Decimal(7), None]
