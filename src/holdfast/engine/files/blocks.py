"""The bytes of a segment before its tail, in blocks that are checked when first touched."""

from __future__ import annotations

import pyarrow as pa
import xxhash

from holdfast.engine.files.extent import BufferExtent, Extent
from holdfast.engine.storage import BlobNotFound

_SUM_DIGITS = 16


class BadSegment(Exception):
    """A segment is missing or not what was written. The chain falls back or gives up."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"{name}: {why}")
        self.name = name
        self.why = why


class Blocks:
    """Reads an extent of `size` bytes up to its tail. Whatever is not as written is BadSegment.

    `sums` are the checksums of all blocks, `trusted` takes them for checked.
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
        """Whether the bytes are at hand, and checked where they lie."""
        return isinstance(self._extent, BufferExtent)

    def message(self, start: int, stop: int) -> pa.Buffer:
        """Bytes start..stop: checked if they are copies, only the first block if they are mapped.

        What else lies under columns is then checked by `check_under`.
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
        """Check the blocks under a buffer, if it lies in them."""
        start = self._extent.place(buffer)
        if start is not None:
            self.check(start, start + buffer.size)

    def holds(self, buffer: pa.Buffer) -> bool:
        """Whether a buffer lies in the blocks, rather than in memory of its own."""
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
        """Check every block anew from now on."""
        self._checked = bytearray(len(self._checked))

    def _compare(self, number: int, data: pa.Buffer) -> None:
        at = _SUM_DIGITS * number
        if xxhash.xxh3_64_hexdigest(data) != self._sums[at : at + _SUM_DIGITS]:
            raise BadSegment(self._name, f"block {number} does not have its checksum")


def read_part(name: str, extent: Extent, start: int, stop: int) -> pa.Buffer:
    """Bytes start..stop of an extent, all of them."""
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
        """Go to a place counted from the start (0), from here (1) or from the end (2)."""
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        """The place the next read starts at."""
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
