"""Several frames as one: their rows below each other, each tagged with the frame it is from.

Spark runs one plan, and a task reads one stream of rows. Wherever several frames have to go through
one of them, they do so in this form: the sources of a query, the inputs of an operator, and the
rows that the state of a DataFrame starts with.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from holdfast.spark.operators.columns import quote_column


def tagged_union(frames: Sequence[DataFrame], tag: str, common: Collection[str] = ()) -> DataFrame:
    """The rows of all frames, with the number of its frame in each row's column `tag`.

    The columns `common`, which all frames have with the same types, are one column each. Any other
    column is null in the rows of the other frames. Requires: apart from `common`, no two frames
    have a column of the same name, as Spark compares names, and none has one named `tag`.
    """
    return reduce(
        DataFrame.union,
        [_with_others(frames, number, tag, common) for number in range(len(frames))],
    )


def _with_others(
    frames: Sequence[DataFrame], number: int, tag: str, common: Collection[str]
) -> DataFrame:
    columns: list[Column] = [F.lit(number).alias(tag)]
    columns += [F.col(quote_column(name)) for name in common]
    for other, frame in enumerate(frames):
        for field in frame.schema:
            if field.name in common:
                continue
            own = F.col(quote_column(field.name))
            nothing = F.lit(None).cast(field.dataType).alias(field.name)
            columns.append(own if other == number else nothing)
    return frames[number].select(*columns)
