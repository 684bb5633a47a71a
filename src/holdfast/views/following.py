"""Keeping a view in step with the versions of a root."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import reduce
from importlib import import_module
from operator import add

import pyarrow as pa

from holdfast.backends.locations import scheme_of
from holdfast.engine.manifest import Manifest
from holdfast.engine.statestore import EngineReadStateStore
from holdfast.engine.view import Bounds
from holdfast.errors import InvalidArgument
from holdfast.views.view import Applied, Standing, View, ViewSpec

log = logging.getLogger(__name__)
_KINDS = {
    "cassandra": ("cassandra", "cassandra", "holdfast.views.cassandra", "CassandraView"),
    "dynamodb": ("dynamodb", "boto3", "holdfast.views.dynamodb", "DynamoDbView"),
}
"""By scheme the extra with the client, the client's module, and the view over it."""


def open_view(spec: ViewSpec) -> View:
    """The view at a place. Raises InvalidArgument for a scheme that has no views."""
    scheme = scheme_of(spec.location)
    if scheme not in _KINDS:
        raise InvalidArgument(
            "A view is at cassandra://host:port/keyspace/table or dynamodb://region/table, not at "
            f"{spec.location!r}."
        )
    extra, client, module, name = _KINDS[scheme]
    try:
        import_module(client)
    except ImportError as error:
        raise InvalidArgument(
            f"The view {spec.location} needs the package {client}, which is not installed: "
            f'pip install "holdfast[{extra}]"'
        ) from error
    view: View = getattr(import_module(module), name)(spec)
    return view


def owner_of(manifest: Manifest, operator: int, store: str) -> str | None:
    """What tells one store's state from all others; None for a root that has no id."""
    state_id = manifest.scope.get("id")
    return None if state_id is None else f"{state_id}/{operator}/{store}"


@dataclass(frozen=True)
class Step:
    """What is to be done to a view for one version.

    With `is_whole` the whole state is put, otherwise what the version changed. With `only_checks`
    nothing is put: what the database has no room for is refused.
    """

    version: int
    is_whole: bool
    has_encoded: bool
    only_checks: bool = False

    def run(self, view: View, changes: Iterable[Change]) -> Applied:
        """Do it for some changes."""
        done = Applied()
        for upserts, deletes in changes:
            if self.only_checks:
                if upserts is not None:
                    view.check(upserts)
            else:
                done += view.apply(self.version, upserts, deletes, has_encoded=self.has_encoded)
        return done


Change = tuple[pa.Table | None, pa.Table | None]
"""Rows that are there, and rows that are not any more, of which only the keys count."""


def changes_of(
    store: EngineReadStateStore, before: Bounds | None, *, is_whole: bool
) -> Iterator[Change]:
    """The changes one partition of a version made, or all it has.

    `before` are the bounds of the version before it.
    """
    if is_whole:
        for table in store.tables():
            yield table, None
        return
    yield from store.changed_tables()
    if before is not None:
        for table in store.hidden_tables(before):
            yield None, table


def bounds_before(
    before: Manifest | None, manifest: Manifest, operator: int, name: str
) -> dict[int, Bounds] | None:
    """By partition the bounds that the version before had; None where it had other partitions."""
    if before is None or before.version != manifest.version - 1:
        return None
    then = before.operators.get(operator, {}).get(name)
    now = manifest.operators[operator][name]
    if then is None or [(p.index, p.modulus) for p in then.partitions] != [
        (p.index, p.modulus) for p in now.partitions
    ]:
        return None
    return {part.index: Bounds(part.evict, part.expire) for part in then.partitions}


class Follower:
    """Brings a view to one version after the other. Calls come one at a time."""

    def __init__(self, view: View, owner: str, root: str) -> None:
        self._view = view
        self._owner, self._root = owner, root
        self._standing: Standing | None = None

    @property
    def through(self) -> int | None:
        """The version the view shows, as far as this process knows."""
        return None if self._standing is None else self._standing.through

    def prepare(self, newest: int) -> None:
        """Make the view, or see how far it is. `newest` is the newest version of the root."""
        standing = self._view.prepare(self._owner, self._root)
        if standing.through is not None and standing.through > newest:
            raise InvalidArgument(
                f"The view {self._view.spec.location} shows version {standing.through} of "
                f"{self._root}, whose newest is {newest}: it went back. Nothing was touched. Drop "
                "the table; then it is made and filled anew. Or name another one.",
                condition="STATE_STORE_NOT_A_VIEW",
            )
        self._standing = standing

    def is_next(self, version: int) -> bool:
        """Whether the changes of a version are all the view lacks of it."""
        return self.through is not None and self.through >= version - 1

    def follow(
        self,
        version: int,
        *,
        is_whole: bool,
        run: Callable[[Step], Iterable[Applied]],
        is_small: bool = False,
    ) -> None:
        """Bring the view to a version; `run` does a step for every partition.

        `is_small` is whether surely no row is too large. What fails can be done again, by anyone.
        """
        assert self._standing is not None
        if self._standing.through is not None and self._standing.through >= version:
            return
        step = Step(version, is_whole, self._standing.has_encoded)
        if self._view.has_limits and not is_small:
            list(run(replace(step, only_checks=True)))
        done: Applied = reduce(add, run(step), Applied())
        if done.odd:
            self._view.add_encoded()
            self._standing = replace(self._standing, has_encoded=True)
            step = replace(step, has_encoded=True)
            done = reduce(add, run(step), Applied())
        stale = 0
        if is_whole:
            stale = self._view.remove_older(version, has_encoded=step.has_encoded)
        self._view.note(version)
        self._standing = replace(self._standing, through=version)
        log.info(
            "The view %s shows version %d of %s: %d rows written, %d removed",
            self._view.spec.location, version, self._root, done.written, done.removed + stale,
        )  # fmt: skip
