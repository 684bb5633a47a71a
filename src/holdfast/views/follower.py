"""Keeping a view in step with the versions of a root."""

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
from holdfast.engine.partition.stack import Bounds
from holdfast.engine.statestore import EngineReadStateStore
from holdfast.errors import InvalidArgument, VersionNotFound
from holdfast.views.view import BegunVersion, ChangeCounts, View, ViewProgress, ViewSpec

log = logging.getLogger(__name__)
_ANOTHER = "where that is another one now: it went back, and went on."


def open_view(spec: ViewSpec) -> View:
    """The view at a place. Raises InvalidArgument for a scheme that has no views."""
    check_database_address(spec.location)
    scheme = schemes.scheme_of(spec.location)
    if scheme is None or scheme.view is None:
        forms = [each.view_form for each in schemes.SCHEMES if each.view is not None]
        raise InvalidArgument(f"A view is at {schemes.in_words(forms)}, not at {spec.location!r}.")
    view: View = loaded(scheme, scheme.view)(spec)
    return view


@dataclass(frozen=True)
class ViewStep:
    """What is to be done to a view for one version.

    With `before`, by partition the bounds of the version before, it is what the version changed;
    without, the whole state is put. With `only_checks` nothing is put: what the database has no
    room for is refused.
    """

    version: int
    before: Mapping[int, Bounds] | None
    has_encoded: bool
    only_checks: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the whole state is put."""
        return self.before is None

    def changes(self, store: EngineReadStateStore, partition: int) -> Iterator[ViewChange]:
        """What the version changed in a partition, or all it has there."""
        if self.before is None:
            for table in store.tables():
                yield table, None
            return
        yield from store.changed_tables()
        for table in store.hidden_tables(self.before[partition]):
            yield None, table

    def run(self, view: View, changes: Iterable[ViewChange]) -> ChangeCounts:
        """Do it for some changes."""
        done = ChangeCounts()
        for upserts, deletes in changes:
            if self.only_checks:
                if upserts is not None:
                    view.check(upserts)
            else:
                done += view.apply(self.version, upserts, deletes, has_encoded=self.has_encoded)
        return done


ViewChange = tuple[pa.Table | None, pa.Table | None]
"""Rows that are there, and rows that are not any more, of which only the keys count."""


class Follower:
    """Brings a view of one store from version to version. Calls come one at a time.

    Made with the root's newest version it makes the view, or sees how far that is. Other processes
    may bring the same view to versions, too: `newest` gives the root's newest one by now.
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
        """The first version of which this process wrote rows, and was not seen to be noted."""
        through = self._standing.through
        if through is not None and through > manifest.version:
            # Another process may have committed it after the manifest was read.
            manifest = newest() or manifest
            if through > manifest.version:
                raise self._went_back(through, f"whose newest is {manifest.version}: it went back.")
        self._check_course(manifest)

    def follow(
        self,
        manifest: Manifest,
        before: Callable[[], Manifest | None],
        run: Callable[[ViewStep], Iterable[ChangeCounts]],
        *,
        is_small: bool = False,
    ) -> None:
        """Bring the view to a version; `run` does a step for every partition.

        `before` gives the version before it, if it is there, and is called only when that is
        needed. `is_small` is whether surely no row is too large that the version changed. What
        fails can be done again, by anyone.
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

        Where what this process knows does not say what the version lacks, it looks again.
        """
        if not (_shows(self._standing, manifest) or _precedes(self._standing, manifest)):
            self._standing = self._view.standing()
            self._check_course(manifest)
        return _shows(self._standing, manifest)

    def _bounds_before(
        self, manifest: Manifest, before: Callable[[], Manifest | None]
    ) -> dict[int, Bounds] | None:
        """By partition the bounds of the version before, if its changes are all the view lacks."""
        if not _precedes(self._standing, manifest):
            return None
        try:
            earlier = before()
        except VersionNotFound:
            earlier = None
        if earlier is None:
            return None
        then = earlier.operators.get(self._operator, {}).get(self._store)
        now = manifest.operators[self._operator][self._store]
        if then is None or [(p.index, p.modulus) for p in then.partitions] != [
            (p.index, p.modulus) for p in now.partitions
        ]:
            return None
        return {part.index: Bounds(part.evict, part.expire) for part in then.partitions}

    def _has_begun(self, manifest: Manifest) -> bool:
        """Note that rows of a version come, before the first does.

        Where the version is given up after that, and made anew, its rows are known to be in the
        way. False when others have noted something: then the view has to be looked at again.
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

        That one has removed what was stale, and could not find what was not there yet.
        """
        filled = self._standing.filled
        if self._began is not None and filled is not None and self._began < filled:
            self._view.remove_older(filled, has_encoded=self._standing.has_encoded)
        self._began = None

    def _check_course(self, manifest: Manifest) -> None:
        """Refuse a view of a version that is another one in the root.

        Rows of that version would stay: none of the same version takes their place.
        """
        standing = self._standing
        if standing.through == manifest.version and standing.commit_id not in (
            None,
            manifest.commit_id,
        ):
            raise self._went_back(standing.through, _ANOTHER)
        self._check_begun(manifest)

    def _check_begun(self, manifest: Manifest) -> None:
        """Refuse a view with rows of a version that the root gave up, and that is not passed yet.

        They came before a crash, and the version was never noted to be shown.
        """
        begun = self._standing.begun
        if begun is None or begun.version < manifest.version:
            return
        if begun.version > manifest.version:
            # Another process may have committed it, and be at work.
            manifest = self._newest() or manifest
        if begun.version > manifest.version:
            raise self._went_back(
                begun.version, f"whose newest is {manifest.version}: it went back.", "has rows of"
            )
        if begun.version == manifest.version and begun.commit_id != manifest.commit_id:
            raise self._went_back(begun.version, _ANOTHER, "has rows of")

    def _went_back(self, version: int, how: str, does: str = "shows") -> InvalidArgument:
        return InvalidArgument(
            f"The view {self._view.spec.location} {does} version {version} of "
            f"{self._root}, {how} Nothing was touched. Drop the table; then it is made and filled "
            "anew. Or name another one.",
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
