"""How the queries of the differential suite call their columns."""

from __future__ import annotations

import re
from typing import Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from holdfast.spark.operators.columns import quote_column

NAMINGS = ("plain", "odd", "of the frame")
"""By plain names; by names with spaces, dots, backquotes and capitals, or such as Holdfast gives to
columns of its own; or by columns taken from the DataFrame."""

_ODD = {
    "k": "The Key.k", "b": "_hash", "u": "_rows", "n": "result_0", "i": "key_0", "x": "V_Sum",
    "d": "a`b", "s": "v sum", "day": "window_end", "at": "_found", "flag": "e_count", "raw": "Ä",
    "ts": "Time. of it",
}  # fmt: skip
_ODD_RESULTS = ("v_sum", "result_1", "the key.K", "V_SUM_count", "_rows", "a.b `c`", "key_0_")
_WORD = re.compile(r"\b(" + "|".join(_ODD) + r")\b")


def renamed(frame: Any, naming: str) -> Any:
    """The input under the names the query has for it."""
    if naming != "odd":
        return frame
    return frame.select(*[F.col(plain).alias(odd) for plain, odd in _ODD.items()])


def called(naming: str, plain: str) -> str:
    """What a column is called."""
    return _ODD[plain] if naming == "odd" else plain


def column(frame: Any, naming: str, plain: str) -> Column:
    """A column of a frame."""
    if naming == "of the frame":
        found: Column = frame[plain]
        return found
    return F.col(quote_column(called(naming, plain)))


def expression(naming: str, sql: str) -> Column:
    """An expression over columns that are given by their plain names."""
    if naming != "odd":
        return F.expr(sql)
    return F.expr(_WORD.sub(lambda found: quote_column(_ODD[found[1]]), sql))


def result_name(naming: str, sql: str, number: int) -> str:
    """What a result is called, of which `sql` is the text."""
    return _ODD_RESULTS[number % len(_ODD_RESULTS)] if naming == "odd" else sql
