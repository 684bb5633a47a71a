"""The history of a root: manifests and tags, read and created."""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import xxhash

from holdfast.engine.files.filenames import (
    COPYING,
    RETIRING,
    TAGS,
    VERSIONS,
    is_retiring,
    manifest_path,
    manifest_version,
    retiring_path,
    tag_name,
    tag_path,
)
from holdfast.engine.files.manifest import Manifest
from holdfast.engine.files.manifest_codec import decode, encode
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.engine.versions.commit import (
    Verdict,
    is_stray,
    judge_create,
    may_have_aged,
    still_newest,
)
from holdfast.errors import (
    Conflict,
    Corruption,
    IllegalState,
    InvalidArgument,
    Unavailable,
    VersionNotFound,
)

log = logging.getLogger(__name__)
_CREATE_ATTEMPTS = 4
_MOST_RECENT = 2
_TAG_MAGIC, _TAG_FORMAT = "HOLDFAST-TAG", "1"


class VersionLog:
    """Reads and extends the history of one root. It keeps no state between calls."""

    def __init__(self, storage: Storage, runtime: Runtime) -> None:
        self.storage = storage
        self._runtime = runtime

    def versions(self) -> list[int]:
        """Every version that has a manifest, ascending.

        Raises IllegalState when the root is an unfinished copy or fork.
        """
        listed = [blob.path for blob in self.storage.list(VERSIONS)]
        if COPYING in listed:
            raise IllegalState(
                f"{self.storage.location} holds an unfinished copy or fork and cannot be opened "
                "yet. Run the same `holdfast copy` again, or the same `holdfast fork`, to finish "
                "it, or name another place.",
                condition="STATE_STORE_UNFINISHED_COPY",
            )
        found = map(manifest_version, listed)
        return sorted(version for version in found if version is not None)

    def newest(self) -> int | None:
        """The newest version, or None where nothing was ever committed."""
        versions = self.versions()
        return versions[-1] if versions else None

    def load(self, version: int) -> Manifest:
        """The manifest of a version. Raises VersionNotFound without one, Corruption if damaged."""
        path = manifest_path(version)
        try:
            data = self.storage.read(path)
        except BlobNotFound:
            raise VersionNotFound(
                f"Version {version} does not exist in {self.storage.location}: it was never "
                "committed, or retention has removed it. `holdfast history` lists the versions."
            ) from None
        manifest = decode(data, f"{self.storage.location}/{path}")
        if manifest.version != version:
            raise Corruption(
                f"The manifest {self.storage.location}/{path} is that of version "
                f"{manifest.version}: a file was moved or copied. `holdfast verify` lists the "
                "versions that are intact. `holdfast rollback CHECKPOINT --to intact` continues "
                "from the newest of those."
            )
        return manifest

    def publish(self, manifest: Manifest, grace_ms: int, based_at_ms: int | None) -> Manifest:
        """Create the version of this manifest, which commits it; return the manifest as stored.

        If an earlier attempt with the same commit id got through, the result is what that wrote.
        `based_at_ms` is a time by the monotonic clock at which its parent was the newest or did
        not exist yet; None when none is known. Raises Conflict when another writer has that
        version or a later one. Even then this version may have become part of the history, when
        it was created by a call that got no answer or that slept: leave its files to `clean`.
        """
        # A base that may be old: if the history has passed it and retention has removed the next
        # version, its name is free again, and creating it would succeed.
        if based_at_ms is None and self._has_passed(manifest.version):
            raise self.conflict(manifest.version)
        verdict, stored = self._create(manifest)
        waited_ms = None if based_at_ms is None else self._runtime.monotonic_ms() - based_at_ms
        if verdict is Verdict.COMMITTED and may_have_aged(waited_ms, grace_ms):
            verdict = self._look_again(stored)
        if verdict is Verdict.CONFLICT:
            raise self.conflict(manifest.version)
        return stored

    def _has_passed(self, version: int) -> bool:
        """Whether the history has passed a version whose manifest is no longer there."""
        newest = self.newest()
        return newest is not None and newest > version and self._load_or_none(version) is None

    def conflict(self, version: int) -> Conflict:
        """The error of a writer whose version was committed by another."""
        return Conflict(
            f"Version {version} of {self.storage.location} was committed by another writer. This "
            "one must stop; reopen to continue from the newest version."
        )

    def _look_again(self, created: Manifest) -> Verdict:
        """Whether a version that took long belongs to the history; it is deleted if it does not."""
        verdict, next_parent = self._place(created)
        if verdict is Verdict.CONFLICT and is_stray(created.commit_id, next_parent):
            self.storage.delete(manifest_path(created.version))
        return verdict

    def _place(self, stored: Manifest) -> tuple[Verdict, str | None]:
        """Whether a stored version belongs to the history, and the next one's parent."""
        newest = self.newest()
        following = None
        if newest is not None and newest > stored.version:
            following = self._load_or_none(stored.version + 1)
        parent = None if following is None else following.parent_commit_id
        verdict = still_newest(Verdict.COMMITTED, stored.version, stored.commit_id, newest, parent)
        return verdict, parent

    def _create(self, manifest: Manifest) -> tuple[Verdict, Manifest]:
        path, data = manifest_path(manifest.version), encode(manifest)
        failure: Unavailable | None = None
        for _ in range(_CREATE_ATTEMPTS):
            created: bool | None = None
            try:
                created = self.storage.create_if_absent(path, data)
            except Unavailable as error:
                failure = error
                log.warning("No clear answer on creating version %d: %s", manifest.version, error)
            # Also after a plain no: an earlier request whose reply was lost may have been ours.
            existing = None if created else self._load_or_none(manifest.version)
            commit_id = None if existing is None else existing.commit_id
            verdict = judge_create(created, commit_id, manifest.commit_id)
            if verdict is not Verdict.RETRY:
                return verdict, manifest if existing is None else existing
        raise failure or Unavailable(f"Could not create {path} in {self.storage.location}.")

    def _load_or_none(self, version: int) -> Manifest | None:
        try:
            return self.load(version)
        except VersionNotFound:
            return None

    def newest_intact(self) -> Manifest | None:
        """The newest manifest that can be read, or None where nothing was ever committed.

        The log names damaged ones above it. Raises Corruption when all are damaged.
        """
        versions = self.versions()
        manifest = next(self._intact_among(versions), None)
        if manifest is None and versions:
            self.load(versions[-1])
        return manifest

    def intact(self) -> Iterator[Manifest]:
        """Every manifest that can be read, newest first; the log names damaged ones."""
        return self._intact_among(self.versions())

    def _intact_among(self, versions: Sequence[int]) -> Iterator[Manifest]:
        for version in reversed(versions):
            try:
                yield self.load(version)
            except VersionNotFound:
                continue  # removed meanwhile
            except Corruption as error:
                log.warning("%s", error)

    def tags(self) -> dict[str, int]:
        """Every tag with its version. Raises Corruption when one is damaged."""
        found = {name: self.read_tag(name) for name in self._tag_names()}
        return {name: version for name, version in found.items() if version is not None}

    def intact_tags(self) -> dict[str, int]:
        """Every tag that can be read; the log names damaged ones."""
        found: dict[str, int] = {}
        for name in self._tag_names():
            try:
                version = self.read_tag(name)
            except Corruption as error:
                log.warning("%s", error)
                continue
            if version is not None:
                found[name] = version
        return found

    def _tag_names(self) -> list[str]:
        found = (tag_name(blob.path) for blob in self.storage.list(TAGS))
        return [name for name in found if name is not None]

    def tag(self, name: str, version: int) -> None:
        """Give a version a name, which keeps it from being removed.

        Raises InvalidArgument when another version has that name, and VersionNotFound when the
        version does not exist or is just being removed. A clean-up marks what it will remove and
        then looks for tags; this creates the tag and then looks for marks. So one of them always
        sees the other.
        """
        path = tag_path(name)
        self.load(version)
        body = json.dumps({"name": name, "version": version})
        text = f"{_TAG_MAGIC} {_TAG_FORMAT} {_checksum(body.encode()).decode()} {body}\n"
        created = self.storage.create_if_absent(path, text.encode())
        if not created:
            taken = self.read_tag(name)
            if taken != version:
                raise InvalidArgument(
                    f"The tag {name!r} already names version {taken}. Remove it first, or choose "
                    "another name."
                )
        if not self._stays(version, other_than=name if created else None):
            if created:
                self.storage.delete(path)
            raise VersionNotFound(
                f"Version {version} of {self.storage.location} is being removed by retention and "
                "was not tagged. `holdfast history` lists the versions."
            )

    def _stays(self, version: int, other_than: str | None) -> bool:
        """Whether a version exists and will stay, apart from the new tag `other_than`.

        It may be about to be removed. Or it may be a stray, which a writer that slept has created
        in place of a removed version: then the next version is also gone, or has another parent.
        """
        if version in self._marked():
            return False
        # Only now: a clean-up may just have removed the version, and then its mark.
        stored = self._load_or_none(version)
        if stored is None:
            return False
        try:
            if self._place(stored)[0] is Verdict.COMMITTED:
                return True
        except Corruption:  # of the version after it: nothing says that this one is a stray
            return True
        return any(tag != other_than and named == version for tag, named in self.tags().items())

    def retire(self, versions: Sequence[int]) -> list[int]:
        """Delete manifests, except those that have been tagged since; return which it deleted."""
        retired: list[int] = []
        if versions:
            mark = retiring_path(self._runtime.new_id())
            self.storage.write(mark, json.dumps({"versions": list(versions)}).encode())
            tagged = set(self.tags().values())
            retired = [version for version in versions if version not in tagged]
            for version in retired:
                self.storage.delete(manifest_path(version))
            self.storage.delete(mark)
        self._forget_marks()
        return retired

    def _forget_marks(self) -> None:
        """Remove the marks of crashed clean-ups, once none of their versions exists."""
        if marks := self._marks():
            existing = set(self.versions())
            for path, versions in marks.items():
                if existing.isdisjoint(versions):
                    self.storage.delete(path)

    def _marked(self) -> set[int]:
        return {version for versions in self._marks().values() for version in versions}

    def _marks(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for path in (blob.path for blob in self.storage.list(RETIRING)):
            if not is_retiring(path):
                continue
            try:
                found[path] = json.loads(bytes(self.storage.read(path)))["versions"]
            except BlobNotFound:
                continue
            except (ValueError, KeyError, TypeError):
                found[path] = []  # damaged: it marks nothing
        return found

    def untag(self, name: str) -> None:
        """Remove a tag. Raises InvalidArgument when there is no such tag."""
        path = tag_path(name)
        if self.storage.size(path) is None:
            raise InvalidArgument(f"There is no tag {name!r} in {self.storage.location}.")
        self.storage.delete(path)

    def read_tag(self, name: str) -> int | None:
        """The version that a tag names, None without such a tag. Raises Corruption if damaged."""
        path = tag_path(name)
        try:
            raw = bytes(self.storage.read(path))
        except BlobNotFound:
            return None
        magic, form, checksum, body = [*raw.removesuffix(b"\n").split(b" ", 3), *[b""] * 3][:4]
        if magic == _TAG_MAGIC.encode() and form.isdigit() and form != _TAG_FORMAT.encode():
            raise InvalidArgument(
                f"The tag {self.storage.location}/{path} is in format {form.decode()}; this "
                f"release reads format {_TAG_FORMAT}. Upgrade holdfast to a release that reads it.",
                condition="STATE_STORE_UNSUPPORTED_FORMAT",
            )
        known = (_TAG_MAGIC.encode(), _TAG_FORMAT.encode())
        if (magic, form) == known and raw.endswith(b"\n") and checksum == _checksum(body):
            tag = json.loads(body)
            if tag["name"] == name:
                return int(tag["version"])
        raise Corruption(
            f"The tag {self.storage.location}/{path} is damaged, and nothing is cleaned up while "
            "it is. Delete that file and tag the version again."
        )


class RecentVersions(VersionLog):
    """A history that keeps the manifests read last, so that each is read once.

    Requires: callers ask only for versions that are known to be committed, and the root is not
    deleted and created again.
    """

    def __init__(self, storage: Storage, runtime: Runtime) -> None:
        super().__init__(storage, runtime)
        self._recent: OrderedDict[int, Manifest] = OrderedDict()
        self._lock = threading.Lock()

    def load(self, version: int) -> Manifest:
        with self._lock:
            found = self._recent.get(version)
        if found is None:
            found = super().load(version)
            with self._lock:
                self._recent[version] = found
                while len(self._recent) > _MOST_RECENT:
                    self._recent.popitem(last=False)
        return found


def _checksum(body: bytes) -> bytes:
    return xxhash.xxh3_64_hexdigest(body).encode()
