"""Checks of the machine and of a root, each with advice."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from holdfast import schemes
from holdfast.backends.local import LocalStorage
from holdfast.backends.locations import open_storage
from holdfast.engine.storage import Storage
from holdfast.errors import HoldfastError

Status = Literal["ok", "note", "failed"]
JAVA_NEEDED = 17
_FOLDER = "holdfast-doctor"
_RACES, _RACERS = 25, 8


@dataclass(frozen=True, slots=True)
class Check:
    """One result of the doctor; `advice` says what to do if it is not ok."""

    name: str
    status: Status
    found: str
    advice: str = ""


def is_healthy(checks: Sequence[Check]) -> bool:
    """Whether no check failed; a note is no failure."""
    return not any(check.status == "failed" for check in checks)


def examine(location: str | None) -> list[Check]:
    """Run every check; those of a root only if `location` is given."""
    spark = _version("pyspark")
    checks = [_python(), _spark(spark), _java(needed=spark is not None), _pandas()]
    checks += [_worker_python(needed=spark is not None), _extras()]
    if location is not None:
        checks += _root(location)
    return checks


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Check:
    return Check("Python", "ok", f"{sys.version.split()[0]} at {sys.executable}")


def _spark(version: str | None) -> Check:
    if version is None:
        return Check(
            "PySpark",
            "note",
            "not installed",
            "Only streams need it: pip install 'holdfast[spark]'",
        )
    if int(version.split(".")[0]) < 4:
        return Check(
            "PySpark", "failed", version, "Streams need 4.0 or newer: pip install 'pyspark>=4'"
        )
    return Check("PySpark", "ok", version)


def _java(*, needed: bool) -> Check:
    status: Status = "failed" if needed else "note"
    home = os.environ.get("JAVA_HOME")
    command = os.path.join(home, "bin", "java") if home else shutil.which("java")
    install = f"Streams need Java {JAVA_NEEDED} or newer: install a JRE, or point JAVA_HOME to one"
    if command is None:
        return Check("Java", status, "not found", install)
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return Check("Java", status, f"{command} does not run", install)
    match = re.search(r'version "(\d+)(?:\.(\d+))?[^"]*"', done.stderr + done.stdout)
    if match is None:
        return Check("Java", status, f"{command} does not say its version", install)
    major = int(match[2] or 0) if match[1] == "1" else int(match[1])
    found = f"{match[0].split(chr(34))[1]} at {command}"
    if major < JAVA_NEEDED:
        return Check("Java", status, found, install)
    return Check("Java", "ok", found)


def _pandas() -> Check:
    version = _version("pandas")
    if version is None:
        return Check(
            "pandas",
            "note",
            "not installed",
            "Only pandas-based processors need it: pip install 'holdfast[pandas]'",
        )
    if int(version.split(".")[0]) >= 3:
        return Check(
            "pandas", "failed", version, "PySpark does not support pandas 3: pip install 'pandas<3'"
        )
    return Check("pandas", "ok", version)


def _worker_python(*, needed: bool) -> Check:
    """Spark's workers must run the same version of Python, with holdfast installed."""
    name = "PYSPARK_PYTHON"
    advice = f"export PYSPARK_PYTHON={sys.executable}"
    chosen = os.environ.get(name)
    command = chosen or "python3"
    version, prefix = _python_at(command)
    what = chosen or (
        "not set: streams on a local master use this Python, others python3 from the PATH"
    )
    mine = f"{sys.version_info.major}.{sys.version_info.minor}"
    if version != mine:
        found = "which does not run" if version is None else f"which is Python {version}"
        status: Status = "failed" if needed and chosen else "note"
        return Check(name, status, f"{what}, {found}; this is {mine}", advice)
    if prefix != sys.prefix:
        return Check(
            name,
            "note",
            f"{what}, in another environment: {prefix}",
            f"Install holdfast there too, or {advice}",
        )
    return Check(name, "ok", f"{what}, this Python" if chosen is None else what)


