"""Downloads: made once, kept in a cache outside the repository, whole or not at all."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from servers.base import ServerError

_MAVEN_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_ATTEMPTS = 3
_ENSURE_MAVEN = Path(__file__).parent.parent / "ensure_maven"


@dataclass(frozen=True)
class Artifact:
    """A Maven artifact, `group:artifact:version`, without some of what it depends on.

    What is left out is named `group:artifact`, either of them possibly `*`.
    """

    coordinates: str
    without: tuple[str, ...] = ()

    def xml(self, *more: tuple[str, str]) -> str:
        """The artifact as a dependency in a POM, with tags besides its coordinates."""
        parts = zip(("groupId", "artifactId", "version"), self.coordinates.split(":"), strict=True)
        left_out = "".join(
            f"<exclusion>{_tag('groupId', group)}{_tag('artifactId', name)}</exclusion>"
            for group, _, name in (each.partition(":") for each in self.without)
        )
        inside = "".join(_tag(*part) for part in (*parts, *more))
        inside += f"<exclusions>{left_out}</exclusions>"
        return f"<dependency>{inside}</dependency>"


def fetch_jars(name: str, *artifacts: Artifact, versions_of: Artifact | None = None) -> list[Path]:
    """The jars of `artifacts` and of all they need, from the cache or by Maven.

    Libraries that belong to them and are no jars are beside them. What the bill of materials
    `versions_of` lists is taken in the versions it names.
    """
    pom = _pom(name, artifacts, versions_of)
    folder = cached(name, pom, lambda unfinished: _run_maven(name, pom, unfinished))
    return sorted(folder.glob("*.jar"))


def _pom(name: str, artifacts: tuple[Artifact, ...], versions_of: Artifact | None) -> str:
    needed = "".join(each.xml() for each in artifacts)
    managed = ""
    if versions_of is not None:
        bill = versions_of.xml(("type", "pom"), ("scope", "import"))
        managed = (
            f"<dependencyManagement><dependencies>{bill}</dependencies></dependencyManagement>"
        )
    return (
        "<project><modelVersion>4.0.0</modelVersion><groupId>holdfast</groupId>"
        f"{_tag('artifactId', name)}<version>1</version>"
        f"{managed}<dependencies>{needed}</dependencies></project>"
    )


def cached(name: str, recipe: str, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, made once for each `recipe`.

    It appears under its name when it is complete. One process makes, others wait for it; what an
    interrupted one left is thrown away.
    """
    cache = Path(os.environ.get("HOLDFAST_CACHE") or "~/.cache/holdfast").expanduser().absolute()
    folder = cache / f"{name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f"{name}.lock"):
        if not folder.is_dir():
            unfinished = cache / f".{folder.name}"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however it ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run_maven(name: str, pom: str, folder: Path) -> None:
    if shutil.which("mvn") is None and subprocess.run(["sh", _ENSURE_MAVEN]).returncode != 0:
        raise ServerError(f"{name} is fetched by Maven, which is missing; see the line above.")
    (folder / "pom.xml").write_text(pom)
    command = ["mvn", "-q", "-B", "-U", "--strict-checksums", _MAVEN_GOAL,
               "-DincludeScope=runtime", f"-DoutputDirectory={folder}"]  # fmt: skip
    for _ in range(_ATTEMPTS):
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode == 0:
            return
    said = "\n".join((done.stdout + done.stderr).splitlines()[-10:])
    raise ServerError(
        f"Maven did not fetch {name} in {_ATTEMPTS} attempts; is there a network? It said:\n{said}"
    )


def _tag(name: str, text: str) -> str:
    return f"<{name}>{escape(text)}</{name}>"
