"""How a repair becomes a version: when it may, and what is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.admin.repair_changes import KeyChange
from holdfast.admin.repair_rules import StoreRules
from holdfast.admin.site import Site
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.partition.shape import StoreShape
from holdfast.engine.statestore import EngineStateStore
from holdfast.engine.versions.committer import Committer
from holdfast.engine.versions.delivered import is_known_delivered
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.numbering import Numbering, lost_numbers
from holdfast.engine.versions.rewrite import StoreName, prepare_unchanged
from holdfast.errors import (
    Conflict,
    Corruption,
    HoldfastError,
    IllegalState,
    InvalidArgument,
    VersionNotFound,
)
from holdfast.ids import StateStoreId
from holdfast.reserved import EXPIRES

_AGGREGATIONS = ("stateStoreSave", "sessionWindowStateStoreSaveExec")


def is_of_query(base: Manifest) -> bool:
    """Whether a version is that of a query, which has a sink."""
    return base.batch is not None or base.scope.get("kind") == "query"


def check_own(site: Site, base: Manifest, place: StoreName) -> None:
    """Refuse a store whose rows are not in the root, where only who keeps them can change them."""
    operator, name = place
    if site.root.kind == "store":
        raise InvalidArgument(
            f"{site.location} is the store of a provider used alone, which a repair cannot write. "
            "Nothing was changed. Change it with the provider."
        )
    parts = base.operators[operator][name].partitions
    if any(part.num_keys and not part.segments for part in parts):
        raise InvalidArgument(
            f"The rows of operator {operator}, store {name!r} in {site.location} are kept by a "
            "provider of its own, which a repair cannot write. Nothing was changed. Change them "
            "in the query."
        )


def check_delivered(site: Site, base: Manifest) -> None:
    """Refuse to commit over a version that the sink of the query may lack."""

    def before() -> Manifest | None:
        try:
            return site.versions.load(base.version - 1)
        except (VersionNotFound, Corruption):
            return None

    if is_known_delivered(site.storage, base, before, site.checkpoint):
        return
    how = (
        "Name Spark's checkpoint of the query as well (--checkpoint, checkpoint=), or run"
        if site.checkpoint is None
        else "Run"
    )
    raise IllegalState(
        f"Version {base.version} of {site.location} is not known to have reached the sink. Nothing "
        f"was changed. {how} the query once more, with trigger(availableNow=True) for instance, "
        "and stop it."
    )


def check_deliverable(site: Site, base: Manifest, rules: StoreRules) -> None:
    """Refuse to have rows delivered that no start of the query would send."""
    why = None
    if not is_of_query(base):
        why = "the root is not that of a query"
    elif len(base.operators) > 1:
        why = "the query has several operators, whose rows go through each other"
    elif rules.title not in _AGGREGATIONS:
        why = "only an aggregation's rows are read from its state"
    elif base.batch is None:
        why = "the query has had no batch yet"
    elif lost_numbers(site.storage, base):
        why = "versions after the newest one were given up, and their batches come again first"
    if why is not None:
        raise InvalidArgument(
            f"The repair cannot be delivered: {why}. Nothing was changed. Repair without --deliver "
            "(deliver=True)."
        )


def commit(
    site: Site,
    base: Manifest,
    place: StoreName,
    changes: Mapping[int, Sequence[KeyChange]],
    operation: Mapping[str, Any],
    *,
    deliver: bool,
) -> Manifest:
    """Commit the version after `base` with some changed keys. Raises Conflict for a lost race."""
    stores = {index: _updated(site, base, place, index, own) for index, own in changes.items()}
    prepared = [
        stores[entry.index].prepared
        if (operator, name) == place and entry.index in stores
        else prepare_unchanged(base, operator, name, entry)
        for operator, name, entry in base.partitions()
    ]
    committer = Committer(site.versions, site.runtime, site.conf_of(base))
    facts = {"operation": operation, "outbox": (), **_delivery(site, base, deliver=deliver)}
    try:
        return committer.commit(base, None, prepared, site.runtime.new_id(), **facts)
    except (Conflict, IllegalState):
        for store in stores.values():
            store.discard()
        raise


def _delivery(site: Site, base: Manifest, *, deliver: bool) -> dict[str, Any]:
    """What the version says of its delivery, and the number it takes, if it is delivered."""
    through = base.version if deliver else base.version + 1
    if not is_of_query(base):
        return {"delivered_through": through}
    numbers, lost = Numbering.of(base), lost_numbers(site.storage, base)
    following = numbers.following(lost) if deliver else numbers.skipping(lost)
    return {"delivered_through": through, "numbering": following.json()}


def _updated(
    site: Site, base: Manifest, place: StoreName, index: int, changes: Sequence[KeyChange]
) -> EngineStateStore:
    """One partition with its changes prepared: files that no version names yet."""
    operator, name = place
    shape = StoreShape.of_entry(base.operators[operator][name])
    log = VersionLog(site.root.storage, site.runtime)
    provider = HDFSBackedStateStoreProvider(
        prepares_only=True, runtime=site.runtime, versions=log, shape=shape
    )
    provider.init(
        StateStoreId(site.location, operator, index, name),
        shape.key_schema,
        shape.value_schema,
        shape.key_index,
        shape.prefix,
        site.conf_of(base),
        site.options,
    )
    store = provider.get_store(base.version, lambda _: base)
    written = [change for change in changes if change.after is not None]
    if written:
        store.put_many(_table(shape, written))
    if gone := [change.key for change in changes if change.after is None]:
        keys = pa.table(shape.keys.to_arrow(gone), schema=shape.key_schema.arrow)
        store.remove_many(keys)
    try:
        store.commit()
    except IllegalState as error:
        if isinstance(error.__cause__, HoldfastError):
            raise error.__cause__ from error
        raise
    return store


def _table(shape: StoreShape, changes: Sequence[KeyChange]) -> pa.Table:
    keys = shape.keys.to_arrow([change.key for change in changes])
    values = shape.values.to_arrow([c.after for c in changes if c.after is not None])
    table = pa.table(
        [*keys, *values],
        schema=pa.schema([*shape.key_schema.arrow, *shape.value_schema.arrow]),
    )
    expiries = [change.expires_ms for change in changes]
    if all(expires is None for expires in expiries):
        return table
    return table.append_column(EXPIRES, pa.array(expiries, pa.int64()))
