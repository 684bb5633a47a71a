"""The task that rewrites a store whose value columns have changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.backends.locations import open_storage
from holdfast.engine.partition.rows import Rows
from holdfast.engine.storage import Runtime
from holdfast.engine.versions.commit import PreparedPartition
from holdfast.engine.versions.log import VersionLog
from holdfast.engine.versions.rewrite import rewrite
from holdfast.streams.tasks.task import StoreSpec


@dataclass(frozen=True)
class FormerColumns:
    """Columns that state of earlier versions of Holdfast has in place of others.

    `convert` makes the cells of `columns` of those of `names`, all in order.
    """

    names: tuple[str, ...]
    columns: tuple[str, ...]
    convert: Callable[[list[pa.Array]], list[pa.Array]]

    def are_in(self, stored: Collection[str]) -> bool:
        """Whether a store with these columns still has the former ones."""
        return set(self.names) <= set(stored) and not set(self.columns) <= set(stored)


@dataclass(frozen=True)
class RewriteTask:
    """Rewrites a store's rows with the value columns of `store`, for the next version.

    A column keeps the values it has under its name, unless it is made of those of `former`. A new
    column is filled from `empty`, a table of one row, or with null if that is None.
    """

    store: StoreSpec
    version: int
    empty: pa.Table | None
    former: Sequence[FormerColumns] = ()

    def run(self, partition: int) -> PreparedPartition:
        """Rewrite one partition."""
        spec, runtime = self.store, Runtime.system()
        storage = open_storage(spec.root, spec.options, spec.conf)
        manifest = VersionLog(storage, runtime).load(self.version)
        stored = manifest.operators[spec.operator].get(spec.name)
        names = () if stored is None else stored.value_schema.names
        return rewrite(
            manifest,
            spec.operator,
            spec.name,
            partition,
            spec.shape,
            lambda rows: self._values(rows, names),
            storage,
            runtime,
            spec.conf,
        )

    def _values(self, rows: Rows, names: tuple[str, ...]) -> list[pa.Array]:
        made: dict[str, pa.Array] = {}
        for former in self.former:
            if former.are_in(names):
                cells = former.convert([rows.value(names.index(name)) for name in former.names])
                made |= zip(former.columns, cells, strict=True)
        columns = []
        for field in self.store.value_schema.arrow:
            if field.name in made:
                columns.append(made[field.name])
            elif field.name in names:
                kept = rows.value(names.index(field.name))
                columns.append(kept if kept.type == field.type else kept.cast(field.type))
            elif self.empty is None:
                columns.append(pa.nulls(len(rows), field.type))
            else:
                start = self.empty.column(field.name).cast(field.type)
                columns.append(pa.repeat(start[0], len(rows)))
        return columns
