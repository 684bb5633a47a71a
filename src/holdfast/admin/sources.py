"""What a query's sources bring again when it goes back to an earlier batch, as far as is known.

The checkpoint says where every source stood after each batch. For files it also has the log of
what was read, so that each of them can be looked for. What a source of another kind still has
cannot be known from here, and is never said to be there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

from holdfast.backends.locations import open_storage
from holdfast.checkpoint import OffsetEntry, SparkCheckpoint
from holdfast.errors import HoldfastError
from holdfast.reading.json import JsonBody

SOURCES = "sources"
Standing = Literal["there", "gone", "not checked", "lost for good"]
_MANY = 10
"""Usual batches: files that come again come in one batch, whatever the query's limit says."""
_UNREADABLE = ("socket", "memory")
"""Sources of Spark's own that give every row once."""
_GENERATED = ("rate", "rate-micro-batch")
"""Sources of Spark's own that make the same rows again."""


@dataclass(frozen=True, slots=True)
class SourceInput:
    """What one source brings again."""

    source: str
    """The number, or the name, that Spark's offsets have for it."""
    kind: str
    """What it is: the name that Spark knows it by, or as far as its offsets tell."""
    standing: Standing
    """Whether what comes again is still there."""
    amount: str
    """How much comes again, in words."""
    files: int = 0
    size_bytes: int = 0
    gone: tuple[str, ...] = ()
    """Files that are no longer there."""
    is_large: bool = False
    """Whether far more comes in one batch than usually."""

    def line(self) -> str:
        """In words."""
        text = f"{self.kind}: {self.amount}"
        if self.standing == "gone":
            some = ", ".join(self.gone[:3]) + (", …" if len(self.gone) > 3 else "")
            return f"{text}, of which {len(self.gone)} are gone: {some}"
        text = f"{text} ({self.standing})"
        return f"{text}; they come in ONE batch, far larger than usual" if self.is_large else text

    def json(self) -> JsonBody:
        """In the shapes that JSON can hold."""
        return asdict(self)


def input_again(
    checkpoint: SparkCheckpoint,
    upto: Mapping[str, Any] | None,
    names: Sequence[str],
    options: Mapping[str, str],
) -> list[SourceInput]:
    """What every source brings again after the batch `upto`, None for all it ever brought.

    `names` are the query's sources in Spark's order, as far as the state has noted them.
    """
    planned = checkpoint.planned()
    if not planned:
        return []
    newest = OffsetEntry.parse(checkpoint.offsets(planned[-1]) or "").sources
    kept = {} if upto is None else OffsetEntry.parse(str(upto["offsets"] or "")).sources
    found = []
    for place, (source, now) in enumerate(newest.items()):
        name = names[place] if len(names) == len(newest) else ""
        if now is not None and now != kept.get(source):
            found.append(_source_input(checkpoint, source, name, kept.get(source), now, options))
    return found


def _source_input(
    checkpoint: SparkCheckpoint,
    source: str,
    name: str,
    before: str | None,
    now: str,
    options: Mapping[str, str],
) -> SourceInput:
    start, end = _parsed(before), _parsed(now)
    if name in _UNREADABLE:
        return SourceInput(source, name, "lost for good", "rows that it gives only once")
    if name in _GENERATED:
        return SourceInput(source, name, "there", "rows are generated again")
    if isinstance(end, dict) and "logOffset" in end:
        after = int(start["logOffset"]) if isinstance(start, dict) else -1
        return _file_input(checkpoint, source, name or "files", after, options)
    if _is_kafka(end):
        records = _offsets_between(start if isinstance(start, dict) else {}, end)
        kind = name or "kafka"
        return SourceInput(source, kind, "not checked", f"{records:,} offsets come again")
    text = f"from {before or 'its beginning'} to {now}"
    return SourceInput(source, name or "a source of unknown kind", "not checked", text)


def _parsed(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_kafka(offset: Any) -> bool:
    """Whether an offset has topics with a number for each partition, as Kafka's have."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(parts, dict) and all(isinstance(at, int) for at in parts.values())
            for parts in offset.values()
        )
    )


def _offsets_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    return sum(
        max(0, at - int(start.get(topic, {}).get(partition, 0)))
        for topic, parts in end.items()
        for partition, at in parts.items()
    )


# -- files ---------------------------------------------------------------------------------------


def _file_input(
    checkpoint: SparkCheckpoint, source: str, kind: str, after: int, options: Mapping[str, str]
) -> SourceInput:
    entries = dict(_logged_files(checkpoint, source, after))
    if not entries:
        return SourceInput(source, kind, "there", "no files come again")
    gone, sizes, is_known = [], 0, True
    for uri in entries:
        size = _size_of(uri, options)
        if size is None:
            gone.append(uri)
        elif size < 0:
            is_known = False
        else:
            sizes += size
    standing: Standing = "gone" if gone else "there" if is_known else "not checked"
    batches = len(set(entries.values()))
    usual = max(1, round(len(entries) / max(1, batches)))
    count = f"{len(entries):,} file{'' if len(entries) == 1 else 's'}"
    return SourceInput(
        source,
        kind,
        standing,
        f"{count} come again, {sizes:,} bytes",
        len(entries),
        sizes,
        tuple(gone),
        is_large=len(entries) > _MANY * usual,
    )


def _logged_files(
    checkpoint: SparkCheckpoint, source: str, after: int
) -> Iterator[tuple[str, int]]:
    """The files that a file source read in batches of its log above one, with these batches.

    Spark merges old entries of the log into one file now and then, and removes them.
    """
    folder = f"{SOURCES}/{source}"
    for name in checkpoint.files.names(folder):
        number = name.removesuffix(".compact")
        if not number.isdecimal() or int(number) <= after:
            continue
        for line in (checkpoint.files.read_text(f"{folder}/{name}") or "").splitlines():
            entry = _parsed(line) if line.startswith("{") else None
            if isinstance(entry, dict) and int(entry.get("batchId", -1)) > after:
                yield str(entry["path"]), int(entry["batchId"])


def _size_of(uri: str, options: Mapping[str, str]) -> int | None:
    """The size of a file; None where it is gone, and −1 where that cannot be known from here."""
    parts = urlsplit(uri)
    path = unquote(parts.path)
    folder, _, name = path.rpartition("/")
    scheme = parts.scheme or "file"
    location = (folder or "/") if scheme == "file" else f"{scheme}://{parts.netloc}{folder}"
    try:
        return open_storage(location, options).source.size(name)
    except (HoldfastError, ImportError, OSError, ValueError):
        return -1
