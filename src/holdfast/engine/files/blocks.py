"""The bytes of a segment before its tail, in blocks that are checked when first touched."""

from __future__ import annotations

import pyarrow as pa
import xxhash

from holdfast.engine.files.extent import BufferExtent, Extent
from holdfast.engine.storage import BlobNotFound

_SUM_DIGITS = 16


class BadSegment(Exception):
    """A segment is missing or damaged. The chain falls back to other files, or gives up."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class Blocks:
    """Reads an extent of `size` bytes up to its tail. Raises BadSegment for damaged bytes.

    `sums` are the checksums of all blocks. `trusted` treats all blocks as checked already.
    """

    def __init__(
        self, name: str, extent: Extent, size: int, block_bytes: int, sums: str, *, trusted: bool
    ) -> None:
        self._name = name
        self._extent = extent
        self._size = size
        self._block_bytes = block_bytes
        self._sums = sums
        count = len(sums) // _SUM_DIGITS
        self._checked = bytearray(b"\1" * count if trusted else count)

    @property
    def is_mapped(self) -> bool:
        """Whether the bytes are in memory or mapped, and can be checked in place."""
        return isinstance(self._extent, BufferExtent)

    def message(self, start: int, stop: int) -> pa.Buffer:
        """Bytes start..stop, all of them checked if they are copies.

        If they are mapped, only the first block is checked: it has the message's header. The other
        blocks are checked by `check_under` when a column is used, so that unused columns are
        never read from the disk.
        """
        if self.is_mapped:
            self.check(start, min(stop, start + self._block_bytes))
            return self._extent.part(start, stop)
        step = self._block_bytes
        low, high = start // step * step, min(-(-stop // step) * step, self._size)
        data = read_part(self._name, self._extent, low, high)
        for at in range(low, high, step):
            self._compare(at // step, data[at - low : at - low + step])
        return data[start - low : stop - low]

    def check_under(self, buffer: pa.Buffer) -> None:
        """Check the blocks that a buffer points into, if it does."""
        start = self._extent.place(buffer)
        if start is not None:
            self.check(start, start + buffer.size)

    def holds(self, buffer: pa.Buffer) -> bool:
        """Whether a buffer points into the blocks; otherwise it has its own memory."""
        return self._extent.place(buffer) is not None

    def check(self, start: int, stop: int) -> None:
        """Check the blocks of bytes start..stop that were not checked before."""
        step, checked = self._block_bytes, self._checked
        for number in range(start // step, min(-(-stop // step), len(checked))):
            if not checked[number]:
                low, high = number * step, min((number + 1) * step, self._size)
                self._compare(number, read_part(self._name, self._extent, low, high))
                checked[number] = 1

    def forget(self) -> None:
        """Forget which blocks were checked, so that all of them are checked again."""
        self._checked = bytearray(len(self._checked))

    def _compare(self, number: int, data: pa.Buffer) -> None:
        at = _SUM_DIGITS * number
        if xxhash.xxh3_64_hexdigest(data) != self._sums[at : at + _SUM_DIGITS]:
            raise BadSegment(self._name, f"block {number} does not have its checksum")


def read_part(name: str, extent: Extent, start: int, stop: int) -> pa.Buffer:
    """Bytes start..stop of an extent; BadSegment when some of them are missing."""
    try:
        data = extent.part(start, stop)
    except BlobNotFound:
        raise BadSegment(name, "the file is missing") from None
    if data.size < stop - start:
        raise BadSegment(name, f"it ends after {start + data.size} bytes")
    return data


class TailFile:
    """A file object for Arrow of which only the end can be read."""

    closed = False

    def __init__(self, tail: pa.Buffer, size: int) -> None:
        self._tail, self._size, self._at = tail, size, 0

    def read(self, count: int) -> pa.Buffer:
        """The next `count` bytes, which lie in the tail."""
        start = self._at - (self._size - self._tail.size)
        self._at += count
        return self._tail[start : start + count]

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move to a position counted from the start (0), from here (1) or from the end (2)."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """The position at which the next read starts."""
        return self._at

    def close(self) -> None:
        """End reading."""
        self.closed = True

    def readable(self) -> bool:
        """Yes."""
        return True

    def writable(self) -> bool:
        """No."""
        return False

    def seekable(self) -> bool:
        """Yes."""
        return True
