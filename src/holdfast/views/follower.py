"""Keeps a view up to date with the versions of a root."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from operator import add

import pyarrow as pa

from holdfast import schemes
from holdfast.backends.locations import check_database_address, loaded
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.partition.bounds import Bounds
from holdfast.engine.statestore import EngineReadStateStore
from holdfast.errors import InvalidArgument, VersionNotFound
from holdfast.views.view import BegunVersion, ChangeCounts, View, ViewProgress, ViewSpec

log = logging.getLogger(__name__)
_ANOTHER = "which is another version now: the root was rolled back and has continued."


def open_view(spec: ViewSpec) -> View:
    """Open the view that `spec` describes. Raises InvalidArgument for a scheme without views."""
    check_database_address(spec.location)
    scheme = schemes.scheme_of(spec.location)
    if scheme is None or scheme.view is None:
        forms = [each.view_form for each in schemes.SCHEMES if each.view is not None]
        raise InvalidArgument(f"A view is at {schemes.in_words(forms)}, not at {spec.location!r}.")
    view: View = loaded(scheme, scheme.view)(spec)
    return view


@dataclass(frozen=True)
class ViewStep:
    """What to do to a view for one version.

    With `before`, the bounds of the previous version by partition, it is what the version changed;
    without, the whole state is put. With `only_checks` nothing is put, and rows that are too large
    for the database are rejected.
    """

    version: int
    before: Mapping[int, Bounds] | None
    has_encoded: bool
    only_checks: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the step puts the whole state."""
        return self.before is None

    def changes(self, store: EngineReadStateStore, partition: int) -> Iterator[ViewChange]:
        """What the version changed in a partition, or its whole state there."""
        if self.before is None:
            for table in store.tables():
                yield table, None
            return
        yield from store.changed_tables()
        for table in store.hidden_tables(self.before[partition]):
            yield None, table

    def run(self, view: View, changes: Iterable[ViewChange]) -> ChangeCounts:
        """Apply changes to the view, or check them; return the counts."""
        done = ChangeCounts()
        for upserts, deletes in changes:
            if self.only_checks:
                if upserts is not None:
                    view.check(upserts)
            else:
                done += view.apply(self.version, upserts, deletes, has_encoded=self.has_encoded)
        return done


ViewChange = tuple[pa.Table | None, pa.Table | None]
"""Rows that exist, and removed rows, of which only the keys have a meaning."""


