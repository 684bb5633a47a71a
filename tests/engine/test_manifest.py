"""Manifests come back as they were written, are refused when altered, and stay small."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from made_up_manifests import manifest, ref

from holdfast.engine.files.manifest import (
    Manifest,
    PackSlice,
    PartitionEntry,
    SegmentRef,
    StoreEntry,
)
from holdfast.engine.files.manifest_codec import decode, encode
from holdfast.engine.files.segment import SegmentInfo, Zone
from holdfast.errors import Corruption, InvalidArgument
from holdfast.types import parse_schema

COUNTS = st.integers(0, 2**40)
LONGS = st.integers(-(2**63), 2**63 - 1)
HEX = st.text("0123456789abcdef", min_size=32, max_size=32)
INFOS = st.builds(
    SegmentInfo,
    rows=COUNTS,
    dead=COUNTS,
    size=COUNTS,
    tail=COUNTS,
    checksum=st.text("0123456789abcdef", min_size=16, max_size=16),
    zone=st.builds(Zone, LONGS, LONGS, LONGS, LONGS),
)
PACKS = st.none() | st.builds(PackSlice, COUNTS, HEX, COUNTS)
KINDS = st.sampled_from(["delta", "merge", "snapshot"])
LEAVES = st.builds(SegmentRef, KINDS, COUNTS, COUNTS, HEX, INFOS, PACKS)
REFS = st.builds(
    SegmentRef, KINDS, COUNTS, COUNTS, HEX, INFOS, PACKS, st.lists(LEAVES, max_size=3).map(tuple)
)
BOUNDS = st.none() | LONGS
ENTRIES = st.builds(
    PartitionEntry, COUNTS, COUNTS, st.lists(REFS, max_size=3).map(tuple), COUNTS, BOUNDS, BOUNDS
)
SCHEMAS = st.sampled_from(
    ["a int", "`weird ``name` string, b array<struct<c: decimal(38,18)>>", "t timestamp_ntz"]
).map(parse_schema)
JSON = st.recursive(
    st.none() | st.booleans() | LONGS | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
FACTS = st.dictionaries(st.text(max_size=8), JSON, max_size=3)
STORES = st.builds(
    StoreEntry,
    SCHEMAS,
    SCHEMAS,
    st.none() | st.integers(0, 3),
    st.integers(0, 3),
    FACTS,
    st.lists(ENTRIES, max_size=2).map(tuple),
)
NAMES = st.from_regex(r"[A-Z_$][A-Za-z0-9_$.\-]{0,9}", fullmatch=True)
OPERATORS = st.dictionaries(
    st.integers(0, 9), st.dictionaries(NAMES, STORES, max_size=2), max_size=2
)
MANIFESTS = st.builds(
    Manifest,
    version=COUNTS,
    parent=st.none() | COUNTS,
    commit_id=HEX,
    writer_id=HEX,
    epoch=COUNTS,
    committed_at_ms=LONGS,
    hash_name=st.text(max_size=8),
    operators=OPERATORS,
    scope=FACTS,
    batch=st.none() | FACTS,
    watermark=st.none() | FACTS,
    outbox=st.lists(FACTS, max_size=2).map(tuple),
    delivered_through=st.none() | COUNTS,
    tags=st.dictionaries(st.text(max_size=8), COUNTS, max_size=2),
    parent_commit_id=st.none() | HEX,
)


@given(MANIFESTS)
def test_a_manifest_comes_back_as_it_was_written(written: Manifest) -> None:
    assert decode(encode(written), "m") == written


@given(MANIFESTS)
def test_equal_manifests_are_equal_bytes(written: Manifest) -> None:
    assert encode(written) == encode(decode(encode(written), "m"))


def test_a_buffer_is_read_like_bytes() -> None:
    written = manifest(3, [[ref(3)]])
    assert decode(pa.py_buffer(encode(written)), "m") == written


SMALL = encode(manifest(3, [[ref(3), ref(2, 1, "snapshot", inputs=[ref(2), ref(1)])]]))


@pytest.mark.parametrize("place", range(len(SMALL)))
def test_a_changed_byte_is_noticed(place: int) -> None:
    altered = bytearray(SMALL)
    altered[place] ^= 0x10
    with pytest.raises((Corruption, InvalidArgument)):
        decode(bytes(altered), "m")


@pytest.mark.parametrize("length", [0, 1, 17, 30, len(SMALL) // 2, len(SMALL) - 1])
def test_a_manifest_cut_short_is_damaged(length: int) -> None:
    with pytest.raises(Corruption, match=r"The manifest root/versions/3 is damaged: .*verify"):
        decode(SMALL[:length], "root/versions/3")


def test_bytes_behind_the_end_are_noticed() -> None:
    with pytest.raises(Corruption):
        decode(SMALL + b"\0", "m")


def test_a_newer_format_is_refused_by_name() -> None:
    newer = SMALL.replace(b"HOLDFAST-MANIFEST 1 ", b"HOLDFAST-MANIFEST 3 ", 1)
    with pytest.raises(InvalidArgument, match="format 3; this release reads formats 1 and 2") as no:
        decode(newer, "m")
    assert no.value.condition == "STATE_STORE_UNSUPPORTED_FORMAT"


def test_only_a_version_after_which_history_went_back_needs_a_newer_release() -> None:
    first = decode(SMALL, "m")
    back = replace(first, lineage=1, operation={"kind": "rollback", "id": "1", "goes_back": True})
    assert encode(back).startswith(b"HOLDFAST-MANIFEST 2 ")
    assert decode(encode(back), "m") == back
    assert back.goes_back
    repaired = replace(first, operation={"kind": "repair", "id": "2"})
    assert encode(repaired).startswith(b"HOLDFAST-MANIFEST 1 ")
    assert decode(encode(repaired), "m") == repaired
    assert not repaired.goes_back


@pytest.mark.parametrize("body", [b"{}", b"[]", b"null", b"{", b'{"version": "3"}'])
def test_a_well_summed_manifest_of_something_else_is_damaged(body: bytes) -> None:
    packed = pa.compress(body, codec="zstd", asbytes=True)
    header = f"HOLDFAST-MANIFEST 1 zstd {len(body)}"
    checksum = xxhash.xxh3_64_hexdigest(header.encode() + packed)
    with pytest.raises(Corruption, match="its contents cannot be read"):
        decode(f"{header} {checksum}\n".encode() + packed, "m")


OUTSIDE = ["../../x", "/etc/x", "a/../../b"]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_manifest_that_leads_out_of_the_root_is_refused(path: str) -> None:
    delta = ref(1)
    entry = manifest(1).operators[0]["default"]
    hostile = [
        manifest(1, [[replace(delta, attempt=path)]]),
        manifest(1, [[replace(delta, kind=path)]]),
        manifest(1, [[replace(delta, high=path)]]),
        manifest(1, [[replace(delta, pack=PackSlice(1, path, 0))]]),
        manifest(1, [[replace(delta, inputs=(replace(delta, attempt=path),))]]),
        manifest(1, outbox=({"path": path},)),
        manifest(1, outbox=({"path": f"outbox/{path}"},)),
        manifest(1, outbox=({"path": "versions/1"},)),
        replace(manifest(1), operators={0: {path: entry}}),
        replace(
            manifest(1),
            operators={0: {"default": replace(entry, partitions=(PartitionEntry(path, 1, ()),))}},
        ),
    ]
    for each in hostile:
        with pytest.raises(Corruption, match="its contents cannot be read"):
            decode(encode(each), "m")


def test_the_files_of_a_version_include_those_to_fall_back_on() -> None:
    packed = replace(ref(3), pack=PackSlice(3, "f" * 32, 0))
    merged = ref(2, 1, "merge", number=5, inputs=[ref(2), ref(1)])
    made = manifest(3, [[packed, merged], [ref(3, number=7)]])
    assert made.files() == {
        f"packs/3-{'f' * 32}.pack",
        merged.path("0/0"), ref(2).path("0/0"), ref(1).path("0/0"),
        ref(3, number=7).path("0/1"),
    }  # fmt: skip
    assert made.directories() == {"0/0", "0/1"}


def test_a_store_of_its_own_keeps_its_files_at_the_root() -> None:
    made = manifest(1, [[ref(1)]], scope={"kind": "store", "partition": 0})
    assert made.files() == {ref(1).name}


def test_a_partition_that_is_not_there_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        manifest(1).entry(0, "default", 9)


def large_manifest(partitions: int, stores: int, segments: int) -> Manifest:
    """As large as real ones: random ids and checksums, which no codec makes smaller."""

    def segment(version: int, kind: str, inputs: tuple[SegmentRef, ...] = ()) -> SegmentRef:
        size = 50_000 + secrets.randbelow(1 << 20)
        low = 1_700_000_000_000_000 + secrets.randbelow(1 << 40)
        info = SegmentInfo(
            size // 40,
            size // 900,
            size,
            900 + size % 300,
            secrets.token_hex(8),
            Zone(low, low + secrets.randbelow(1 << 36)),
        )
        return SegmentRef(kind, version, version, secrets.token_hex(16), info, inputs=inputs)

    def chain() -> tuple[SegmentRef, ...]:
        deltas = [segment(900 - i, "delta") for i in range(segments - 1)]
        return (*deltas, segment(880, "snapshot"))

    def store(number: int) -> StoreEntry:
        entries = tuple(
            PartitionEntry(i, partitions, chain(), secrets.randbelow(1 << 20), 1_700_000_000_000)
            for i in range(partitions)
        )
        key, value = parse_schema("user string, t timestamp"), parse_schema("n long, s double")
        return StoreEntry(key, value, None, 0, {"keys": [], "hashes": []}, entries)

    named = {"default" if i == 0 else f"store-{i}": store(i) for i in range(stores)}
    facts: dict[str, Any] = {"batch": {"id": 900, "offsets": "x" * 500}}
    return replace(manifest(900, []), operators={0: named}, **facts)


def test_a_manifest_of_eleven_thousand_segments_stays_below_a_megabyte() -> None:
    written = large_manifest(partitions=200, stores=5, segments=11)
    start = time.perf_counter()
    data = encode(written)
    encoded = time.perf_counter()
    read = decode(data, "m")
    decoded = time.perf_counter()
    print(
        f"\n200 partitions x 5 stores x 11 segments: {len(data):,} bytes, "
        f"encoded in {(encoded - start) * 1000:.0f} ms, "
        f"decoded in {(decoded - encoded) * 1000:.0f} ms"
    )
    assert read == written
    assert len(data) < 1_000_000
