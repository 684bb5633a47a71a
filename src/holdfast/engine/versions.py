"""The history of a root: manifests and tags, read and created."""

from __future__ import annotations

import json
import logging

import xxhash

from holdfast.engine.commit import Verdict, judge_create, still_newest
from holdfast.engine.filenames import TAGS, VERSIONS, manifest_path, manifest_version, tag_path
from holdfast.engine.manifest import Manifest, decode, encode
from holdfast.engine.storage import BlobNotFound, Runtime, Storage
from holdfast.errors import Conflict, Corruption, InvalidArgument, Unavailable, VersionNotFound

log = logging.getLogger(__name__)
_CREATE_ATTEMPTS = 4
_TAG_MAGIC = "HOLDFAST-TAG 1"


class VersionLog:
    """Reads and extends the history of one root. Holds no state of its own."""

    def __init__(self, storage: Storage, runtime: Runtime) -> None:
        self.storage = storage
        self._runtime = runtime

    def versions(self) -> list[int]:
        """Every version that has a manifest, ascending."""
        found = (manifest_version(blob.path) for blob in self.storage.list(VERSIONS))
        return sorted(version for version in found if version is not None)

    def newest(self) -> int | None:
        """The newest version, or None where nothing was ever committed."""
        versions = self.versions()
        return versions[-1] if versions else None

    def load(self, version: int) -> Manifest:
        """The manifest of a version."""
        path = manifest_path(version)
        try:
            data = self.storage.read(path)
        except BlobNotFound:
            raise VersionNotFound(
                f"Version {version} does not exist in {self.storage.location}: it was never "
                "committed, or retention has removed it. `holdfast history` lists those there are."
            ) from None
        manifest = decode(data, f"{self.storage.location}/{path}")
        if manifest.version != version:
            raise Corruption(
                f"The manifest {self.storage.location}/{path} is that of version "
                f"{manifest.version}: a file was moved or copied. Run `holdfast verify`."
            )
        return manifest

    def publish(self, manifest: Manifest, grace_ms: int, based_at_ms: int) -> None:
        """Create the manifest's version: the commit point.

        `based_at_ms` is when, by the monotonic clock, its parent was known to be the newest.
        Raises Conflict when another writer has that version or a later one.
        """
        verdict = self._create(manifest)
        waited_ms = self._runtime.monotonic_ms() - based_at_ms
        if verdict is Verdict.COMMITTED and waited_ms * 2 >= grace_ms:
            verdict = still_newest(verdict, manifest.version, self.newest(), waited_ms, grace_ms)
            if verdict is Verdict.CONFLICT:
                self.storage.delete(manifest_path(manifest.version))
        if verdict is Verdict.CONFLICT:
            raise Conflict(
                f"Version {manifest.version} of {self.storage.location} was committed by another "
                "writer. This one must stop; reopen to continue from the newest version."
            )

    def _create(self, manifest: Manifest) -> Verdict:
        path, data = manifest_path(manifest.version), encode(manifest)
        failure: Unavailable | None = None
        for _ in range(_CREATE_ATTEMPTS):
            created: bool | None = None
            try:
                created = self.storage.create_if_absent(path, data)
            except Unavailable as error:
                failure = error
                log.warning("No clear answer on creating version %d: %s", manifest.version, error)
            existing = None if created else self._commit_id(manifest.version)
            verdict = judge_create(created, existing, manifest.commit_id)
            if verdict is not Verdict.RETRY:
                return verdict
        raise failure or Unavailable(f"Could not create {path} in {self.storage.location}.")

    def _commit_id(self, version: int) -> str | None:
        try:
            return self.load(version).commit_id
        except VersionNotFound:
            return None

    def tags(self) -> dict[str, int]:
        """Every tag with its version."""
        names = [blob.path.rpartition("/")[2] for blob in self.storage.list(TAGS)]
        found = {name: self._read_tag(name) for name in names}
        return {name: version for name, version in found.items() if version is not None}

    def tag(self, name: str, version: int) -> None:
        """Name a version. A name that is taken by another version is refused."""
        path = tag_path(name)
        self.load(version)
        body = json.dumps({"version": version})
        text = f"{_TAG_MAGIC} {xxhash.xxh3_64_hexdigest(body.encode())} {body}\n"
        if not self.storage.create_if_absent(path, text.encode()):
            taken = self._read_tag(name)
            if taken != version:
                raise InvalidArgument(
                    f"The tag {name!r} already names version {taken}. Remove it first, or choose "
                    "another name."
                )

    def untag(self, name: str) -> None:
        """Remove a tag; a missing one is refused."""
        path = tag_path(name)
        if self.storage.size(path) is None:
            raise InvalidArgument(f"There is no tag {name!r} in {self.storage.location}.")
        self.storage.delete(path)

    def _read_tag(self, name: str) -> int | None:
        path = tag_path(name)
        try:
            text = bytes(self.storage.read(path)).decode()
            magic, checksum, body = text[:14], text[15:31], text[32:-1]
            if magic == _TAG_MAGIC and checksum == xxhash.xxh3_64_hexdigest(body.encode()):
                return int(json.loads(body)["version"])
        except BlobNotFound:
            return None
        except UnicodeDecodeError:
            pass
        raise Corruption(
            f"The tag {self.storage.location}/{path} is damaged. Delete that file and tag the "
            "version again; until then nothing is cleaned up."
        )
