"""Which storage a root means."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.backends.filesystem import FsspecStorage
from holdfast.backends.local import LocalStorage
from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import Storage


def open_storage(
    location: str | os.PathLike[str], options: Mapping[str, str] | None = None
) -> Storage:
    """The storage for a root: a path or `file:` URI is local, `memory://name` lives in this
    process, any other scheme goes through fsspec and can be read.

    `options` are handed to the fsspec filesystem.
    """
    text = os.fspath(location)
    scheme = urlsplit(text).scheme if "://" in text or text.startswith("file:") else ""
    if scheme == "":
        return LocalStorage(Path(text).expanduser())
    if scheme in ("file", "local"):
        return LocalStorage(unquote(urlsplit(text).path))
    if scheme == "memory":
        return MemoryStorage.named(text.removeprefix("memory://").strip("/"))
    return FsspecStorage(text, dict(options or {}))
