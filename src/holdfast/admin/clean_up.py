"""Removing what no retained version needs, beside a stream or where none runs.

It goes by the rules of a stream's own clean-up (`engine.versions.retention`), from outside: which
merges a driver is about to commit it does not know, and leaves whatever may be one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from holdfast.admin.plan import Lines, OperationPlan, OperationResult, age_in_words
from holdfast.admin.site import Location, Site, open_site
from holdfast.engine.files.filenames import tag_path
from holdfast.engine.versions.journal import OperationEntry
from holdfast.engine.versions.retention import LEAST_SWEEP_AGE_S, Cleaner, CleanUp, Survey
from holdfast.errors import InvalidArgument
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody
from holdfast.reading.words import amount, size_text, spans

LEAST_VERSIONS = 2
"""As many versions stay whatever is asked for: the newest, and the one it was made from."""
_LEFT_TAG = re.compile(r"(fork|rollback)-(?P<id>[0-9a-f]{32})")
"""The tag by which an operation keeps the version that it works with."""


@dataclass(frozen=True)
class _Findings:
    """What there is at a root that may be removed."""

    survey: Survey
    tags: Mapping[str, int]
    """The tags that stay."""
    left_tags: Mapping[str, int]
    """Tags of operations that ended."""
    attempts: tuple[OperationEntry, ...]
    """Entries of the journal without a version, which none can become any more."""

    def kept_by_tags(self) -> dict[str, int]:
        """The tags that keep a version which would not stay without."""
        kept = self.survey.kept_by_tags()
        return {name: version for name, version in self.tags.items() if version in kept}


@dataclass(frozen=True)
class CleanUpPlan(OperationPlan):
    """What is to be removed from a root, and what stays for now."""

    kind: str
    """"gc"."""
    root: str
    keep: int
    """How many versions stay, beside those with a tag and those that wait for their end."""
    grace_ms: int
    reason: str | None = None
    fences: bool = False
    site: Site = field(repr=False, compare=False, kw_only=True)
    cleaner: Cleaner = field(repr=False, compare=False, kw_only=True)
    findings: _Findings = field(repr=False, compare=False, kw_only=True)
    todo: CleanUp = field(kw_only=True)
    """The versions and files to remove, and those that stay for now."""

    @property
    def is_void(self) -> bool:
        """Whether there is nothing to remove, unfinished files aside."""
        found = self.findings
        return not (self.todo.versions or self.todo.files or found.left_tags or found.attempts)

    def size_of(self, files: Collection[str]) -> int:
        """How many bytes some of the root's files have."""
        return sum(self.findings.survey.sizes[path] for path in files)

    def lines(self) -> Lines:
        todo, found = self.todo, self.findings
        gone, there = _versions(todo.versions), len(found.survey.kept)
        lines = [
            ("remove", f"{gone} of {there:,}, {self._files(todo.files)}"),
            ("waiting", self._waiting()),
        ]
        if todo.spared_files:
            what = self._files(todo.spared_files)
            lines.append(("left", f"{what}: merges that a driver may be about to commit"))
        if kept := found.kept_by_tags():
            lines.append(("tags", f"keep {_named(kept)}"))
        if found.left_tags:
            lines.append(("untag", f"{_named(found.left_tags)}: their operations have ended"))
        if found.attempts:
            lines.append(("journal", f"{amount(len(found.attempts), 'attempt')} without a version"))
        age = age_in_words(int(max(self.grace_ms, LEAST_SWEEP_AGE_S * 1000)))
        lines.append(("unfinished", f"files that crashed writers left more than {age} ago"))
        lines.append(("driver", "one that runs continues undisturbed"))
        return lines

    def json(self) -> JsonBody:
        todo, found = self.todo, self.findings
        return {
            "kind": self.kind,
            "root": self.root,
            "reason": self.reason,
            "keep": self.keep,
            "grace_ms": self.grace_ms,
            **self._removed(todo),
            "waiting_versions": [
                {"version": version, "removable_from_ms": end_ms}
                for version, end_ms in todo.waiting_versions.items()
            ],
            "waiting_files": len(todo.waiting_files),
            "waiting_bytes": self.size_of(todo.waiting_files),
            "left_files": len(todo.spared_files),
            "left_bytes": self.size_of(todo.spared_files),
            "keeping_tags": found.kept_by_tags(),
        }

    def run(self, progress: Progress | None = None) -> OperationResult:
        """Remove it. The root is looked at again first, and what is there then decides.

        The journal says it before anything is removed. A run that crashed can be repeated.
        """
        plan = _planned(self.site, self.cleaner, self.keep, self.reason)
        found, site = plan.findings, self.site
        if not plan.is_void:
            detail, newest = plan._in_words(), max(found.survey.kept)
            entry = site.entry("gc", newest, self.reason, detail, makes_version=False)
            site.journal.begin(entry)
        for name in found.left_tags:
            site.storage.delete(tag_path(name))
        for attempt in found.attempts:
            site.journal.give_up(attempt)
        done = self.cleaner.remove(found.survey)
        what = f"{_versions(done.versions)}, {plan._files(done.files)}"
        others = len(found.left_tags) + len(found.attempts)
        left = f", {amount(others, 'trace')} of operations that ended" if others else ""
        summary = "there was nothing to remove" if plan.is_void else f"removed {what}{left}"
        return OperationResult("gc", self.root, None, summary, plan._removed(done))

    def _removed(self, done: CleanUp) -> JsonBody:
        found = self.findings
        return {
            "versions": list(done.versions),
            "files": len(done.files),
            "size_bytes": self.size_of(done.files),
            "tags": dict(found.left_tags),
            "attempts": [entry.id for entry in found.attempts],
        }

    def _in_words(self) -> JsonBody:
        """What is to be removed, as the journal keeps it: a thousand versions are one range."""
        removed = self._removed(self.todo)
        removed["versions"] = spans(sorted(self.todo.versions)) or "none"
        return {name: what for name, what in removed.items() if what not in ({}, [])}

    def _files(self, files: Collection[str]) -> str:
        return f"{amount(len(files), 'file')} ({size_text(self.size_of(files))})"

    def _waiting(self) -> str:
        todo, now_ms = self.todo, self.findings.survey.now_ms
        ends = [*todo.waiting_versions.values(), *todo.waiting_files.values()]
        if not ends:
            return "nothing"
        what = f"{_versions(list(todo.waiting_versions))}, {self._files(todo.waiting_files)}"
        return f"{what}: the last may go in {age_in_words(max(ends) - now_ms)}"


