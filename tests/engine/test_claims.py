"""Claims: of any number of drivers on one root the newest one continues, and it is named."""

from __future__ import annotations

import itertools
import threading

import pytest

from holdfast.backends.memory import MemoryStorage
from holdfast.engine.files.filenames import CLAIMS, claim_number, claim_path
from holdfast.engine.storage import BlobInfo, Runtime, Storage
from holdfast.engine.versions.claims import Claims
from holdfast.errors import Conflict, Unavailable
from holdfast.testing.faults import Call, Fault, FaultyStorage


def claims_on(storage: Storage) -> Claims:
    return Claims(storage, Runtime.system())


def numbers(storage: Storage) -> list[int | None]:
    return [claim_number(blob.path) for blob in storage.list(CLAIMS)]


def test_the_newest_claim_stops_every_earlier_one() -> None:
    storage = MemoryStorage("claims")
    drivers = [claims_on(storage) for _ in range(4)]
    for newest, driver in enumerate(drivers):
        assert driver.take().number == newest + 1
        driver.check()
        assert driver.is_newest
        for earlier in drivers[:newest]:
            assert not earlier.is_newest
            with pytest.raises(Conflict, match=r"process \d+ on .+, started 20.+ UTC"):
                earlier.check()


def test_a_driver_without_a_claim_is_neither_newest_nor_overtaken() -> None:
    storage = MemoryStorage("claims")
    reader = claims_on(storage)
    claims_on(storage).take()
    assert not reader.is_newest
    reader.check()


def test_drivers_that_claim_at_the_same_time_get_different_numbers() -> None:
    storage = MemoryStorage("claims")
    drivers, start = [claims_on(storage) for _ in range(16)], threading.Barrier(16)

    def claim(driver: Claims) -> None:
        start.wait()
        driver.take()

    threads = [threading.Thread(target=claim, args=(driver,)) for driver in drivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(driver.is_newest for driver in drivers) == 1
    assert len(set(numbers(storage))) == 16


def test_a_claim_whose_answer_was_lost_is_recognised() -> None:
    storage = FaultyStorage(MemoryStorage("claims"))
    calls = itertools.count()

    def lose_the_first(call: Call) -> Fault | None:
        is_first = call.operation == "create_if_absent" and next(calls) == 0
        return Fault.LOST_REPLY if is_first else None

    storage.plan = lose_the_first
    driver = claims_on(storage)
    assert driver.take().number == 1
    assert numbers(storage) == [1]
    assert driver.is_newest


def test_a_claim_that_may_not_have_been_made_is_unavailable() -> None:
    storage = FaultyStorage(MemoryStorage("claims"))
    storage.plan = lambda call: Fault.ERROR if call.operation == "create_if_absent" else None
    with pytest.raises(Unavailable):
        claims_on(storage).take()
    assert numbers(storage) == []


def test_a_list_that_is_out_of_date_never_gives_a_number_below_the_newest() -> None:
    class Stale(MemoryStorage):
        lag = 0

        def list(self, prefix: str) -> list[BlobInfo]:
            found = super().list(prefix)
            if self.lag:
                self.lag -= 1
                return found[:-2]
            return found

    storage = Stale("claims")
    for _ in range(5):
        claims_on(storage).take()
    storage.delete(claim_path(4))
    storage.lag = 1
    newcomer = claims_on(storage)
    assert newcomer.take().number == 6
    assert newcomer.is_newest


def test_old_claims_go_and_their_holders_stay_overtaken_while_they_may_run() -> None:
    storage = MemoryStorage("claims")
    drivers = [claims_on(storage) for _ in range(50)]
    for driver in drivers:
        driver.take()
    assert len(numbers(storage)) == 20
    assert [driver.is_newest for driver in drivers[-20:]] == [False] * 19 + [True]


def test_a_damaged_claim_counts_all_the_same() -> None:
    storage = MemoryStorage("claims")
    older = claims_on(storage)
    older.take()
    storage.write(claim_path(2), b"\0\0")
    with pytest.raises(Conflict, match="an unknown process"):
        older.check()
    newcomer = claims_on(storage)
    assert newcomer.take().number == 3
