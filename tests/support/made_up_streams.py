"""A stream's root and checkpoint as Spark and Holdfast leave them, made without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import holdfast
from holdfast.conf import StateStoreConf
from holdfast.engine.files.manifest_codec import decode, encode

QUERY = "0b0e3ee0-4f9f-4d0f-8f4f-0d6f2c3b1a55"
State = dict[str, int]


def offsets_text(batch: int, source: str | None = None) -> str:
    """The entry of a batch in the offset log."""
    planned = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}}
    return "\n".join(["v1", json.dumps(planned), source or json.dumps({"logOffset": batch})])


def made_up_stream(folder: Path, batches: int = 6, source: str | None = None) -> list[State]:
    """A checkpoint with its state, one version for each batch: the state at every version.

    Batch n read the file n.json; the file source's log says so.
    """
    states: list[State] = [{}]
    conf = StateStoreConf(min_versions_to_retain=50)
    with holdfast.open(folder / "holdfast", key="k string", value="v long", conf=conf) as db:
        for batch in range(batches):
            state = dict(states[-1])
            state[f"key {batch % 4}"] = batch
            if batch % 3 == 2:
                state.pop("key 0", None)
            with db.update() as update:
                update.put((f"key {batch % 4}",), (batch,))
                if batch % 3 == 2:
                    update.remove(("key 0",))
            states.append(state)
    _make_a_stream(folder, source)
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    (folder / "holdfast-state").write_text(_state_id(folder) + "\n")
    for log in ("offsets", "commits", "sources/0", "in"):
        (folder / log).mkdir(parents=True)
    for batch in range(batches):
        (folder / "offsets" / str(batch)).write_text(_offsets(batch, source))
        (folder / "offsets" / f".{batch}.crc").write_bytes(b"crc")
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        read = folder / "in" / f"{batch} %.json"
        read.write_text(f'{{"v": {batch}}}')
        entry = {"path": read.as_uri(), "timestamp": batch, "batchId": batch}
        (folder / "sources" / "0" / str(batch)).write_text(f"v1\n{json.dumps(entry)}")
    return states


def _offsets(batch: int, source: str | None) -> str:
    return offsets_text(batch, None if source is None else source.replace("BATCH", str(batch)))


def _make_a_stream(folder: Path, source: str | None) -> None:
    """Give the versions of a store what those of a stream have."""
    for path in (folder / "holdfast" / "versions").iterdir():
        manifest = decode(path.read_bytes(), path.name)
        batch = manifest.version - 1
        facts = {"id": batch, "query_id": QUERY, "offsets": _offsets(batch, source)}
        changed = replace(
            manifest,
            scope={**manifest.scope, "kind": "query"},
            batch=None if batch < 0 else facts,
            delivered_through=max(0, batch),
            numbering={"first": 0, "last": batch},
            watermark={
                "late_ms": 0,
                "evict_ms": 1000 * batch,
                "next_ms": 0,
                "policy": "min",
                "inputs": [],
            },
        )
        path.write_bytes(encode(changed))


def _state_id(folder: Path) -> str:
    manifest = decode((folder / "holdfast" / "versions" / "0").read_bytes(), "0")
    return str(manifest.scope["id"])


def state_of(folder: Path, version: int | None = None) -> State:
    """The state at a version, the newest by default."""
    state = holdfast.read(folder)
    table = (state if version is None else state.at(version)).to_arrow()
    return {row["k"]: row["v"] for row in table.to_pylist()}
