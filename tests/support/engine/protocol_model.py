"""The commit protocol as a model: two writers, a cleaner and a tagger over one storage.

Every process is split at each of its storage calls. What it decides between two calls is decided
by the engine's own functions, held in `Rules`; what is modelled here is the order of the calls in
`versions.py`, `committer.py`, `provider.py` and `retention.py`. `Edges` turns single orders into
ones that are known to be wrong, so that tests can show that the model notices. Steps that only
make a writer give up earlier are left out: that is a crash to everybody else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from model_checker import Broken

from holdfast.engine.files.filenames import pack_path
from holdfast.engine.files.manifest import (
    Manifest,
    PackSlice,
    PartitionEntry,
    SegmentRef,
    StoreEntry,
    fingerprint,
)
from holdfast.engine.files.segment import SegmentInfo, Zone
from holdfast.engine.versions import commit, retention
from holdfast.engine.versions.commit import PreparedPartition, Swap, Verdict
from holdfast.types import parse_schema

GRACE_MS = 10
KEEP = 2
_KEY, _VALUE = parse_schema("k int"), parse_schema("v int")
_SCHEMAS = fingerprint(_KEY, _VALUE)
_INFO = SegmentInfo(1, 0, 1, 1, "", Zone())
_STORE = "default"


@dataclass(frozen=True)
class Rules:
    """The functions under test. A mutation replaces one of them."""

    judge_create: Callable[..., Verdict] = commit.judge_create
    may_have_aged: Callable[..., bool] = commit.may_have_aged
    still_newest: Callable[..., Verdict] = commit.still_newest
    is_stray: Callable[..., bool] = commit.is_stray
    check_prepared: Callable[..., None] = commit.check_prepared
    next_operators: Callable[..., Any] = commit.next_operators
    fits: Callable[..., bool] = commit.fits
    retired_versions: Callable[..., list[int]] = retention.retired_versions
    dead_files: Callable[..., list[str]] = retention.dead_files


@dataclass(frozen=True)
class Edges:
    """Orders of storage calls that are wrong; each stands for a mistake somebody could make."""

    trusts_what_it_opened: bool = False
    """A version that was merely opened counts as known to be the newest."""
    clock_after_create: bool = False
    """The age of a version counts from when its writer was told, not from before the create."""
    keeps_own_manifest: bool = False
    """After an unclear answer the writer goes on with what it sent, not with what is stored."""
    discards: str = "never"
    """When files of a published attempt are removed: never, on conflict, always."""
    spares_before_listing: bool = False
    """The cleaner asks for finished merges before it lists, and a merge is known once visible."""
    tags_unmarked: bool = False
    """Versions are retired without a mark that a tag being made could see."""
    marks_looked_for_last: bool = False
    """A tag being made looks for its version first and for marks afterwards."""


@dataclass(frozen=True)
class Bounds:
    """How far to look. `start` versions exist at the beginning, `versions` at most at the end."""

    versions: int = 3
    start: int = 0
    packed: tuple[bool, ...] = (True,)
    restarts: int = 0
    crashes: int = 0
    faults: int = 0
    pauses: int = 0
    cleans: int = 0
    tags: int = 0
    commits: tuple[int, ...] = (9, 9)
    merges: tuple[int, ...] = (0, 0)
    spared: bool = True
    """Whether the cleaner runs inside the first writer's process and knows its merges."""


class Files(NamedTuple):
    """The storage: manifests by version, data files, tagged versions, marks of cleaners."""

    manifests: tuple[tuple[int, int], ...]
    data: frozenset[str]
    tags: frozenset[int]
    marks: frozenset[tuple[int, frozenset[int]]]


class Writer(NamedTuple):
    """One writer: where it is, and what it knows."""

    at: str = "down"
    life: int = 0
    seen: int = -1
    base: int = -1
    based_at: int | None = None
    tries: int = 0
    made: int = -1
    made_at: int = 0
    created: bool | None = None
    swaps: tuple[int, ...] = ()
    merging: int = -1
    newest: int = -1
    next_parent: str | None = None


class Cleaner(NamedTuple):
    """The cleaner: where it is, and what it knows."""

    at: str = "idle"
    life: int = 0
    listed: tuple[str, ...] = ()
    spared: frozenset[str] = frozenset()
    now: int = 0
    tagged: frozenset[int] = frozenset()
    versions: tuple[int, ...] = ()
    manifests: tuple[tuple[int, int], ...] = ()
    todo: tuple[Any, ...] = ()
    retired: frozenset[int] = frozenset()


class Tagger(NamedTuple):
    """Somebody naming a version."""

    at: str = "idle"
    version: int = -1
    existed: bool = False


