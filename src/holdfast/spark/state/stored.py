"""Checks that stored state matches the query, and rewrites the stores that have to change."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import SparkSession

from holdfast.backends.locations import open_storage
from holdfast.conf import BESIDE_CHECKPOINT, StateStoreConf
from holdfast.engine.files.manifest import Manifest, StoreEntry
from holdfast.engine.hashing.samples import check_samples
from holdfast.engine.partition.shape import StoreShape, check_same_store
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.engine.versions.first import first_version, new_store_entries
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.numbering import Numbering
from holdfast.engine.versions.rewrite import prepare_unchanged
from holdfast.errors import InvalidArgument
from holdfast.ids import DEFAULT_STORE_NAME
from holdfast.spark.interop import seam
from holdfast.spark.pipeline.stages import StageFrames, StageRun
from holdfast.spark.state.definition import (
    Definition,
    check_same_columns,
    check_same_query,
    new_scope,
)
from holdfast.spark.state.location import state_root, storage_options
from holdfast.streams.tasks.rewrite import RewriteTask
from holdfast.streams.watermark import Watermarks

log = logging.getLogger(__name__)
StoresToRewrite = dict[int, dict[str, StoreShape]]
"""By operator, the stores that are missing from the state, or have other value columns there."""


def newest_state(
    session: SparkSession, checkpoint: str, settings: Mapping[str, str]
) -> Manifest | None:
    """The newest version of a query's state; None if there is none yet. Nothing is written."""
    conf = StateStoreConf.from_spark(settings)
    wanted = None if conf.state_location == BESIDE_CHECKPOINT else conf.state_location
    root = state_root(session, checkpoint, wanted)
    storage = open_storage(root, storage_options(session, root, settings), conf)
    return VersionLog(storage, Runtime.system()).newest_intact()


def partitions_of(session: SparkSession, found: Manifest | None, root: str) -> int:
    """How many partitions keyed operators have: as in the state, or for new state as Spark says.

    If spark.sql.shuffle.partitions is not set, new state gets two for each core. Spark's default
    of 200 is meant for shuffles of far larger batches.
    """
    wanted = session.conf.get("spark.sql.shuffle.partitions", None)
    if found is None:
        return 2 * session.sparkContext.defaultParallelism if wanted is None else int(wanted)
    kept = max(len(any_store(found, number).partitions) for number in found.operators)
    if wanted is not None and kept not in (1, int(wanted)):
        log.warning(
            "The state in %s has %d partitions; spark.sql.shuffle.partitions=%s does not "
            "change that",
            root,
            kept,
            wanted,
        )
    return kept


def any_store(manifest: Manifest, number: int) -> StoreEntry:
    """One of an operator's stores; all of them have the same partitions."""
    return next(iter(manifest.operators[number].values()))


def first_manifest(
    session: SparkSession, stages: Sequence[StageFrames], partitions: int, runtime: Runtime
) -> Manifest:
    """Version 0 of a query, in which every store is empty."""
    operators = {}
    for number, frames in enumerate(stages):
        count = 1 if frames.stage.operator.is_global else partitions
        operators[number] = new_store_entries(frames.stores, count)
    policy = str(session.conf.get("spark.sql.streaming.multipleWatermarkPolicy", "min")).lower()
    return first_version(
        operators,
        runtime,
        scope=new_scope(
            runtime.new_id(), definitions(stages), describe_operator_columns(session, stages)
        ),
        watermark=Watermarks(policy=policy).json(),
        delivered_through=0,
        numbering=Numbering.new().json(),
    )


def definitions(stages: Iterable[StageFrames]) -> list[Definition]:
    """The definitions of a query's operators."""
    return [frames.stage.operator.definition() for frames in stages]


def describe_operator_columns(
    session: SparkSession, stages: Iterable[StageFrames]
) -> dict[str, Any]:
    """The expressions behind the operators' columns, as this version of Spark words them."""
    found = [(frames.stage, frames.stage.operator) for frames in stages]
    texts = [operator.columns(stage.before, stage.after) for stage, operator in found]
    return {"spark": session.version, "wording": seam.lineage.WORDING, "operators": texts}


