"""Naming versions: a version with a tag stays, whatever retention removes around it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.admin.plan import Lines, OperationPlan, OperationResult
from holdfast.admin.site import Location, Site, open_site
from holdfast.engine.files.filenames import tag_path
from holdfast.errors import InvalidArgument
from holdfast.reading import Progress
from holdfast.reading.json import JsonBody


@dataclass(frozen=True)
class TagPlan(OperationPlan):
    """A tag to be set or removed."""

    kind: str
    """"tag" or "untag"."""
    root: str
    name: str
    version: int
    reason: str | None = None
    fences: bool = False
    site: Site = field(repr=False, compare=False, kw_only=True)

    def lines(self) -> Lines:
        if self.kind == "tag":
            return [("tag", f"{self.name} names version {self.version}, which then stays")]
        return [("untag", f"{self.name} no longer keeps version {self.version}")]

    def json(self) -> JsonBody:
        return {name: getattr(self, name) for name in ("kind", "root", "name", "version", "reason")}

    def run(self, progress: Progress | None = None) -> OperationResult:
        log, site = self.site.versions, self.site
        if self.kind == "tag":
            log.tag(self.name, self.version)
            done = f"version {self.version} is tagged {self.name}"
        else:
            log.untag(self.name)
            done = f"{self.name} is removed from version {self.version}"
        detail = {"name": self.name, "tagged": self.version}
        newest = log.versions()[-1]
        site.journal.begin(site.entry(self.kind, newest, self.reason, detail, makes_version=False))
        return OperationResult(self.kind, self.root, None, done, detail)


def tag(
    location: Location,
    name: str,
    at: int | str | None = None,
    *,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
) -> TagPlan:
    """Plan to give a version a name, which keeps it from being removed.

    `location` is a query's checkpoint, its stateLocation, or a store's folder. `at` is a version or
    another tag, the newest by default. It works beside a stream. Raises InvalidArgument where
    another version has the name, and VersionNotFound without such a version.
    """
    site = open_site(location, options=options)
    version = site.root.resolve(at)
    tag_path(name)
    taken = site.versions.read_tag(name)
    if taken not in (None, version):
        raise InvalidArgument(
            f"The tag {name!r} already names version {taken}. Remove it first, or choose another "
            "name."
        )
    return TagPlan("tag", site.location, name, version, reason, site=site)


def untag(
    location: Location,
    name: str,
    *,
    reason: str | None = None,
    options: Mapping[str, str] | None = None,
) -> TagPlan:
    """Plan to remove a tag. Raises InvalidArgument where there is none of that name.

    `location` is as for `tag`. It works beside a stream.
    """
    site = open_site(location, options=options)
    version = site.versions.read_tag(name)
    if version is None:
        raise InvalidArgument(f"There is no tag {name!r} in {site.location}.")
    return TagPlan("untag", site.location, name, version, reason, site=site)