class Left(NamedTuple):
    """How often something may still happen."""

    restarts: int
    crashes: int
    faults: int
    pauses: int
    cleans: int
    tags: int


_NOTHING = Left(0, 0, 0, 0, 0, 0)


class World(NamedTuple):
    """One state. `history` (manifests by version) and `promised` tags are what really happened;
    `told` is the last message to a writer, there only to be checked.
    """

    files: Files
    clock: int
    writers: tuple[Writer, ...]
    commits_left: tuple[int, ...]
    merges_left: tuple[int, ...]
    cleaner: Cleaner
    tagger: Tagger
    left: Left
    history: tuple[int, ...]
    promised: frozenset[int]
    told: tuple[int, str] | None = None


Steps = Iterator[tuple[str, World]]


def _commit_id(name: str, writer: Writer, version: int) -> str:
    return f"{name}{writer.life}-{version}"


def _less(counts: tuple[int, ...], number: int) -> tuple[int, ...]:
    return tuple(count - (place == number) for place, count in enumerate(counts))


@dataclass
class Protocol:
    """Successors and invariants of the worlds within `bounds`."""

    bounds: Bounds
    rules: Rules = field(default_factory=Rules)
    edges: Edges = field(default_factory=Edges)

    def __post_init__(self) -> None:
        self._manifests: list[Manifest] = []
        self._contents: list[tuple[tuple[str, ...], ...]] = []
        self._needs: list[frozenset[str]] = []
        self._by_key: dict[Any, int] = {}
        self._swaps: list[Swap] = []
        self._data: dict[str, tuple[str, ...]] = {}
        self._checked: set[Any] = set()
        self._built: dict[Any, int] = {}
        self._decided: dict[Any, Any] = {}
        entries = tuple(PartitionEntry(i, len(self.bounds.packed)) for i in self._partitions())
        store = StoreEntry(_KEY, _VALUE, None, 0, {}, entries)
        empty = Manifest(0, None, "", "", 0, 0, "spark", {0: {_STORE: store}})
        self.empty = self._register(empty, tuple(() for _ in self._partitions()))

    def initial(self) -> World:
        """The start: an empty root, or one with some versions by a writer that is gone."""
        world = World(
            Files((), frozenset(), frozenset(), frozenset()),
            0,
            (Writer(), Writer()),
            self.bounds.commits,
            self.bounds.merges,
            Cleaner(),
            Tagger(),
            Left(*(getattr(self.bounds, name) for name in Left._fields)),
            (self.empty,),
            frozenset(),
        )
        for _ in range(self.bounds.start):
            world = self._alone(world, "f")
        return world

    # What can happen

    def successors(self, world: World) -> Steps:
        """Every step any process may take, every fault and every pause."""
        for number, name in enumerate("ab"):
            yield from self._writer_steps(world, number, name)
            writer = world.writers[number]
            if world.left.crashes and writer.at not in ("down", "done"):
                spent = world.left._replace(crashes=world.left.crashes - 1)
                after = self._ended(world, number)._replace(left=spent)
                if number == 0 and self.bounds.spared and world.cleaner.at != "idle":
                    after = self._cleaner_ends(after)
                yield f"{name} crashes", after
        yield from self._cleaner_steps(world)
        yield from self._tagger_steps(world)
        if world.left.pauses and self._somebody_waits(world):
            spent = world.left._replace(pauses=world.left.pauses - 1)
            yield "a long pause", world._replace(clock=world.clock + GRACE_MS, left=spent)

    def _somebody_waits(self, world: World) -> bool:
        if len(world.history) > KEEP:
            return True
        return any(writer.at not in ("down", "done") for writer in world.writers)

    # A writer

    def _writer_steps(self, world: World, number: int, name: str) -> Steps:
        writer = world.writers[number]
        step = getattr(self, f"_writer_{writer.at}")
        yield from step(world, number, name, writer)

    def _set(self, world: World, number: int, **changes: Any) -> World:
        writers = list(world.writers)
        writers[number] = writers[number]._replace(**changes)
        return world._replace(writers=tuple(writers), told=None)

    def _ended(self, world: World, number: int) -> World:
        writers = list(world.writers)
        writers[number] = Writer(life=writers[number].life + 1)
        return world._replace(writers=tuple(writers), told=None)

    def _writer_down(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        if writer.life and not world.left.restarts:
            return
        left = world.left
        if writer.life:
            left = left._replace(restarts=left.restarts - 1)
        versions = [version for version, _ in world.files.manifests]
        after = world._replace(left=left)
        if not versions:
            yield f"{name} lists: nothing", self._set(after, number, at="opening", seen=0)
        elif max(versions) < self.bounds.versions or name in "df":
            newest = max(versions)
            yield f"{name} lists: {newest}", self._set(after, number, at="opening", seen=newest)

    def _writer_done(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        yield from ()

    def _writer_opening(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        base = dict(world.files.manifests).get(writer.seen)
        if base is None and writer.seen:
            after = self._ended(world, number)
            yield f"{name} finds {writer.seen} gone", self._set(after, number, swaps=writer.swaps)
            return
        based_at = world.clock if self.edges.trusts_what_it_opened else None
        yield (
            f"{name} opens {writer.seen}",
            self._set(
                world,
                number,
                at="open",
                base=self.empty if base is None else base,
                based_at=based_at,
                seen=-1,
            ),
        )

    def _writer_open(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        version = self._manifests[writer.base].version + 1
        if name in "ab" and (version > self.bounds.versions or not world.commits_left[number]):
            yield f"{name} is done", self._set(world, number, at="done", swaps=())
            return
        yield from self._merge_steps(world, number, name, writer)
        left = _less(world.commits_left, number)
        after = self._set(world._replace(commits_left=left), number, at="prepared", tries=0)
        if not self._plain():
            yield from self._writer_prepared(after, number, name, after.writers[number])
            return
        names = {self._delta(name, writer, version, p).path(f"0/{p}") for p in self._plain()}
        files = world.files._replace(data=world.files.data | names)
        yield f"{name} writes the deltas of {version}", after._replace(files=files)

    def _merge_steps(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        if not world.merges_left[number] or writer.swaps:
            return
        base = self._manifests[writer.base]
        if self._readable_refs(base, 0, world.files.data) is None:
            return
        refs = base.entry(0, _STORE, 0).segments
        spans = {(0, len(refs)), (0, 2), (len(refs) - 2, len(refs))}
        for start, stop in sorted(spans):
            if stop - start >= 2 and start >= 0:
                swap = self._merge(name, writer, base, start, stop, world.files.data)
                left = _less(world.merges_left, number)
                path = self._swaps[swap].output.path("0/0")
                files = world.files._replace(data=world.files.data | {path})
                after = world._replace(files=files, merges_left=left)
                yield (
                    f"{name} merges {start}..{stop} of {base.version}",
                    self._set(after, number, at="merged", merging=swap),
                )

    def _writer_merged(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        yield (
            f"{name} registers its merge",
            self._set(world, number, at="open", swaps=(writer.merging,), merging=-1),
        )

    def _writer_prepared(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        if self.bounds.spared and number == 0 and world.cleaner.at != "idle":
            return
        version = self._manifests[writer.base].version + 1
        files = world.files
        if any(self.bounds.packed):
            path = pack_path(version, self._pack_id(name, writer, version))
            files = files._replace(data=files.data | {path})
        after = self._set(world._replace(files=files), number, at="packed")
        label = f"{name} writes the pack of {version}"
        if not writer.swaps:
            after = next(self._writer_packed(after, number, name, writer))[1]
        yield label, after

    def _writer_packed(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        outputs = {self._swaps[swap].output.path("0/0") for swap in writer.swaps}
        present = frozenset(outputs & world.files.data)
        made = self._build(name, writer, present, world.clock)
        yield (
            f"{name} looks for its merges",
            self._set(world, number, at="creating", made=made, made_at=world.clock),
        )

    def _writer_creating(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        version = self._manifests[writer.made].version
        exists = version in dict(world.files.manifests)
        landed = world if exists else self._land(world, writer.made)
        if exists:
            yield (
                f"{name} finds {version} taken",
                self._set(landed, number, at="reading", created=False),
            )
        else:
            yield f"{name} creates {version}", self._set(landed, number, at="created", created=True)
        if world.left.faults:
            left = world.left._replace(faults=world.left.faults - 1)
            if not exists:
                after = landed._replace(left=left)
                yield (
                    f"{name} creates {version}, the reply is lost",
                    self._set(after, number, at="reading", created=None),
                )
            yield (
                f"{name} fails to create {version}",
                self._set(world._replace(left=left), number, at="reading", created=None),
            )

    def _writer_reading(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        made = self._manifests[writer.made]
        stored = dict(world.files.manifests).get(made.version)
        existing = None if stored is None else self._manifests[stored].commit_id
        verdict = self.rules.judge_create(writer.created, existing, made.commit_id)
        label = f"{name} reads {made.version}: {verdict.value}"
        if verdict is Verdict.RETRY:
            yield label, self._set(world, number, at="creating")
        elif verdict is Verdict.CONFLICT:
            yield label, self._set(world, number, at="conflict")
        else:
            took = writer.made if self.edges.keeps_own_manifest or stored is None else stored
            yield label, self._set(world, number, at="created", made=took)
        if world.left.faults and writer.created is None:
            left = world.left._replace(faults=world.left.faults - 1)
            after = world._replace(left=left)
            yield f"{name} cannot read {made.version}", self._set(after, number, at="unclear")

    def _writer_unclear(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        again = self._set(world, number, at="prepared", tries=writer.tries + 1)
        yield f"{name} is asked to commit again", again
        yield f"{name} is asked to abort", self._aborted(world, number, name, writer, "always")

    def _writer_created(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        waited = None if writer.based_at is None else world.clock - writer.based_at
        if self.rules.may_have_aged(waited, GRACE_MS):
            yield f"{name} has waited {waited}", self._set(world, number, at="listing")
        else:
            yield f"{name} was quick", self._set(world, number, at="telling")

    def _writer_listing(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        made = self._manifests[writer.made]
        newest = max((version for version, _ in world.files.manifests), default=-1)
        at = "looking" if newest > made.version else "telling"
        yield (
            f"{name} lists again: {newest}",
            self._set(world, number, at=at, newest=newest),
        )

    def _writer_looking(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        made = self._manifests[writer.made]
        child = dict(world.files.manifests).get(made.version + 1)
        parent = None if child is None else self._manifests[child].parent_commit_id
        verdict = self.rules.still_newest(
            Verdict.COMMITTED, made.version, made.commit_id, writer.newest, parent
        )
        label = f"{name} looks at {made.version + 1}: {verdict.value}"
        at = "telling"
        if verdict is Verdict.CONFLICT:
            at = "removing" if self.rules.is_stray(made.commit_id, parent) else "conflict"
        yield label, self._set(world, number, at=at, newest=-1)

    def _writer_removing(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        version = self._manifests[writer.made].version
        kept = tuple(pair for pair in world.files.manifests if pair[0] != version)
        files = world.files._replace(manifests=kept)
        yield (
            f"{name} takes {version} back",
            self._set(world._replace(files=files), number, at="conflict"),
        )

    def _writer_conflict(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        yield f"{name} stops: conflict", self._aborted(world, number, name, writer, "on conflict")

    def _aborted(self, world: World, number: int, name: str, writer: Writer, when: str) -> World:
        if self.edges.discards in (when, "always"):
            version = self._manifests[writer.base].version + 1
            gone = {self._delta(name, writer, version, p).path(f"0/{p}") for p in self._plain()}
            world = world._replace(files=world.files._replace(data=world.files.data - gone))
        after = self._ended(world, number)
        return self._set(after, number, swaps=writer.swaps)

    def _writer_telling(self, world: World, number: int, name: str, writer: Writer) -> Steps:
        made = self._manifests[writer.made]
        segments = made.entry(0, _STORE, 0).segments
        after = self._set(
            world,
            number,
            at="open",
            base=writer.made,
            based_at=world.clock if self.edges.clock_after_create else writer.made_at,
            made=-1,
            made_at=0,
            created=None,
            tries=0,
            swaps=tuple(s for s in writer.swaps if self.rules.fits(segments, self._swaps[s])),
        )
        yield (
            f"{name} is told that {made.version} is committed",
            after._replace(told=(made.version, _commit_id(name, writer, made.version))),
        )

    # The cleaner

    def _cleaner_steps(self, world: World) -> Steps:
        cleaner = world.cleaner
        if cleaner.at == "idle":
            if world.left.cleans and len(world.history) > KEEP and not self._locked(world):
                left = world.left._replace(cleans=world.left.cleans - 1)
                after = world._replace(left=left)
                if self.edges.spares_before_listing:
                    spared = self._waiting(world)
                    after = self._cleaning(after, at="listing", spared=spared)
                    yield "the cleaner asks for waiting merges", after
                else:
                    yield from self._cleaner_listing(after, cleaner)
            return
        yield from getattr(self, f"_cleaner_{cleaner.at}")(world, cleaner)
        if world.left.crashes:
            spent = world.left._replace(crashes=world.left.crashes - 1)
            after = world._replace(cleaner=Cleaner(life=cleaner.life + 1), left=spent, told=None)
            yield "the cleaner crashes", after

    def _locked(self, world: World) -> bool:
        """Whether a commit holds the lock of the process that the cleaner runs in."""
        idle = ("down", "opening", "open", "merged", "prepared", "unclear", "done")
        return self.bounds.spared and world.writers[0].at not in idle

    def _cleaning(self, world: World, **changes: Any) -> World:
        return world._replace(cleaner=world.cleaner._replace(**changes), told=None)

    def _waiting(self, world: World) -> frozenset[str]:
        if not self.bounds.spared:
            return frozenset()
        writer = world.writers[0]
        waiting = set(writer.swaps)
        if not self.edges.spares_before_listing:
            waiting.add(writer.merging)
        return frozenset(self._swaps[swap].output.path("0/0") for swap in waiting - {-1})

    def _cleaner_listing(self, world: World, cleaner: Cleaner) -> Steps:
        listed = tuple(sorted(world.files.data))
        asks = self.bounds.spared and any(self.bounds.merges)
        at = "sparing" if asks and not self.edges.spares_before_listing else "reading"
        yield "the cleaner lists files", self._cleaning(world, at=at, listed=listed)

    def _cleaner_sparing(self, world: World, cleaner: Cleaner) -> Steps:
        after = self._cleaning(world, at="reading", spared=self._waiting(world))
        yield "the cleaner asks for waiting merges", after

    def _cleaner_reading(self, world: World, cleaner: Cleaner) -> Steps:
        after = self._cleaning(world, at="versions", now=world.clock, tagged=world.files.tags)
        yield "the cleaner reads the tags", after

    def _cleaner_versions(self, world: World, cleaner: Cleaner) -> Steps:
        versions = tuple(version for version, _ in world.files.manifests)
        after = self._cleaning(world, at="loading", versions=versions)
        yield "the cleaner lists versions", after

    def _cleaner_loading(self, world: World, cleaner: Cleaner) -> Steps:
        stored = dict(world.files.manifests)
        if not set(cleaner.versions) <= set(stored):
            yield "the cleaner finds a version gone", self._cleaner_ends(world)
            return
        manifests = tuple((version, stored[version]) for version in cleaner.versions)
        retired = self._retired(cleaner, manifests)
        at = "marking" if retired else "unmarking" if world.files.marks else "deciding"
        if self.edges.tags_unmarked and retired:
            at = "retiring"
        after = self._cleaning(world, at=at, manifests=manifests, versions=(), todo=tuple(retired))
        yield "the cleaner reads the manifests", after

    def _retired(self, cleaner: Cleaner, manifests: tuple[tuple[int, int], ...]) -> list[int]:
        key = ("retired", manifests, cleaner.tagged, cleaner.now)
        if key not in self._decided:
            times = {v: self._manifests[m].committed_at_ms for v, m in manifests}
            self._decided[key] = self.rules.retired_versions(
                times, cleaner.tagged, KEEP, cleaner.now, GRACE_MS
            )
        return self._decided[key]  # type: ignore[no-any-return]

    def _cleaner_marking(self, world: World, cleaner: Cleaner) -> Steps:
        mark = (cleaner.life, frozenset(cleaner.todo))
        files = world.files._replace(marks=world.files.marks | {mark})
        yield (
            f"the cleaner marks {list(cleaner.todo)}",
            self._cleaning(world._replace(files=files), at="rereading"),
        )

    def _cleaner_rereading(self, world: World, cleaner: Cleaner) -> Steps:
        todo = tuple(version for version in cleaner.todo if version not in world.files.tags)
        at = "retiring" if todo else "unmarking"
        yield "the cleaner reads the tags again", self._cleaning(world, at=at, todo=todo)

    def _cleaner_retiring(self, world: World, cleaner: Cleaner) -> Steps:
        version, *rest = cleaner.todo
        kept = tuple(pair for pair in world.files.manifests if pair[0] != version)
        files = world.files._replace(manifests=kept)
        at = "retiring" if rest else ("deciding" if self.edges.tags_unmarked else "unmarking")
        after = self._cleaning(
            world._replace(files=files),
            at=at,
            todo=tuple(rest),
            retired=cleaner.retired | {version},
        )
        yield f"the cleaner deletes version {version}", after

    def _cleaner_unmarking(self, world: World, cleaner: Cleaner) -> Steps:
        alive = {version for version, _ in world.files.manifests}
        marks = frozenset(
            mark
            for mark in world.files.marks
            if mark[0] != cleaner.life and not mark[1].isdisjoint(alive)
        )
        files = world.files._replace(marks=marks)
        after = self._cleaning(world._replace(files=files), at="deciding")
        yield "the cleaner removes its mark", after

    def _cleaner_deciding(self, world: World, cleaner: Cleaner) -> Steps:
        kept = tuple(pair for pair in cleaner.manifests if pair[0] not in cleaner.retired)
        dead = self._dead(cleaner, kept)
        if not dead:
            yield "the cleaner ends", self._cleaner_ends(world)
        else:
            path, *rest = dead
            yield from self._delete(world, path, rest)

    def _dead(self, cleaner: Cleaner, manifests: tuple[tuple[int, int], ...]) -> list[str]:
        key = ("dead", cleaner.listed, manifests, cleaner.spared, cleaner.now)
        if key not in self._decided:
            kept = {
                v: retention.KeptVersion(self._manifests[m].committed_at_ms, self._needs[m])
                for v, m in manifests
            }
            self._decided[key] = self.rules.dead_files(
                cleaner.listed, kept, cleaner.spared, cleaner.now, GRACE_MS
            )
        return self._decided[key]  # type: ignore[no-any-return]

    def _cleaner_deleting(self, world: World, cleaner: Cleaner) -> Steps:
        path, *rest = cleaner.todo
        yield from self._delete(world, path, rest)

    def _delete(self, world: World, path: str, rest: list[str]) -> Steps:
        after = world._replace(files=world.files._replace(data=world.files.data - {path}))
        if rest:
            life = world.cleaner.life
            cleaner = Cleaner(at="deleting", life=life, todo=tuple(rest))
            yield f"the cleaner deletes {path}", after._replace(cleaner=cleaner, told=None)
        else:
            yield f"the cleaner deletes {path}, the last", self._cleaner_ends(after)

    def _cleaner_ends(self, world: World) -> World:
        return world._replace(cleaner=Cleaner(life=world.cleaner.life + 1), told=None)

    # Naming a version

    def _tagger_steps(self, world: World) -> Steps:
        tagger, files = world.tagger, world.files
        versions = {version for version, _ in files.manifests}
        if tagger.at == "idle":
            if world.left.tags:
                left = world.left._replace(tags=world.left.tags - 1)
                for version in sorted(versions):
                    after = world._replace(tagger=Tagger("naming", version), left=left, told=None)
                    yield f"the tagger finds {version}", after
        elif tagger.at == "naming":
            existed = tagger.version in files.tags
            files = files._replace(tags=files.tags | {tagger.version})
            at = "existing" if self.edges.marks_looked_for_last else "marks"
            at = "telling" if self.edges.tags_unmarked else at
            after = world._replace(
                files=files, tagger=tagger._replace(at=at, existed=existed), told=None
            )
            yield f"the tagger names {tagger.version}", after
        elif tagger.at == "marks":
            marked = any(tagger.version in mark[1] for mark in files.marks)
            fine = "telling" if self.edges.marks_looked_for_last else "existing"
            at = "withdrawing" if marked else fine
            after = world._replace(tagger=tagger._replace(at=at), told=None)
            yield "the tagger looks for marks", after
        elif tagger.at == "existing":
            fine = "marks" if self.edges.marks_looked_for_last else "telling"
            at = fine if self._belongs(files, tagger.version) else "withdrawing"
            after = world._replace(tagger=tagger._replace(at=at), told=None)
            yield "the tagger looks for the version again", after
        elif tagger.at == "withdrawing" and tagger.existed:
            yield "the tagger leaves the older tag", world._replace(tagger=Tagger(), told=None)
        elif tagger.at == "withdrawing":
            files = files._replace(tags=files.tags - {tagger.version})
            yield (
                "the tagger takes its tag back",
                world._replace(files=files, tagger=Tagger(), told=None),
            )
        else:
            promised = world.promised | {tagger.version}
            yield (
                f"the tagger is told that {tagger.version} is tagged",
                world._replace(promised=promised, tagger=Tagger(), told=None),
            )
        if world.left.crashes and tagger.at != "idle":
            spent = world.left._replace(crashes=world.left.crashes - 1)
            yield "the tagger crashes", world._replace(tagger=Tagger(), left=spent, told=None)

    def _belongs(self, files: Files, version: int) -> bool:
        stored = dict(files.manifests)
        if version not in stored:
            return False
        child = stored.get(version + 1)
        parent = None if child is None else self._manifests[child].parent_commit_id
        mine = self._manifests[stored[version]].commit_id
        verdict = self.rules.still_newest(Verdict.COMMITTED, version, mine, max(stored), parent)
        return verdict is Verdict.COMMITTED

    # Manifests and what they hold

    def _partitions(self) -> range:
        return range(len(self.bounds.packed))

    def _plain(self) -> list[int]:
        return [number for number in self._partitions() if not self.bounds.packed[number]]

    def _register(self, manifest: Manifest, content: tuple[tuple[str, ...], ...]) -> int:
        refs = tuple(entry.segments for _, _, entry in manifest.partitions())
        key = (manifest.version, manifest.commit_id, manifest.committed_at_ms, refs, content)
        if key not in self._by_key:
            self._by_key[key] = len(self._manifests)
            self._manifests.append(manifest)
            self._contents.append(content)
            self._needs.append(frozenset(manifest.files()))
        return self._by_key[key]

    def _delta(self, name: str, writer: Writer, version: int, partition: int) -> SegmentRef:
        attempt = f"{name}{writer.life}{version}{partition}".ljust(32, "0")
        return SegmentRef("delta", version, version, attempt, _INFO)

    def _pack_id(self, name: str, writer: Writer, version: int) -> str:
        return f"{name}{writer.life}{version}{writer.tries}".ljust(32, "0")

    def _build(self, name: str, writer: Writer, present: frozenset[str], now: int) -> int:
        key = (name, writer.life, writer.base, writer.tries, writer.swaps, present, now)
        if key not in self._built:
            self._built[key] = self._new_manifest(name, writer, present, now)
        return self._built[key]

    def _new_manifest(self, name: str, writer: Writer, present: frozenset[str], now: int) -> int:
        base = self._manifests[writer.base]
        version = base.version + 1
        pack = PackSlice(version, self._pack_id(name, writer, version), 0)
        deltas = []
        for partition, packed in enumerate(self.bounds.packed):
            delta = self._delta(name, writer, version, partition)
            self._data[delta.name] = (delta.name,)
            deltas.append(replace(delta, pack=pack) if packed else delta)
        prepared = [
            PreparedPartition(
                0,
                _STORE,
                partition,
                base.version,
                _SCHEMAS,
                delta,
                1,
                swaps=tuple(self._swaps[s] for s in writer.swaps) if partition == 0 else (),
            )
            for partition, delta in enumerate(deltas)
        ]
        self.rules.check_prepared(base, prepared, {(0, _STORE): _SCHEMAS})
        manifest = replace(
            base,
            version=version,
            parent=base.version,
            parent_commit_id=base.commit_id,
            commit_id=_commit_id(name, writer, version),
            committed_at_ms=now,
            operators=self.rules.next_operators(base, prepared, present),
        )
        content = tuple(
            (delta.name, *older)
            for delta, older in zip(deltas, self._contents[writer.base], strict=True)
        )
        return self._register(manifest, content)

    def _land(self, world: World, made: int) -> World:
        """The world once a manifest was created."""
        manifest = self._manifests[made]
        manifests = tuple(sorted((*world.files.manifests, (manifest.version, made))))
        history = world.history
        follows = manifest.parent_commit_id == self._manifests[history[-1]].commit_id
        if manifest.version == len(history) and follows:
            history = (*history, made)
        return world._replace(files=world.files._replace(manifests=manifests), history=history)

    def _merge(
        self, name: str, writer: Writer, base: Manifest, start: int, stop: int, data: frozenset[str]
    ) -> int:
        refs = base.entry(0, _STORE, 0).segments
        chosen = refs[start:stop]
        read = self._readable_refs(base, 0, data, slice(start, stop))
        assert read is not None
        attempt = f"{name}{writer.life}{writer.base:04x}{start}{stop}e".ljust(32, "0")
        kind = "snapshot" if stop == len(refs) else "merge"
        output = SegmentRef(kind, chosen[-1].low, chosen[0].high, attempt, _INFO, inputs=read)
        swap = Swap(tuple(ref.name for ref in chosen), output)
        self._data[output.name] = tuple(delta for ref in read for delta in self._data[ref.name])
        if swap not in self._swaps:
            self._swaps.append(swap)
        return self._swaps.index(swap)

    def _readable_refs(
        self,
        manifest: Manifest,
        partition: int,
        data: frozenset[str],
        span: slice = slice(None),
    ) -> tuple[SegmentRef, ...] | None:
        """The segments a reader uses: inputs where a merge is missing; None where that fails."""
        refs: list[SegmentRef] = []
        for ref in manifest.entry(0, _STORE, partition).segments[span]:
            parts = (ref,) if ref.path(f"0/{partition}") in data else ref.inputs
            if not parts or any(part.path(f"0/{partition}") not in data for part in parts):
                return None
            refs.extend(parts)
        return tuple(refs)

    # Invariants

    def check(self, before: World, after: World) -> None:
        """Raise Broken when the step to `after`, or `after` itself, breaks a rule."""
        if after.told is not None:
            self._told_versions_are_history(after)
        if after.files.manifests != before.files.manifests:
            self._newest_never_goes_back(before, after)
        if self.bounds.spared:
            self._waiting_merges_are_spared(after)
        key = (after.files, after.history, after.promised, after.clock)
        if key not in self._checked:
            self._checked.add(key)
            self._promised_versions_are_readable(after)
            self._a_restart_commits_and_a_clean_leaves_what_is_needed(after)

    def _waiting_merges_are_spared(self, world: World) -> None:
        for swap in world.writers[0].swaps:
            if self._swaps[swap].output.path("0/0") not in world.files.data:
                raise Broken("waiting merges are spared", f"swap {swap} is gone")

    def _told_versions_are_history(self, world: World) -> None:
        assert world.told is not None
        version, commit_id = world.told
        known = "nothing"
        if version < len(world.history):
            known = self._manifests[world.history[version]].commit_id
        if known != commit_id:
            why = f"{commit_id} was told {version}, which is {known}"
            raise Broken("told versions are history", why)

    def _newest_never_goes_back(self, before: World, after: World) -> None:
        old = max((version for version, _ in before.files.manifests), default=0)
        new = max((version for version, _ in after.files.manifests), default=0)
        if new < old:
            raise Broken("the newest version never goes back", f"from {old} to {new}")
        if new >= len(after.history):
            raise Broken("told versions are history", f"version {new} is not based on {new - 1}")

    def _promised_versions_are_readable(self, world: World) -> None:
        """The newest two, the tagged, and those pushed out for less than the grace period."""
        newest = len(world.history) - 1
        stored = dict(world.files.manifests)
        promised = {newest, newest - 1, *world.promised} - {0, -1}
        for version in range(1, newest - 1):
            successor = self._manifests[world.history[version + KEEP]]
            if world.clock - successor.committed_at_ms < GRACE_MS:
                promised.add(version)
        for version in promised:
            if version not in stored:
                raise Broken("promised versions are readable", f"{version} is gone")
            self._is_as_committed(world, version, stored[version])

    def _is_as_committed(self, world: World, version: int, found: int) -> None:
        manifest = self._manifests[found]
        if found != world.history[version]:
            raise Broken("versions never change", f"{version} is now {manifest.commit_id}")
        missing = self._needs[found] - world.files.data
        if self.bounds.spared and missing:
            raise Broken("promised versions are readable", f"{version} lacks {sorted(missing)}")
        for partition in self._partitions():
            refs = self._readable_refs(manifest, partition, world.files.data)
            if refs is None:
                raise Broken("promised versions are readable", f"{version} lacks {sorted(missing)}")
            content = tuple(delta for ref in refs for delta in self._data[ref.name])
            if content != self._contents[found][partition]:
                raise Broken("versions never change", f"{version} reads {content}")

    def _a_restart_commits_and_a_clean_leaves_what_is_needed(self, world: World) -> None:
        after = self._alone(world, "d")
        after = after._replace(clock=after.clock + GRACE_MS)
        after = self._cleaned(after)
        self._promised_versions_are_readable(after)
        kept = dict(after.files.manifests)
        newest = len(after.history) - 1
        expected = {newest, newest - 1, *(after.files.tags & set(dict(world.files.manifests)))} - {
            0
        }
        if set(kept) != expected:
            raise Broken("clean-up leaves nothing for ever", f"versions {sorted(kept)}")
        needed = frozenset().union(*(self._needs[manifest] for manifest in kept.values()))
        if after.files.data - needed:
            rest = sorted(after.files.data - needed)
            raise Broken("clean-up leaves nothing for ever", f"{rest} stays")
        # A mark whose clean-up crashed may stay as long as one of its versions is tagged.
        if any(mark[1].isdisjoint(kept) for mark in after.files.marks):
            raise Broken("clean-up leaves nothing for ever", "a mark stays")

    def _alone(self, world: World, name: str) -> World:
        """The world after a new writer came, committed one version and went; nothing else ran."""
        goal = len(world.history)
        before = world
        world = world._replace(
            writers=(Writer(), Writer()),
            merges_left=(0, 0),
            cleaner=Cleaner(life=world.cleaner.life),
            left=_NOTHING,
            told=None,
        )
        while world.told is None:
            step = next(self._writer_steps(world, 0, name), None)
            if step is None or world.writers[0].life:
                raise Broken("a restart can always commit", f"it stops: {world.writers[0].at}")
            world = step[1]
        if world.told[0] != goal:
            raise Broken("a restart can always commit", f"it committed {world.told[0]}")
        self._told_versions_are_history(world)
        self._promised_versions_are_readable(world)
        return world._replace(
            writers=(Writer(), Writer()),
            commits_left=before.commits_left,
            merges_left=before.merges_left,
            left=before.left,
            told=None,
        )

    def _cleaned(self, world: World) -> World:
        """The world after one undisturbed clean-up."""
        cleaner = Cleaner(at="listing", life=world.cleaner.life + 1)
        world = world._replace(cleaner=cleaner, left=_NOTHING)
        while world.cleaner.at != "idle":
            world = next(self._cleaner_steps(world))[1]
        return world
