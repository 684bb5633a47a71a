"""What every storage must do, as a pytest class to inherit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.storage import BlobNotFound, Storage

_RACERS = 8
_RACES = 200


def content(storage: Storage, path: str) -> bytes:
    """A whole blob as bytes."""
    return bytes(storage.read(path))


def names(storage: Storage, prefix: str = "") -> list[str]:
    """The paths in a listing."""
    return [blob.path for blob in storage.list(prefix)]


class StorageConformance:
    """Inherit it in a class whose name starts with Test, and give the class a fixture `storage`.

    The fixture returns a new, empty `holdfast.engine.storage.Storage` that can be written to.
    Lower `races` if a round trip is slow, and `large_bytes` if memory is scarce. A storage with an
    `adopt` of its own sets `adopts`, and gives the class a fixture `neighbour`: another new storage
    that it can adopt blobs from.
    """

    races: int = _RACES
    large_bytes: int = 20 << 20
    adopts: bool = False

    @pytest.fixture
    def storage(self) -> Storage:
        """The storage under test."""
        raise NotImplementedError("give the class a fixture named storage")

    @pytest.fixture
    def neighbour(self) -> Storage:
        """Another new, empty storage, of the same kind where the one under test `adopts`."""
        return MemoryStorage()

    def test_written_blob_reads_back(self, storage: Storage) -> None:
        storage.write("0/0/1-a.delta", b"some bytes")
        assert content(storage, "0/0/1-a.delta") == b"some bytes"
        assert storage.size("0/0/1-a.delta") == 10

    def test_blob_written_in_pieces_is_their_sum(self, storage: Storage) -> None:
        with storage.open_writer("a") as writer:
            writer.write(b"one ")
            writer.write(memoryview(b"two "))
            writer.write(pa.py_buffer(b"three"))
        assert content(storage, "a") == b"one two three"

    def test_arrow_buffer_is_written_as_it_is(self, storage: Storage) -> None:
        storage.write("a", pa.py_buffer(b"\x00\xff" * 100))
        assert content(storage, "a") == b"\x00\xff" * 100

    def test_writer_copies_what_it_is_given(self, storage: Storage) -> None:
        scratch = bytearray(b"first")
        with storage.open_writer("a") as writer:
            writer.write(memoryview(scratch))
            scratch[:] = b"other"
        assert content(storage, "a") == b"first"

    def test_empty_blob_is_a_blob(self, storage: Storage) -> None:
        storage.write("empty", b"")
        assert content(storage, "empty") == b""
        assert storage.size("empty") == 0
        assert names(storage) == ["empty"]

    def test_large_blob_reads_back(self, storage: Storage) -> None:
        piece = bytes(range(256)) * 4096
        pieces = self.large_bytes // len(piece)
        with storage.open_writer("large") as writer:
            for _ in range(pieces):
                writer.write(piece)
        assert storage.size("large") == pieces * len(piece)
        assert storage.read("large").equals(pa.py_buffer(piece * pieces))

    def test_range_of_a_blob_is_read_alone(self, storage: Storage) -> None:
        storage.write("a/b", bytes(range(100)))
        for start, stop in [(0, 100), (0, 1), (10, 20), (99, 100), (5, 5), (90, 200), (100, 110)]:
            assert bytes(storage.read_range("a/b", start, stop)) == bytes(range(100))[start:stop]

    def test_missing_blob_is_not_found(self, storage: Storage) -> None:
        with pytest.raises(BlobNotFound):
            storage.read("nothing/here")
        with pytest.raises(BlobNotFound):
            storage.read_range("nothing/here", 0, 1)
        assert storage.size("nothing/here") is None

    def test_directory_is_no_blob(self, storage: Storage) -> None:
        storage.write("a/b/c", b"1")
        assert storage.size("a/b") is None
        with pytest.raises(BlobNotFound):
            storage.read("a/b")

    def test_nothing_lies_below_a_blob(self, storage: Storage) -> None:
        storage.write("a", b"1")
        assert names(storage, "a") == []
        assert storage.size("a/b") is None
        with pytest.raises(BlobNotFound):
            storage.read("a/b")
        storage.delete("a/b")
        assert names(storage) == ["a"]

    def test_blob_is_invisible_until_its_writer_closes(self, storage: Storage) -> None:
        writer = storage.open_writer("a/b")
        writer.write(b"half of")
        assert names(storage) == []
        assert storage.size("a/b") is None
        with pytest.raises(BlobNotFound):
            storage.read("a/b")
        writer.close()
        assert names(storage) == ["a/b"]

    def test_discarded_writer_leaves_nothing(self, storage: Storage) -> None:
        writer = storage.open_writer("a/b")
        writer.write(b"half of")
        writer.discard()
        assert names(storage) == []
        assert storage.size("a/b") is None

    def test_failing_block_discards_the_blob(self, storage: Storage) -> None:
        def write_half() -> None:
            with storage.open_writer("a") as writer:
                writer.write(b"half of")
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write_half()
        assert names(storage) == []

    def test_discard_after_close_changes_nothing(self, storage: Storage) -> None:
        writer = storage.open_writer("a")
        writer.write(b"whole")
        writer.close()
        writer.discard()
        assert content(storage, "a") == b"whole"

    def test_listing_is_sorted_and_has_sizes(self, storage: Storage) -> None:
        for path in ("b/2", "b/10", "a", "c/d/e/f"):
            storage.write(path, path.encode())
        assert names(storage) == ["a", "b/10", "b/2", "c/d/e/f"]
        assert [blob.size for blob in storage.list("")] == [1, 4, 3, 7]

    def test_listing_keeps_to_its_directory(self, storage: Storage) -> None:
        for path in ("v/1", "v/2/3", "versions/1", "w"):
            storage.write(path, b"x")
        assert names(storage, "v") == ["v/1", "v/2/3"]
        assert names(storage, "v/2") == ["v/2/3"]
        assert names(storage, "absent") == []

    def test_deleted_blob_is_gone(self, storage: Storage) -> None:
        storage.write("a/b", b"1")
        storage.write("a/c", b"2")
        storage.delete("a/b")
        assert names(storage) == ["a/c"]
        assert storage.size("a/b") is None

    def test_deleting_a_missing_blob_is_no_error(self, storage: Storage) -> None:
        storage.delete("nothing/here")

    def test_name_can_be_used_again_after_delete(self, storage: Storage) -> None:
        assert storage.create_if_absent("a", b"1")
        storage.delete("a")
        assert storage.create_if_absent("a", b"2")
        assert content(storage, "a") == b"2"

    def test_read_buffer_stays_valid_after_delete(self, storage: Storage) -> None:
        storage.write("a", b"still here" * 10_000)
        buffer = storage.read("a")
        storage.delete("a")
        assert bytes(buffer) == b"still here" * 10_000

    def test_create_if_absent_creates_once(self, storage: Storage) -> None:
        assert storage.create_if_absent("versions/1", b"mine") is True
        assert storage.create_if_absent("versions/1", b"theirs") is False
        assert content(storage, "versions/1") == b"mine"
        assert names(storage) == ["versions/1"]

    def test_create_if_absent_minds_written_blobs(self, storage: Storage) -> None:
        storage.write("a", b"written")
        assert storage.create_if_absent("a", b"created") is False
        assert content(storage, "a") == b"written"

    def test_create_if_absent_takes_empty_data(self, storage: Storage) -> None:
        assert storage.create_if_absent("a", b"") is True
        assert storage.create_if_absent("a", b"") is False
        assert content(storage, "a") == b""

    def test_one_of_eight_racers_wins_and_its_data_stands(self, storage: Storage) -> None:
        barrier = Barrier(_RACERS)

        def race(racer: int) -> list[bool]:
            won = []
            for number in range(self.races):
                barrier.wait()
                won.append(storage.create_if_absent(f"race/{number}", b"%d" % racer * 4096))
            return won

        with ThreadPoolExecutor(_RACERS) as pool:
            outcomes = list(pool.map(race, range(_RACERS)))
        for number in range(self.races):
            winners = [racer for racer in range(_RACERS) if outcomes[racer][number]]
            assert len(winners) == 1
            assert content(storage, f"race/{number}") == b"%d" % winners[0] * 4096

    def test_racers_never_see_half_a_blob(self, storage: Storage) -> None:
        whole = 1 << 20
        barrier = Barrier(2)

        def create(number: int) -> None:
            barrier.wait()
            storage.create_if_absent(f"whole/{number}", b"x" * whole)

        def watch(number: int) -> set[int]:
            barrier.wait()
            seen: set[int] = set()
            while whole not in seen:
                size = storage.size(f"whole/{number}")
                if size is not None:
                    seen |= {size, storage.read(f"whole/{number}").size}
            return seen

        with ThreadPoolExecutor(2) as pool:
            for number in range(10):
                done = pool.submit(create, number)
                assert pool.submit(watch, number).result() == {whole}
                done.result()

    def test_threads_write_side_by_side(self, storage: Storage) -> None:
        def write(number: int) -> None:
            storage.write(f"many/{number % 7}/{number}", b"%d" % number)

        with ThreadPoolExecutor(_RACERS) as pool:
            list(pool.map(write, range(100)))
        assert len(names(storage, "many")) == 100
        assert content(storage, "many/6/97") == b"97"

    def test_sweep_spares_what_is_being_written(self, storage: Storage) -> None:
        writer = storage.open_writer("a")
        writer.write(b"slowly")
        storage.sweep(3600)
        writer.close()
        assert content(storage, "a") == b"slowly"

    def test_adopted_blob_is_there_and_one_that_is_not_adopted_left_nothing(
        self, storage: Storage, neighbour: Storage
    ) -> None:
        data = bytes(range(256)) * 100
        neighbour.write("0/0/1-a b%20é.delta", data)
        is_there = storage.adopt(neighbour, "0/0/1-a b%20é.delta")
        assert is_there is self.adopts
        assert names(storage) == (["0/0/1-a b%20é.delta"] if is_there else [])
        assert names(neighbour) == ["0/0/1-a b%20é.delta"]
        if is_there:
            assert content(storage, "0/0/1-a b%20é.delta") == data
            assert storage.adopt(neighbour, "0/0/1-a b%20é.delta") is True
            neighbour.delete("0/0/1-a b%20é.delta")
            assert content(storage, "0/0/1-a b%20é.delta") == data

    def test_missing_blob_is_not_adopted(self, storage: Storage, neighbour: Storage) -> None:
        try:
            is_there = storage.adopt(neighbour, "0/0/1-a.delta")
        except BlobNotFound:
            is_there = False
        assert is_there is False
        assert names(storage) == []

    def test_location_is_one_line_of_text(self, storage: Storage) -> None:
        assert storage.location
        assert "\n" not in storage.location
        assert storage.read_only is False
