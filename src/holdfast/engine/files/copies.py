"""Second copies: data that exists nowhere else yet is written twice, under two names.

Until a merge includes a delta's rows, the delta is the only file that has them: without it, every
version since would be damaged. Therefore its file, or the pack it shares, is written twice. `chain`
reads the second copy when the first is damaged. `retention` removes it once a merge holds the rows
as well: from then on the merge and its inputs are copies of each other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress

import pyarrow as pa
import xxhash

from holdfast.conf import AUTOMATIC, StateStoreConf
from holdfast.engine.files.filenames import copy_path
from holdfast.engine.storage import BlobNotFound, BlobWriter, Storage
from holdfast.errors import IllegalState, Unavailable

_PIECE_BYTES = 8 << 20
_WORTH_A_THREAD_BYTES = 1 << 20


def keeps_copies(conf: StateStoreConf, storage: Storage) -> bool:
    """Whether new deltas and packs in this storage are written twice under these settings.

    By default they are, but not in remote storage, which replicates its data itself.
    """
    if conf.keep_copies == AUTOMATIC:
        return not storage.source.is_remote
    return conf.keep_copies == "on"


def open_writer(storage: Storage, path: str, conf: StateStoreConf) -> BlobWriter:
    """A writer for data that exists nowhere else; writes it twice where the settings say so."""
    if not keeps_copies(conf, storage):
        return storage.open_writer(path)
    return _TwiceWriter(storage, path)


def copy_files(storage: Storage, path: str, conf: StateStoreConf) -> list[str]:
    """The paths of the files that such a writer creates."""
    return [path, copy_path(path)] if keeps_copies(conf, storage) else [path]


def is_there(path: str, listed: Collection[str]) -> bool:
    """Whether a file, or its second copy, is among those that were listed."""
    return path in listed or copy_path(path) in listed


def missing_file(storage: Storage, path: str) -> IllegalState:
    """The error of a writer whose file is gone before the commit: it was cleaned up as a loser."""
    return IllegalState(
        f"The file {path} of the next version is missing from {storage.location}. Nothing was "
        "committed. Run the batch again."
    )


def not_as_written(storage: Storage, path: str) -> Unavailable:
    """The error for a storage that returns other bytes than were written to it."""
    return Unavailable(
        f"{storage.location} does not return {path} as it was written. Check the disk or the "
        "server (`holdfast doctor`), then try again."
    )


class _TwiceWriter(BlobWriter):
    """Writes a blob and its second copy, and reads the copy back before the blob counts as written.

    The two are written at the same time where that is faster.
    """

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path, self._copy_path = path, copy_path(path)
        self._first = storage.open_writer(path)
        try:
            self._second = storage.open_writer(self._copy_path)
        except BaseException:
            self._first.discard()
            raise
        self._digest, self._size = xxhash.xxh3_64(), 0
        self._closed: list[str] = []
        at_once = storage.source.writes_at_once
        self._pool = ThreadPoolExecutor(1, "holdfast-copy") if at_once else None

    def write(self, data: bytes | memoryview | pa.Buffer) -> object:
        view = memoryview(data).cast("B")
        self._digest.update(view)
        self._size += len(view)
        if self._pool is None or len(view) < _WORTH_A_THREAD_BYTES:
            self._second.write(view)
            return self._first.write(view)
        return self._both(lambda: self._first.write(view), lambda: self._second.write(view))

    def close(self) -> None:
        self._both(self._close_first, self._close_second)
        self._end()

    def discard(self) -> None:
        self._end()
        self._first.discard()
        self._second.discard()
        for path in self._closed:
            with suppress(Unavailable):
                self._storage.delete(path)

    def _both(self, first: Callable[[], object], second: Callable[[], object]) -> object:
        """Run both, at the same time if there is a thread for it, and wait for both to end."""
        if self._pool is None:
            done = first()
            second()
            return done
        beside: Future[object] = self._pool.submit(second)
        try:
            done = first()
        finally:
            failure = beside.exception()
        if failure is not None:
            raise failure
        return done

    def _close_first(self) -> None:
        self._first.close()
        self._closed.append(self._path)

    def _close_second(self) -> None:
        self._second.close()
        self._closed.append(self._copy_path)
        self._read_back()

    def _read_back(self) -> None:
        """Check that the copy is what was written, then drop it from the page cache.

        A local disk may answer from that cache. This is enough while there are two copies; a merge,
        after which only one is left, is read from the disk itself.
        """
        source, path, found = self._storage.source, self._copy_path, xxhash.xxh3_64()
        try:
            for start in range(0, self._size, _PIECE_BYTES):
                stop = min(start + _PIECE_BYTES, self._size)
                found.update(source.read_range(path, start, stop))
        except BlobNotFound:
            raise missing_file(source, path) from None
        if found.digest() != self._digest.digest():
            raise not_as_written(source, path)
        source.cool(path)

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