def gc(
    location: Location,
    *,
    keep: int | None = None,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
) -> CleanUpPlan:
    """Plan to remove what no retained version needs, as a stream's own clean-up does.

    `location` is a query's checkpoint, its stateLocation, or a store's folder. `keep` is how many
    versions stay, at least 2; by default as many as the writer of the newest one keeps. Versions
    with a tag stay, and the others for the writer's grace period. It works beside a stream.
    Raises InvalidArgument for fewer than 2 versions, and Corruption where a manifest, a tag or an
    entry of the journal is damaged: then nobody can tell what is needed.
    """
    if keep is not None and keep < LEAST_VERSIONS:
        raise InvalidArgument(
            f"At least {LEAST_VERSIONS} versions have to stay, not {keep}. Choose a higher number."
        )
    site = open_site(location, options=options)
    conf = site.conf_of(site.newest())
    keep = conf.min_versions_to_retain if keep is None else keep
    conf = replace(conf, min_versions_to_retain=keep)
    cleaner = Cleaner(site.versions, site.runtime, conf, is_driver=False)
    return _planned(site, cleaner, keep, reason)


def _planned(site: Site, cleaner: Cleaner, keep: int, reason: str | None) -> CleanUpPlan:
    survey, tags = cleaner.survey(), site.versions.tags()
    before_ms = survey.now_ms - survey.grace_ms
    attempts = tuple(site.journal.ended_attempts(before_ms))
    left = _left_tags(site, tags, before_ms, {entry.id for entry in attempts})
    tags = {name: version for name, version in tags.items() if name not in left}
    survey = replace(survey, tagged=set(tags.values()))
    return CleanUpPlan(
        "gc",
        site.location,
        keep,
        survey.grace_ms,
        reason,
        site=site,
        cleaner=cleaner,
        findings=_Findings(survey, tags, left, attempts),
        todo=survey.plan(),
    )


def _left_tags(
    site: Site, tags: Mapping[str, int], before_ms: int, ended: Collection[str]
) -> dict[str, int]:
    """Tags of operations that are done, or can make no version any more, since a grace period."""
    ids = {name: match["id"] for name in tags if (match := _LEFT_TAG.fullmatch(name))}
    if not ids:
        return {}
    done = {
        line.entry.id
        for line in site.journal.lines()
        if line.is_done and line.entry.at_ms <= before_ms
    }
    over = done.union(ended)
    return {name: tags[name] for name, operation_id in ids.items() if operation_id in over}


def _named(tags: Mapping[str, int]) -> str:
    return ", ".join(f"{name} = {version}" for name, version in sorted(tags.items()))


def _versions(numbers: Collection[int]) -> str:
    if not numbers:
        return "no version"
    return f"version{'s' if len(numbers) > 1 else ''} {spans(sorted(numbers))}"
