"""Write the golden files: roots of today's format with what they must read back as.

    .venv/bin/python dev/make_golden.py [FOLDER]

It writes a folder format-<n> for each format, by default below tests/recovery/golden. Clocks and
ids are made up, so with the pinned pyarrow the bytes are the same each time. Files of a format that
was released are never written again: when the format changes, this script writes the next folder,
and both are tested.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from holdfast.admin import site as admin_site
from holdfast.admin.rollback import plan_rollback
from holdfast.admin.site import Site
from holdfast.backends.hdfs_backed import HDFSBackedStateStoreProvider
from holdfast.backends.memory import MemoryStorage
from holdfast.conf import StateStoreConf
from holdfast.engine.files import manifest_codec, segment_writer
from holdfast.engine.files.filenames import CLAIMS
from holdfast.engine.storage import Runtime
from holdfast.engine.versions import compaction
from holdfast.engine.versions.log import VersionLog
from holdfast.ids import StateStoreId
from holdfast.reading import Root
from holdfast.reading.cells import row_json
from holdfast.standalone import open_on
from holdfast.types import parse_schema

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "recovery" / "golden"
Row = tuple[Any, ...]
TAGS = {"first": 1, "middle_4.x": 4}
MAINTAINED = (3, 6, 8)

EVENTS = ("user string, at long", "total long, note string")
EVERY_KEY = (
    "kb boolean, kt byte, ks short, ki int, kl long, kf float, kd double, kn decimal(10,2), "
    "kw decimal(38,9), kx string, ky binary, kda date, kts timestamp, ktn timestamp_ntz, "
    "kdt interval day to second, kym interval year to month, kst struct<a:int,b:string>, "
    "kar array<long>"
)
EVERY_VALUE = (
    EVERY_KEY.replace("k", "v") + ", vm map<string,int>, vv void, "
    "vna array<struct<a:date,b:array<string>>>"
)


@dataclass
class Oracle:
    """What a store must hold, kept in a dict."""

    index: int | None
    rows: dict[Row, tuple[Row, int | None]] = field(default_factory=dict)
    evict: int | None = None
    expire: int | None = None

    def visible(self) -> list[tuple[Row, Row]]:
        return [(key, value) for key, (value, ends) in self.rows.items() if self._lives(key, ends)]

    def _lives(self, key: Row, ends: int | None) -> bool:
        if self.evict is not None and self.index is not None and key[self.index] <= self.evict:
            return False
        return self.expire is None or ends is None or ends > self.expire


@dataclass(frozen=True)
class Spec:
    """A root to write: its shape, its settings and its life."""

    name: str
    key: str
    value: str
    life: Callable[[], Iterator[list[tuple[str, Any]]]]
    settings: dict[str, Any]
    partitions: int | None = 1
    """None: a provider used alone."""
    index: int | None = None
    prefix: int = 0


def events() -> Iterator[list[tuple[str, Any]]]:
    """The changes of each version: a large first one, updates, removals, bounds, nothing."""
    users = ["Sankar", "Jade", "Kun", "", "Łucja", "漢字"]
    yield [("put", ((users[i % 6], 10 * i), (i * i - 50, "n" * (i % 13)), None)) for i in range(40)]
    yield [("put", (("Sankar", 0), (-1, None), None)), ("remove", ("Jade", 10))]
    yield [("put", (("session", 2000), (1, "ends"), 500)), ("evict", 30)]
    yield [("put", (("session", 2010), (2, "stays"), 5000)), ("remove", ("nobody", 1))]
    yield [("expire", 500), ("put", (("Jade", 10_000), (None, "null"), None))]
    yield [("remove", ("Kun", 20)), ("put", (("Kun", 80), (2**62, "big"), None))]
    yield []
    yield [("evict", 200), ("put", (("Łucja", 640), (-(2**63), ""), None))]
    yield [("put", (("Sankar", 600), (7, "last"), 2**62))]


def few_events() -> Iterator[list[tuple[str, Any]]]:
    """Some of the changes of `events`, in as few versions as have a snapshot among them."""
    yield [("put", (("Jade", 10 * i), (i, "n" * (i % 13)), None)) for i in range(12)]
    yield [("put", (("Sankar", 0), (-1, None), None)), ("remove", ("Jade", 10))]
    yield [("put", (("Łucja", 640), (-(2**63), ""), None))]
    yield [("evict", 30), ("put", (("Sankar", 600), (7, "last"), 2**62))]


def gone_back() -> Iterator[list[tuple[str, Any]]]:
    """A history that went back once, and on from there: keys, bounds and counts return."""
    yield [("put", (("Jade", 10 * i), (i, "n" * (i % 13)), None)) for i in range(20)]
    yield [("put", (("Sankar", 0), (-1, None), 900)), ("remove", ("Jade", 10))]
    yield [("evict", 50), ("put", (("session", 2000), (1, "a mistake"), None))]
    yield [("expire", 1000), ("remove", ("Jade", 120))]
    yield [("rollback", 2)]
    yield [("put", (("Łucja", 640), (7, "after"), None)), ("remove", ("Jade", 30))]
    yield [("evict", 20), ("put", (("Jade", 120), (8, "again"), None))]
    yield [("put", (("Sankar", 600), (9, "last"), 2**62))]


def every_type() -> Iterator[list[tuple[str, Any]]]:
    """Rows of every type: usual values, the ends of each range, nulls, NaN and zeros."""
    moment = datetime(2024, 2, 29, 23, 59, 59, 999_999)
    usual = (
        True, 1, 2, 3, 4, 1.5, -2.25, Decimal("3.14"), Decimal("-1.000000001"), "text", b"\0\xff",
        date(2024, 2, 29), moment.replace(tzinfo=UTC), moment, timedelta(days=1, microseconds=5),
        14, (1, "s"), (1, 2, None),
    )  # fmt: skip
    ends = (
        False, -128, -(2**15), -(2**31), -(2**63), float("-inf"), 5e-324, Decimal("-99999999.99"),
        Decimal("9" * 29 + ".999999999"), "é漢🦀" * 9, b"", date(1, 1, 1),
        datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 31), timedelta(microseconds=-1),
        -(2**31), (None, None), (),
    )  # fmt: skip
    odd = (
        None, 127, 2**15 - 1, 2**31 - 1, 2**63 - 1, float("nan"), 0.0, Decimal("0.00"), None, "",
        b"x" * 40, date(9999, 12, 31), None, datetime(1969, 12, 31, 23), None, 0, None, None,
    )  # fmt: skip
    nulls: Row = (None,) * 18
    more: tuple[Row, ...] = (
        ({"a": 1, "b": None}, None, ((date(2000, 1, 1), ("x", None)), None)),
        ({}, None, ()),
        (None, None, None),
    )
    yield [
        ("put", (usual, usual + more[0], None)),
        ("put", (ends, ends + more[1], None)),
        ("put", (nulls, nulls + more[2], None)),
    ]
    yield [
        ("put", (odd, odd + more[0], None)),
        ("remove", usual),
        ("put", (nulls, usual + more[1], None)),
    ]


SPECS = (
    Spec(
        "files-lz4", *EVENTS, events, {"pack_threshold_bytes": 0, "compression": "lz4"},
        partitions=1, index=1,
    ),
    Spec(
        "packs-zstd", *EVENTS, events, {"pack_threshold_bytes": 3000, "compression": "zstd"},
        partitions=2, index=1, prefix=1,
    ),
    Spec(
        "alone-packs-none", *EVENTS, events, {"pack_threshold_bytes": 3000},
        partitions=None, index=1, prefix=1,
    ),
    Spec("types-none", EVERY_KEY, EVERY_VALUE, every_type, {"merge_fanout": 9}, prefix=2),
    Spec(
        "copies-zstd", *EVENTS, few_events,
        {"pack_threshold_bytes": 2300, "compression": "zstd", "keep_copies": "on"},
        partitions=1, index=1,
    ),
)  # fmt: skip


SPECS_GONE_BACK = (
    Spec(
        "gone-back-zstd", *EVENTS, gone_back,
        {"pack_threshold_bytes": 2300, "compression": "zstd", "min_versions_to_retain": 5},
        partitions=2, index=1,
    ),
)  # fmt: skip
"""Roots of the format of versions after a rollback."""
FORMATS = {manifest_codec.MANIFEST_FORMAT: SPECS, manifest_codec.LINEAGE_FORMAT: SPECS_GONE_BACK}


def made_up_runtime() -> Runtime:
    ticks, ids = itertools.count(1_700_000_000_000, 1000), itertools.count(1)
    return Runtime(lambda: next(ticks), lambda: 0, lambda: f"{next(ids):032x}")


@contextmanager
def small_files() -> Iterator[None]:
    """Small chunks, blocks and tiers: some kilobytes then have all that large files have."""
    with (
        patch.object(segment_writer, "CHUNK_ROWS", 16),
        patch.object(segment_writer, "BLOCK_BYTES", 2048),
        patch.object(compaction, "_SMALLEST_TIER_BYTES", 4000),
    ):
        yield


class Writer:
    """A database, or a provider alone, under the verbs a life needs."""

    def __init__(self, spec: Spec, storage: MemoryStorage, runtime: Runtime) -> None:
        conf = StateStoreConf(
            min_deltas_for_snapshot=7,
            grace_period_ms=0,
            maintenance_interval_ms=3_600_000,
            **{
                "min_versions_to_retain": 3,
                "merge_fanout": 2,
                "keep_copies": "off",
                **spec.settings,
            },
        )
        if spec.partitions is None:
            provider = HDFSBackedStateStoreProvider(runtime=runtime, storage=storage)
            provider.init(
                StateStoreId(storage.location, 0, 0),
                parse_schema(spec.key),
                parse_schema(spec.value),
                spec.index,
                spec.prefix,
                conf,
            )
            self.versions = VersionLog(storage, runtime)
            self.update = lambda: provider.get_store(self.versions.newest() or 0)
            self.maintain, self.close = provider.do_maintenance, provider.close
        else:
            db = open_on(
                storage,
                runtime,
                spec.key,
                spec.value,
                partitions=spec.partitions,
                key_index_ordinal=spec.index,
                num_cols_prefix_key=spec.prefix,
                conf=conf,
            )
            self.versions = VersionLog(storage, runtime)
            self.update, self.maintain, self.close = db.update, db.maintain, db.close
            self.refresh = db.refresh


def write_root(spec: Spec) -> tuple[MemoryStorage, dict[str, Any], dict[int, list[str]]]:
    """The root, what is known of it, and the rows of every version as JSON."""
    storage, runtime = MemoryStorage(), made_up_runtime()
    key, value = parse_schema(spec.key), parse_schema(spec.value)
    oracle = Oracle(spec.index)
    found: dict[int, list[str]] = {0: []}
    with small_files():
        writer = Writer(spec, storage, runtime)
        states = {0: deepcopy(oracle)}
        for changes in spec.life():
            if changes and changes[0][0] == "rollback":
                version = roll_back(storage, runtime, changes[0][1])
                writer.refresh()
                oracle = deepcopy(states[changes[0][1]])
            else:
                store = writer.update()
                for verb, what in changes:
                    apply(store, oracle, verb, what)
                version = store.commit()
            states[version] = deepcopy(oracle)
            found[version] = sorted(
                json.dumps([*row_json(key, k).values(), *row_json(value, v).values()])
                for k, v in oracle.visible()
            )
            for name, named in TAGS.items():
                if named == version:
                    writer.versions.tag(name, version)
            if version in MAINTAINED:
                writer.maintain()
        there = writer.versions.versions()
        writer.close()
    return (
        storage,
        {
            "key": spec.key,
            "value": spec.value,
            "index": spec.index,
            "prefix": spec.prefix,
            "partitions": spec.partitions,
            "compression": spec.settings.get("compression", "none"),
            "tags": {name: version for name, version in TAGS.items() if version in there},
            "kinds": sorted({Path(blob.path).suffix[1:] for blob in storage.list("")} - {"", "x"}),
            "life": spec.life.__name__,
            "versions": there,
        },
        found,
    )


def roll_back(storage: MemoryStorage, runtime: Runtime, to: int) -> int:
    """Go back to a version; nothing of the host that does it stays. The version that it made."""
    site = Site(Root(storage), runtime, None)
    with patch.object(admin_site, "_who", return_value="ops@driver-1"):
        made = plan_rollback(site, to, reason="a mistake").run().version
    for blob in storage.list(CLAIMS):
        storage.delete(blob.path)
    assert made is not None
    return made


def apply(store: Any, oracle: Oracle, verb: str, what: Any) -> None:
    if verb == "put":
        key, value, ends = what
        store.put(key, value, expires_ms=ends) if ends is not None else store.put(key, value)
        oracle.rows[key] = (value, ends)
    elif verb == "remove":
        store.remove(what)
        oracle.rows.pop(what, None)
    elif verb == "evict":
        store.evict(what)
        oracle.evict = what
    else:
        store.expire(what)
        oracle.expire = what


def write_all(folder: Path, specs: Sequence[Spec]) -> None:
    """Write roots and their `expected.json` into a folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    expected: dict[str, Any] = {"pyarrow": pa.__version__, "roots": {}, "lives": {}}
    for spec in specs:
        storage, expected["roots"][spec.name], rows = write_root(spec)
        expected["lives"][spec.life.__name__] = rows
        for blob in storage.list(""):
            path = folder / spec.name / blob.path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(storage.read(blob.path))
    text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN
    for number, specs in FORMATS.items():
        write_all(target / f"format-{number}", specs)
    files = [path for path in target.rglob("*") if path.is_file()]
    print(f"{len(files)} files, {sum(path.stat().st_size for path in files):,} bytes in {target}")
