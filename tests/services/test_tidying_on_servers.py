"""Clean-up, compaction and requests for it on every kind of server."""

from __future__ import annotations

import pytest
from remotes import Remote

import holdfast
from holdfast import admin, reading
from holdfast.engine.versions.journal import Journal

pytestmark = pytest.mark.services
CONF = {"min_versions_to_retain": 2, "grace_period_ms": 0, "pack_threshold_bytes": 0}


def segments(location: str, options: dict[str, str]) -> list[int]:
    root = reading.open_root(location, options=options)
    return [len(chain.segments) for chain in root.chains()]


def test_a_store_on_every_kind_of_server_is_compacted_and_cleaned(remote: Remote) -> None:
    _, location, options = remote
    with holdfast.open(
        location, key="k string", value="v long", partitions=2, conf=CONF, options=options
    ) as db:
        for number in range(4):
            with db.update() as update:
                update.put(("a",), (number,))
                update.put((str(number),), (number,))
        db.tag("mine", 1)
        state = dict(db.at(4).iterator())
    done = admin.compact(location, options=options, reason="reads are slow").run()
    assert done.version == 5
    assert max(segments(location, options)) == 1
    plan = admin.gc(location, options=options)
    assert plan.todo.versions == [0, 2]
    plan.run()
    root = reading.open_root(location, options=options)
    assert root.versions == (1, 3, 4, 5)
    assert reading.verify(root).intact
    with holdfast.open(location, conf=CONF, options=options) as db:
        assert dict(db.at(5).iterator()) == state
        with db.update() as update:
            update.put(("a",), (10,))
        admin.compact(location, request=True, options=options).run()
        db.maintain()
        with db.update() as update:
            update.put(("b",), (11,))
        assert dict(db.at(7).iterator()) == state | {("a",): (10,), ("b",): (11,)}
    assert max(segments(location, options)) == 2, "a snapshot below the newest changes"
    root = reading.open_root(location, options=options)
    assert root.storage.list("requests") == []
    assert reading.verify(root).intact
    kinds = [line.entry.kind for line in Journal(root.log).lines()]
    assert kinds == ["compact", "gc", "compact"]
