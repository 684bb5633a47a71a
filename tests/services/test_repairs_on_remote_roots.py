"""Keys are repaired on roots of every kind, on real servers; a race has one winner there too."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import admin
from holdfast.engine.versions.journal import Journal
from holdfast.errors import Conflict

pytestmark = pytest.mark.services
Place = tuple[str, dict[str, str]]
"""A new root and how it is reached."""


def on_hdfs(request: pytest.FixtureRequest) -> Place:
    return f"{request.getfixturevalue('hdfs').url}/repairs/{secrets.token_hex(4)}", {}


def on_s3(request: pytest.FixtureRequest) -> Place:
    return f"s3://state/repairs/{secrets.token_hex(4)}", request.getfixturevalue("minio").options


def on_cassandra(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue("cassandra")
    name = f"repairs/{secrets.token_hex(4)}"
    return f"cassandra://{server.address}/state/{name}", server.options


def on_dynamodb(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue("dynamodb")
    return f"dynamodb://{server.region}/repairs/{secrets.token_hex(4)}", server.options


PLACES: dict[str, Callable[[pytest.FixtureRequest], Place]] = {
    "hdfs": on_hdfs,
    "s3": on_s3,
    "cassandra": on_cassandra,
    "dynamodb": on_dynamodb,
}


@pytest.fixture(params=sorted(PLACES))
def place(request: pytest.FixtureRequest) -> Place:
    return PLACES[request.param](request)


def test_a_root_on_a_server_is_repaired_and_a_race_has_one_winner(place: Place) -> None:
    location, options = place
    with holdfast.open(
        location, key="k string", value="v long", partitions=2, options=options
    ) as db:
        with db.update() as store:
            for name in "abc":
                store.put((name,), (1,))
        wanted = [{"key": "a", "value": 2}, {"key": "ö %", "value": 3}]
        admin.repair(location, set=wanted, delete="b", options=options).run()
        assert db.refresh() == 2
        assert {key[0]: value[0] for key, value in db.at(2)} == {"a": 2, "c": 1, "ö %": 3}

        plans = [
            admin.repair(location, set={"key": "c", "value": at}, options=options) for at in (7, 8)
        ]
        outcomes: list[Any] = []

        def work(plan: admin.RepairPlan) -> None:
            try:
                outcomes.append(plan.run().version)
            except Conflict:
                outcomes.append("conflict")

        threads = [threading.Thread(target=work, args=(plan,)) for plan in plans]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert outcomes.count(3) <= 1
        assert outcomes.count("conflict") == 2 - outcomes.count(3)
        done = outcomes.count(3)
        assert db.refresh() == 2 + done
        assert (db.get(("c",)) in [(7,), (8,)]) == bool(done)
    root = holdfast.reading.open_root(location, options=options)
    assert [line.entry.version for line in Journal(root.log).lines()] == [3, 2][-1 - done :]
    assert holdfast.reading.verify(root).intact