class Follower:
    """Updates a view of one store from version to version. Requires: calls come one at a time.

    When created with the root's newest version, it creates the view or finds out how far that is.
    Other processes may update the same view: `newest` returns the root's newest version by now.
    Raises what `View.prepare` raises, and InvalidArgument for a view of a version that the root was
    rolled back past.
    """

    def __init__(
        self,
        view: View,
        manifest: Manifest,
        operator: int,
        store: str,
        root: str,
        newest: Callable[[], Manifest | None],
    ) -> None:
        self._view, self._root = view, root
        self._operator, self._store = operator, store
        self._newest = newest
        state_id = manifest.scope.get("id")
        owner = f"root:{root}" if state_id is None else f"{state_id}/{operator}/{store}"
        self._standing = view.prepare(owner, root)
        self._began: int | None = None
        """The first version of which this process wrote rows without having seen it noted."""
        through = self._standing.through
        if through is not None and through > manifest.version:
            # Another process may have committed it after the manifest was read.
            manifest = newest() or manifest
            if through > manifest.version:
                raise self._went_back(
                    through,
                    f"whose newest is {manifest.version} now: it was rolled back or restored.",
                )
        self._check_course(manifest)

    def follow(
        self,
        manifest: Manifest,
        before: Callable[[], Manifest | None],
        run: Callable[[ViewStep], Iterable[ChangeCounts]],
        *,
        is_small: bool = False,
    ) -> None:
        """Update the view to a version; `run` does a step for every partition.

        `before` returns the previous version, if it exists, and is called only when it is needed.
        `is_small` says that certainly no row that the version changed is too large. After a failure
        the same call can be repeated, by anyone.
        """
        while not self._is_shown(manifest):
            bounds = self._bounds_before(manifest, before)
            step = ViewStep(manifest.version, bounds, self._standing.has_encoded)
            if self._view.has_limits and (step.is_whole or not is_small):
                list(run(replace(step, only_checks=True)))
            if not self._has_begun(manifest):
                continue
            done = self._carried_out(step, run)
            after = replace(
                self._standing,
                through=step.version,
                commit_id=manifest.commit_id,
                filled=step.version if step.is_whole else self._standing.filled,
            )
            self._standing = self._view.note(self._standing, after)
            if self._standing == after:
                log.info(
                    "The view %s shows version %d of %s: %d rows written, %d removed",
                    self._view.spec.location,
                    step.version,
                    self._root,
                    done.written,
                    done.removed,
                )
        self._sweep()

    def _is_shown(self, manifest: Manifest) -> bool:
        """Whether the view shows a version, or a later one.

        If the version does not follow what this process knows, it reads the view's note again.
        """
        if not (_shows(self._standing, manifest) or _precedes(self._standing, manifest)):
            self._standing = self._view.standing()
            self._check_course(manifest)
        return _shows(self._standing, manifest)

    def _bounds_before(
        self, manifest: Manifest, before: Callable[[], Manifest | None]
    ) -> dict[int, Bounds] | None:
        """The previous version's bounds by partition; None if the view needs the whole state."""
        if not _precedes(self._standing, manifest):
            return None
        try:
            earlier = before()
        except VersionNotFound:
            earlier = None
        if earlier is None or earlier.lineage != manifest.lineage:
            return None
        then = earlier.operators.get(self._operator, {}).get(self._store)
        now = manifest.operators[self._operator][self._store]
        if then is None or [(p.index, p.modulus) for p in then.partitions] != [
            (p.index, p.modulus) for p in now.partitions
        ]:
            return None
        return {part.index: Bounds(part.evict, part.expire) for part in then.partitions}

    def _has_begun(self, manifest: Manifest) -> bool:
        """Note that rows of a version will come, before the first is written.

        If the root is then rolled back and makes another version of this number, the note tells
        that the view has rows of the first one, which no row of the second would replace. Returns
        False when others have noted something: then the view's note must be read again.
        """
        self._check_begun(manifest)
        begun = self._standing.begun
        if begun is not None and begun.version >= manifest.version:
            return True
        after = replace(self._standing, begun=BegunVersion(manifest.version, manifest.commit_id))
        self._standing = self._view.note(self._standing, after)
        return self._standing == after

    def _carried_out(
        self, step: ViewStep, run: Callable[[ViewStep], Iterable[ChangeCounts]]
    ) -> ChangeCounts:
        if self._began is None:
            self._began = step.version
        done: ChangeCounts = reduce(add, run(step), ChangeCounts())
        if done.odd:
            self._view.add_encoded()
            self._standing = replace(self._standing, has_encoded=True)
            step = replace(step, has_encoded=True)
            done = reduce(add, run(step), ChangeCounts())
        if step.is_whole:
            stale = self._view.remove_older(step.version, has_encoded=step.has_encoded)
            done += ChangeCounts(removed=stale)
            self._began = step.version
        return done

    def _sweep(self) -> None:
        """Remove what this process wrote after another had filled the view with a later version.

        The other process removed stale rows, but could not find those written after that.
        """
        filled = self._standing.filled
        if self._began is not None and filled is not None and self._began < filled:
            self._view.remove_older(filled, has_encoded=self._standing.has_encoded)
        self._began = None

    def _check_course(self, manifest: Manifest) -> None:
        """Raise InvalidArgument if the view's version is another one than the root's.

        Its rows would stay, since rows of the same version number do not replace them.
        """
        standing = self._standing
        if standing.through == manifest.version and standing.commit_id not in (
            None,
            manifest.commit_id,
        ):
            raise self._went_back(standing.through, _ANOTHER)
        self._check_begun(manifest)

    def _check_begun(self, manifest: Manifest) -> None:
        """Raise InvalidArgument if the view has rows of a version that the root gave up.

        They were written before a crash, and the view never showed the whole version.
        """
        begun = self._standing.begun
        if begun is None or begun.version < manifest.version:
            return
        if begun.version > manifest.version:
            # Another process may have committed it, and be updating the view.
            manifest = self._newest() or manifest
        if begun.version > manifest.version:
            raise self._went_back(
                begun.version,
                f"whose newest is {manifest.version} now: it was rolled back or restored.",
                "has rows of",
            )
        if begun.version == manifest.version and begun.commit_id != manifest.commit_id:
            raise self._went_back(begun.version, _ANOTHER, "has rows of")

    def _went_back(self, version: int, how: str, does: str = "shows") -> InvalidArgument:
        return InvalidArgument(
            f"The view {self._view.spec.location} {does} version {version} of "
            f"{self._root}, {how} Nothing was changed. Drop the table, which is then created and "
            "filled again, or name another one.",
            condition="STATE_STORE_NOT_A_VIEW",
        )


def _shows(standing: ViewProgress, manifest: Manifest) -> bool:
    if standing.through == manifest.version:
        return standing.commit_id == manifest.commit_id
    return standing.through is not None and standing.through > manifest.version


def _precedes(standing: ViewProgress, manifest: Manifest) -> bool:
    """Whether the changes of a version are all the view lacks of it."""
    commit_id, begun = standing.commit_id, standing.begun
    if commit_id is None or commit_id != manifest.parent_commit_id:
        return False
    if begun is not None and begun.version == standing.through and begun.commit_id != commit_id:
        return False  # an earlier release put its rows beside those of a version that was given up
    return standing.through == manifest.version - 1