def with_columns(
    session: SparkSession,
    manifest: Manifest,
    stages: Sequence[StageFrames],
    root: str,
    *,
    may_change: bool,
) -> Manifest:
    """The stored version with the expressions behind the query's columns, for the next to keep.

    Rejects state whose columns were computed by other expressions, unless they `may_change`.
    Requires: `check_stored` was called.
    """
    before, now = manifest.scope.get("columns", {}), describe_operator_columns(session, stages)
    check_same_columns(before, now, root, may_change=may_change)
    return replace(manifest, scope={**manifest.scope, "columns": now})


def check_stored(
    manifest: Manifest, stages: Sequence[StageFrames], root: str, *, may_add: bool
) -> None:
    """Reject state of another query, and say how it differs.

    With `may_add` the query may have aggregates that the state lacks.
    """
    stored = len(manifest.operators)
    if stored != len(stages):
        raise InvalidArgument(
            f"The query has {len(stages)} stateful operators, but the state in {root} "
            f"was made by a query with {stored}. Use another checkpoint for the changed query.",
            condition="STATE_STORE_SCHEMA_MISMATCH",
        )
    before = manifest.scope.get("operators", ())
    check_same_query(before, definitions(stages), root, may_add=may_add)
    for number, frames in enumerate(stages):
        which = f" of operator {number}" if stored > 1 else ""
        for name, shape in frames.stores.items():
            entry = manifest.operators[number].get(name)
            if entry is None:
                continue
            stored_values, values = entry.value_schema, shape.value_schema
            if frames.stage.operator.takes_over(stored_values, values, may_add=may_add):
                entry = replace(entry, value_schema=values)
            what = "" if name == DEFAULT_STORE_NAME else f" {name!r}"
            check_same_watermark(entry.key_index, shape.key_index, which, root)
            check_same_store(entry, shape, f"the query's state{what}{which} in {root}")
            check_samples(shape, manifest.hash_name, entry.hash_samples)


def check_same_watermark(stored: int | None, now: int | None, which: str, root: str) -> None:
    """Reject a query that evicts groups by a watermark if the state did not, or vice versa."""
    if (stored is None) != (now is None):
        before, after = ("none", "one") if stored is None else ("one", "none")
        raise InvalidArgument(
            f"The state{which} in {root} was made by another query: the watermark of its groups "
            f"was {before}, is {after}. Undo the change of withWatermark, or start with a new "
            "checkpoint.",
            condition="STATE_STORE_SCHEMA_MISMATCH",
        )


def dropped_stores(manifest: Manifest, stages: Sequence[StageRun]) -> set[tuple[int, str]]:
    """Stores that the query removes from the state, by operator and name."""
    return {
        (number, name)
        for number, run in enumerate(stages)
        for name in run.operator.dropped
        if name in manifest.operators[number] and name not in run.stores
    }


def stores_to_rewrite(manifest: Manifest, stages: Sequence[StageRun]) -> StoresToRewrite:
    """The stores to rewrite before the query continues. Requires: `check_stored` was called."""
    found: StoresToRewrite = {}
    for number, run in enumerate(stages):
        for name, shape in run.frames.stores.items():
            entry = manifest.operators[number].get(name)
            if entry is None or entry.value_schema != shape.value_schema:
                found.setdefault(number, {})[name] = shape
    return found


def rewrite_stores(
    session: SparkSession, base: Manifest, stages: Sequence[StageRun], todo: StoresToRewrite
) -> list[PreparedPartition]:
    """Rewrite the stores of `todo`, and return what the version after `base` is committed with.

    `base` is the newest version, but with these stores empty.
    """
    prepared = []
    for number, run in enumerate(stages):
        if run.store.is_foreign and number in todo:
            raise InvalidArgument(
                f"{run.store.conf.provider_class} keeps the state, and its columns cannot be "
                "changed. Start with a new checkpoint."
            )
        for name, entry in base.operators[number].items():
            if name not in todo.get(number, {}):
                prepared += [
                    prepare_unchanged(base, number, name, part) for part in entry.partitions
                ]
                continue
            empty = run.operator.empty_values(run.frames.before)
            task = RewriteTask(run.stores[name], base.version, empty, run.operator.former)
            count = len(entry.partitions)
            numbers = session.sparkContext.parallelize(range(count), count)
            prepared += numbers.map(task.run).collect()
    return prepared
