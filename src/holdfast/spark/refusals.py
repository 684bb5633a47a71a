"""What a stateful stream cannot do as a DataFrame can, and what to do instead."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import InvalidArgument

_JOIN = (
    "Holdfast does not join two streams yet. Have a query of Spark's own write the joined rows to "
    "files or a Kafka topic, and wrap a stream that reads those."
)
_LIMIT = (
    "a limit of all rows of a stream is not supported yet. Leave it out, and limit the rows of "
    "each batch inside foreachBatch"
)
_SEVERAL_SETS = (
    "grouping by several sets of columns is not supported yet. Call groupBy for each set, and "
    "unite the results with unionByName(…, allowMissingColumns=True)"
)
_IN_BATCH = "call it on the batch inside foreachBatch"
_BEFORE = f"call it on the DataFrame before stateful(), or {_IN_BATCH.removeprefix('call it ')}"
WITHOUT_STATE = frozenset({
    "coalesce", "colRegex", "createGlobalTempView", "createOrReplaceGlobalTempView",
    "createOrReplaceTempView", "createTempView", "crossJoin", "dropna", "dtypes", "fillna", "hint",
    "mapInArrow", "mapInPandas", "melt", "na", "observe", "registerTempTable", "repartition",
    "replace", "sample", "sampleBy", "sparkSession", "to", "toDF", "unpivot", "withColumnsRenamed",
    "withMetadata",
})  # fmt: skip
"""Methods of DataFrame that a stream takes as well, where they need no state."""
_INSTEAD = {
    "cube": _SEVERAL_SETS,
    "groupingSets": _SEVERAL_SETS,
    "limit": _LIMIT,
    "rollup": _SEVERAL_SETS,
}


class UnsupportedMethod(InvalidArgument, AttributeError):
    """An unsupported Spark method; also an AttributeError, so that `hasattr` returns False."""


def method_of_a_frame(name: str) -> UnsupportedMethod:
    """The refusal of a method of DataFrame that the wrapper lacks."""
    instead = _INSTEAD.get(name, _BEFORE if name in WITHOUT_STATE else _IN_BATCH)
    return UnsupportedMethod(f"DataFrame.{name} is not part of a stateful stream: {instead}.")


def method_of_groups(name: str) -> UnsupportedMethod:
    """The refusal of a method of GroupedData that the wrapper's groups lack."""
    return UnsupportedMethod(
        f"GroupedData.{name} is not part of a stateful stream: group the batch inside "
        "foreachBatch and call it there."
    )


def join_of_streams() -> InvalidArgument:
    """The refusal of a join with another stream."""
    return InvalidArgument(f"A stream is joined with a static DataFrame only. {_JOIN}")


def native_operators(found: Sequence[str]) -> InvalidArgument:
    """The refusal to wrap a DataFrame that has these stateful operators of Spark's own."""
    what = f"The DataFrame already has a stateful operator of Spark ({found[0]})"
    if "Join" in found:
        return InvalidArgument(f"{what}. {_JOIN}")
    if "GlobalLimit" in found or "LocalLimit" in found:
        return InvalidArgument(f"{what}: {_LIMIT}.")
    return InvalidArgument(
        f"{what}. Call stateful() on the DataFrame before it, and the operator on the result."
    )
