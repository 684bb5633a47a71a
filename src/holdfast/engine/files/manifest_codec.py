"""The bytes of a manifest.

On disk it is a line of text (name, format, compression, size, checksum) followed by compressed
JSON. docs/format.md lists every field. Any release can read the line, so a format it does not know
is rejected by number and not as damage.

Every commit writes a whole manifest, so it must stay small: with the path of each segment, 200
partitions of 5 stores took 2.6 MB. Hence segments are flat lists without field names, paths are
derived from version, attempt and kind, and the whole is compressed.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import xxhash

from holdfast.engine.files.filenames import OUTBOXES, data_file
from holdfast.engine.files.manifest import (
    Manifest,
    PackSlice,
    PartitionEntry,
    SegmentRef,
    StoreEntry,
    fingerprint,
)
from holdfast.engine.files.segment import SegmentInfo, Zone
from holdfast.errors import Corruption, InvalidArgument
from holdfast.ids import check_store_name
from holdfast.types import parse_schema

MANIFEST_FORMAT = 1
LINEAGE_FORMAT = 2
"""That of a version after which history went back at least once. An older release would take its
changes for all that is new since the version before, and is not to read it."""
_MAGIC = "HOLDFAST-MANIFEST"
_CODEC = "zstd"


def encode(manifest: Manifest) -> bytes:
    """The manifest as the bytes of its file."""
    body = json.dumps(_to_json(manifest), separators=(",", ":")).encode()
    packed = pa.compress(body, codec=_CODEC, asbytes=True)
    header = f"{_MAGIC} {_format_of(manifest)} {_CODEC} {len(body)}"
    checksum = xxhash.xxh3_64_hexdigest(header.encode() + packed)
    return f"{header} {checksum}\n".encode() + bytes(packed)


def decode(data: pa.Buffer | bytes, name: str) -> Manifest:
    """The manifest in the bytes of a file; messages call the file `name`.

    Raises Corruption for damaged bytes, and InvalidArgument for an unknown format.
    """
    raw = bytes(data)
    header, newline, packed = raw.partition(b"\n")
    parts = header.split(b" ")
    if not newline or len(parts) != 5 or parts[0] != _MAGIC.encode():
        raise _damaged(name, "it does not start like a manifest")
    expected = xxhash.xxh3_64_hexdigest(header.rpartition(b" ")[0] + packed)
    if parts[1].isdigit() and int(parts[1]) not in (MANIFEST_FORMAT, LINEAGE_FORMAT):
        raise InvalidArgument(
            f"The manifest {name} is in format {parts[1].decode()}; this release reads formats "
            f"{MANIFEST_FORMAT} and {LINEAGE_FORMAT}. Upgrade holdfast to a release that reads it.",
            condition="STATE_STORE_UNSUPPORTED_FORMAT",
        )
    if parts[4] != expected.encode():
        raise _damaged(name, "its checksum does not match")
    try:
        body = pa.decompress(
            packed, decompressed_size=int(parts[3]), codec=parts[2].decode(), asbytes=True
        )
        return _from_json(json.loads(body))
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise _damaged(name, f"its contents cannot be read ({type(error).__name__})") from error


def _damaged(name: str, why: str) -> Corruption:
    return Corruption(
        f"The manifest {name} is damaged: {why}. `holdfast verify` lists older versions that can "
        "be opened. `holdfast rollback CHECKPOINT --to intact` continues from the newest of those."
    )


def _format_of(manifest: Manifest) -> int:
    return LINEAGE_FORMAT if manifest.lineage else MANIFEST_FORMAT


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": _format_of(manifest),
        "version": manifest.version,
        "parent": manifest.parent,
        "parent_commit_id": manifest.parent_commit_id,
        "commit_id": manifest.commit_id,
        "writer": {"id": manifest.writer_id, "epoch": manifest.epoch},
        "committed_at_ms": manifest.committed_at_ms,
        "hash": manifest.hash_name,
        "scope": dict(manifest.scope),
        "operators": {
            str(operator): {name: _store_to_json(store) for name, store in stores.items()}
            for operator, stores in manifest.operators.items()
        },
        "batch": manifest.batch,
        "watermark": manifest.watermark,
        "outbox": list(manifest.outbox),
        "delivered_through": manifest.delivered_through,
        "tags": dict(manifest.tags),
        **({} if manifest.numbering is None else {"numbering": dict(manifest.numbering)}),
        **({} if manifest.retention is None else {"retention": dict(manifest.retention)}),
        **({"lineage": manifest.lineage} if manifest.lineage else {}),
        **({} if manifest.operation is None else {"operation": dict(manifest.operation)}),
    }


def _from_json(body: dict[str, Any]) -> Manifest:
    return Manifest(
        version=body["version"],
        parent=body["parent"],
        commit_id=body["commit_id"],
        writer_id=body["writer"]["id"],
        epoch=body["writer"]["epoch"],
        committed_at_ms=body["committed_at_ms"],
        hash_name=body["hash"],
        scope=body["scope"],
        operators={
            int(operator): {
                check_store_name(name): _store_from_json(store) for name, store in stores.items()
            }
            for operator, stores in body["operators"].items()
        },
        batch=body["batch"],
        watermark=body["watermark"],
        outbox=tuple(_outbox_from_json(part) for part in body["outbox"]),
        delivered_through=body["delivered_through"],
        tags=body["tags"],
        parent_commit_id=body["parent_commit_id"],
        numbering=_numbering_from_json(body.get("numbering")),
        retention=_retention_from_json(body.get("retention")),
        lineage=_number(body.get("lineage", 0)),
        operation=body.get("operation"),
    )


def _store_to_json(store: StoreEntry) -> dict[str, Any]:
    return {
        "key": store.key_schema.json(),
        "value": store.value_schema.json(),
        "fingerprint": fingerprint(store.key_schema, store.value_schema),
        "key_index": store.key_index,
        "prefix": store.prefix,
        "hash_samples": dict(store.hash_samples),
        "partitions": [_partition_to_json(entry) for entry in store.partitions],
    }


def _store_from_json(body: dict[str, Any]) -> StoreEntry:
    return StoreEntry(
        key_schema=parse_schema(body["key"]),
        value_schema=parse_schema(body["value"]),
        key_index=body["key_index"],
        prefix=body["prefix"],
        hash_samples=body["hash_samples"],
        partitions=tuple(_partition_from_json(entry) for entry in body["partitions"]),
    )


def _partition_to_json(entry: PartitionEntry) -> dict[str, Any]:
    return {
        "index": entry.index,
        "modulus": entry.modulus,
        "num_keys": entry.num_keys,
        "evict": entry.evict,
        "expire": entry.expire,
        "segments": [segment_to_json(ref) for ref in entry.segments],
    }


def _partition_from_json(body: dict[str, Any]) -> PartitionEntry:
    return PartitionEntry(
        index=_number(body["index"]),
        modulus=body["modulus"],
        num_keys=body["num_keys"],
        evict=body["evict"],
        expire=body["expire"],
        segments=tuple(segment_from_json(ref) for ref in body["segments"]),
    )


def segment_to_json(ref: SegmentRef) -> list[Any]:
    """A segment as a flat list: field names would take more room than the data."""
    info = ref.info
    pack = None if ref.pack is None else [ref.pack.version, ref.pack.attempt, ref.pack.offset]
    return [
        ref.kind,
        ref.low,
        ref.high,
        ref.attempt,
        info.rows,
        info.dead,
        info.size,
        info.tail,
        info.checksum,
        list(info.zone),
        pack,
        [segment_to_json(part) for part in ref.inputs],
    ]


def segment_from_json(body: list[Any]) -> SegmentRef:
    """The segment `segment_to_json` wrote."""
    kind, low, high, attempt, rows, dead, size, tail, checksum, zone, pack, inputs = body
    return SegmentRef(
        kind=_part_of_name(kind),
        low=low,
        high=_number(high),
        attempt=_part_of_name(attempt),
        info=SegmentInfo(rows, dead, size, tail, checksum, Zone(*zone)),
        pack=None if pack is None else _pack_from_json(*pack),
        inputs=tuple(segment_from_json(part) for part in inputs),
    )


def _pack_from_json(version: int, attempt: str, offset: int) -> PackSlice:
    return PackSlice(_number(version), _part_of_name(attempt), offset)


def _retention_from_json(body: dict[str, Any] | None) -> dict[str, int] | None:
    if body is None:
        return None
    return {"versions": int(body["versions"]), "grace_ms": int(body["grace_ms"])}


def _numbering_from_json(body: dict[str, Any] | None) -> dict[str, int] | None:
    if body is None:
        return None
    return {name: _number(body[name]) for name in ("first", "last")}


def _outbox_from_json(body: dict[str, Any]) -> dict[str, Any]:
    path = body.get("path")
    if path is not None and (data_file(path) is None or path.rpartition("/")[0] != OUTBOXES):
        raise ValueError
    return body


# Paths are built from these parts, and a forged manifest must not lead outside the root.


def _number(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _part_of_name(text: Any) -> str:
    if "/" in text:
        raise ValueError
    return str(text)
