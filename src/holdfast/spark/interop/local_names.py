"""Names for finished files on a local disk: given once, and kept when the power fails.

Hadoop's own file system for local disks syncs nothing: after a power failure a file that has its
name may be empty, or have lost the name again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

from holdfast.backends.local import sync_directory
from holdfast.errors import Unavailable

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EXDEV, errno.EMLINK)
_NO_SYNC = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EACCES, errno.EPERM)
"""What a file system answers that cannot sync; it may keep files all the same."""


def sync_files(folder: str, names: Iterable[str]) -> None:
    """Have files below a folder, and their names in it, survive a power failure.

    Raises Unavailable if the disk fails.
    """
    files = [os.path.join(folder, name) for name in names]
    above = {folder}
    for file in files:
        while (parent := os.path.dirname(file)) not in above:
            above.add(parent)
            file = parent
    try:
        for path in (*files, *sorted(above)):
            _sync(path)
    except OSError as error:
        raise Unavailable(f"Could not write {folder} to the disk for good: {error}.") from error


def link_if_absent(source: str, target: str) -> bool | None:
    """Rename a finished file, durably, unless the name is taken; whether it did.

    None if the disk has no hard links: a link fails where the name is taken, and a rename does not.
    False also if somebody else has renamed the source. Raises Unavailable if the disk fails.
    """
    folder = os.path.dirname(target)
    try:
        _sync(source)
        os.link(source, target)
    except FileNotFoundError:
        return False
    except FileExistsError:
        _sync(folder)  # whoever has made it may have died before it was synced
        return False
    except OSError as error:
        if error.errno in _NO_LINKS:
            return None
        raise _failure(target, error) from error
    try:
        _sync(folder)
    except OSError as error:
        raise _failure(target, error) from error
    checksum = os.path.join(os.path.dirname(source), f".{os.path.basename(source)}.crc")
    for left in (source, checksum):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(left)
    return True


def _sync(path: str) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power failure."""
    try:
        sync_directory(path)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _failure(target: str, error: OSError) -> Unavailable:
    return Unavailable(f"Could not move a finished file to {target}: {error}.")