def _python_at(command: str) -> tuple[str | None, str]:
    """Version and environment of a Python; (None, "") if it does not run."""
    script = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.prefix)"
    try:
        done = subprocess.run([command, "-c", script], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None, ""
    lines = done.stdout.splitlines()
    return (lines[0], lines[1]) if done.returncode == 0 and len(lines) == 2 else (None, "")


def _extras() -> Check:
    packages = {each.extra: each.package for each in schemes.SCHEMES if each.extra and each.package}
    versions = {extra: _version(name) for extra, name in {**packages, "sql": "duckdb"}.items()}
    have = [extra for extra, version in versions.items() if version is not None]
    lack = [extra for extra, version in versions.items() if version is None]
    found = f"installed: {', '.join(have) or 'none'}"
    if not lack:
        return Check("extras", "ok", found)
    return Check("extras", "note", found, f"Where needed: pip install 'holdfast[{','.join(lack)}]'")


def _root(location: str) -> Iterator[Check]:
    try:
        storage = open_storage(location)
    except HoldfastError as error:
        yield Check("root", "failed", location, error.message)
        return
    if storage.read_only:
        yield _readable(storage)
        yield Check(
            "create-if-absent",
            "note",
            "not proven for this scheme: the root can only be read",
            f"Write to a local root, or to {schemes.remote_names()}",
        )
        return
    if isinstance(storage, LocalStorage) and os.path.isfile(storage.location):
        yield Check("root", "failed", f"{storage.location} is a file", "Name a folder")
        return
    if isinstance(storage, LocalStorage) and not os.path.isdir(storage.location):
        yield _missing(storage.location)
        return
    yield Check("root", "ok", storage.location)
    # always the same folder, since a database records each for good; the names in it are unique
    trial = f"{_FOLDER}/{secrets.token_hex(8)}"
    try:
        yield _writes(storage, trial)
        yield _creates_once(storage, trial)
    finally:
        _remove(storage, trial)


def _readable(storage: Storage) -> Check:
    try:
        found = len(storage.list("versions"))
    except HoldfastError as error:
        return Check("root", "failed", storage.location, error.message)
    return Check("root", "ok", f"{storage.location}, {found} versions")


def _missing(location: str) -> Check:
    """A root that does not exist yet. Nothing is written outside of it, so nothing is tried."""
    above = next(folder for folder in Path(location).parents if folder.is_dir())
    if os.access(above, os.W_OK | os.X_OK):
        found = f"{location} does not exist yet; {above} says it can be written"
        return Check("root", "note", found, "To try writing there, make the folder and repeat this")
    found = f"{location} does not exist, and {above} cannot be written"
    return Check("root", "failed", found, "Name a place that this user may write to")


def _writes(storage: Storage, trial: str) -> Check:
    data = secrets.token_bytes(1 << 16)
    try:
        storage.write(f"{trial}-blob", data)
        same = bytes(storage.read(f"{trial}-blob")) == data
    except HoldfastError as error:
        return Check("writing", "failed", "refused", error.message)
    if not same:
        return Check(
            "writing",
            "failed",
            "other bytes came back",
            "Do not use this disk; check it for errors",
        )
    return Check("writing", "ok", "64 KiB written, synced and read back")


def _creates_once(storage: Storage, trial: str) -> Check:
    """Each race for one name must have exactly one winner, who reads back his own bytes."""
    name = "create-if-absent"
    bad = 0
    is_local = isinstance(storage, LocalStorage)
    hint = " The file system must support hard links." if is_local else ""
    try:
        for race in range(_RACES):
            bad += not _one_winner(storage, f"{trial}-{race}")
    except HoldfastError as error:
        return Check(
            name,
            "failed",
            "refused",
            f"{error.message}{hint}",
        )
    if bad:
        return Check(
            name,
            "failed",
            f"{bad} of {_RACES} races had no single winner",
            "Do not write to this root: two writers could commit one version",
        )
    return Check(name, "ok", f"{_RACES} races of {_RACERS}, one winner each")


def _one_winner(storage: Storage, path: str) -> bool:
    barrier = threading.Barrier(_RACERS)
    outcomes: list[bool | HoldfastError] = [False] * _RACERS

    def run(number: int) -> None:
        barrier.wait()
        try:
            outcomes[number] = storage.create_if_absent(path, str(number).encode())
        except HoldfastError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(_RACERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for outcome in outcomes:
        if isinstance(outcome, HoldfastError):
            raise outcome
    winners = [number for number, outcome in enumerate(outcomes) if outcome]
    return len(winners) == 1 and bytes(storage.read(path)) == str(winners[0]).encode()


def _remove(storage: Storage, trial: str) -> None:
    with suppress(HoldfastError):
        for blob in storage.list(_FOLDER):
            if blob.path.startswith(f"{trial}-"):
                storage.delete(blob.path)
    if isinstance(storage, LocalStorage):
        with suppress(OSError):
            os.rmdir(os.path.join(storage.location, _FOLDER))
