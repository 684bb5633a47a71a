"""Spark's checkpoint of a query: its layout, what its entries say, and which state belongs to it.

Everything here works on text. Whoever has files to offer, by Hadoop's file systems or by a storage
of Holdfast's own, offers them as `CheckpointFiles`.

A checkpoint has the file `metadata` with the query's id. Before batch N Spark writes `offsets/N`:
the version of the entry in a line, what Spark planned the batch with in another, and a line for
each source. After batch N it writes `commits/N`. Holdfast leaves a note with its state's id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from holdfast.errors import IllegalState

METADATA = "metadata"
OFFSETS = "offsets"
COMMITS = "commits"
SPARK_STATE = "state"
"""The folder with the state of Spark's own stateful operators."""
NOTE = "holdfast-state"
"""The file that holds the id of Holdfast's state."""

WRONG_PAIR = "STATE_STORE_WRONG_PAIR"
_VERSION = re.compile(r"v([0-9]+)")
_NO_OFFSET = "-"
"""What stands in place of the offset of a source that has had no data yet."""
_NAMED = re.compile(r"(?P<source>[^:{\s]+):(?P<offset>.*)")
"""A source's line since version 2 of the offset log."""


class CheckpointFiles(Protocol):
    """The files of one checkpoint. Paths are relative to it, with '/' between parts."""

    def read_text(self, path: str, /) -> str | None:
        """A small text file, or None when there is none."""

    def names(self, path: str, /) -> list[str]:
        """The names of the files and folders right below a folder ("" is the checkpoint itself).

        Empty for a folder that is not there. Entries that are being written may be listed under
        names of their own.
        """

    def create_if_absent(self, path: str, text: str, /) -> bool:
        """Make a small text file, whole or not at all, unless there is one; whether it did."""

    def move(self, path: str, target: str, /) -> bool:
        """Give a small file another name; False where it is gone, or the other name is taken."""


class PairedVersion(Protocol):
    """What a version of a state says about the query it belongs to, as its manifest has it."""

    @property
    def scope(self) -> Mapping[str, Any]:
        """The id of the state is under `id`; state of the first releases has none."""

    @property
    def batch(self) -> Mapping[str, Any] | None:
        """The last batch that is in the version: `id`, `query_id` and the text of `offsets`."""


@dataclass(frozen=True)
class OffsetEntry:
    """An entry of the offset log: the end of a batch, planned before it ran."""

    version: int | None
    """Of the log's format; None for a text that Spark has not written."""
    timestamp_ms: int | None = None
    """When Spark planned the batch: the same each time it brings it."""
    watermark_ms: int | None = None
    """Spark's own watermark for the batch."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of the session that a checkpoint keeps for good."""
    sources: Mapping[str, str | None] = field(default_factory=dict)
    """How far each source was read, by its name, or by its place in the query where it has none.

    None for a source without data so far.
    """

    @classmethod
    def parse(cls, text: str) -> OffsetEntry:
        """What an entry says, as far as it can be read: nothing in a text is refused."""
        lines = [line for line in text.splitlines() if line]
        found = _VERSION.fullmatch(lines[0]) if lines else None
        version = None if found is None else int(found[1])
        rest = lines if found is None else lines[1:]
        planned: Mapping[str, Any] = {}
        if rest and (read := _planned_with(rest[0])) is not None:
            planned, rest = read, rest[1:]
        return cls(
            version,
            _whole_number(planned.get("batchTimestampMs")),
            _whole_number(planned.get("batchWatermarkMs")),
            planned.get("conf", {}),
            dict(_source(line, number, version) for number, line in enumerate(rest)),
        )


@dataclass(frozen=True)
class CommitEntry:
    """An entry of the commit log, written after a batch."""

    version: int | None
    next_watermark_ms: int | None = None
    """Spark's own watermark from the next batch on."""

    @classmethod
    def parse(cls, text: str) -> CommitEntry:
        """What an entry says, as far as it can be read."""
        first, _, rest = text.partition("\n")
        found = _VERSION.fullmatch(first)
        body = _json_object(rest) or {}
        return cls(
            None if found is None else int(found[1]),
            _whole_number(body.get("nextBatchWatermarkMs")),
        )


@dataclass(frozen=True)
class NextBatch:
    """The batch that Spark brings when its query starts."""

    id: int
    is_planned: bool
    """Whether its offsets are in the log already: then it comes with these, maybe again."""


@dataclass(frozen=True)
class SparkCheckpoint:
    """The checkpoint of one query. Everything is read when it is asked for."""

    files: CheckpointFiles
    location: str
    """What messages call it."""

    def query_id(self) -> str | None:
        """The id that Spark gave the query, the same across restarts; None before its start."""
        text = self.files.read_text(METADATA)
        return None if text is None else str(json.loads(text)["id"])

    def state_id(self) -> str | None:
        """The id of Holdfast's state by its note.

        None where there is no note, and empty where the state has no id.
        """
        text = self.files.read_text(NOTE)
        return None if text is None else text.strip()

    def is_noted(self) -> bool:
        """Whether state was made with this checkpoint; its first version is there before the note.

        A checkpoint that Holdfast works with has its note before Spark writes a byte.
        """
        return self.state_id() is not None

    def note_state(self, state_id: str) -> None:
        """Leave the id of the state that belongs to it. A note that is there stays as it is."""
        self.files.create_if_absent(NOTE, f"{state_id}\n")

    def offsets(self, batch_id: int) -> str | None:
        """The entry of a batch in the offset log; `OffsetEntry.parse` reads it."""
        return self.files.read_text(f"{OFFSETS}/{batch_id}")

    def commit(self, batch_id: int) -> str | None:
        """The entry of a batch in the commit log; `CommitEntry.parse` reads it."""
        return self.files.read_text(f"{COMMITS}/{batch_id}")

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has taken note that a batch is done."""
        return self.commit(batch_id) is not None

    def planned(self) -> list[int]:
        """The batches in the offset log, in order. Spark removes old ones."""
        return self._numbers(OFFSETS)

    def committed(self) -> list[int]:
        """The batches in the commit log, in order. Spark removes old ones."""
        return self._numbers(COMMITS)

    def next_batch(self) -> NextBatch:
        """The batch that Spark brings next: the newest one planned, unless that is committed."""
        planned, committed = self.planned(), self.committed()
        if not planned:
            return NextBatch(0, is_planned=False)
        if committed[-1:] == planned[-1:]:
            return NextBatch(planned[-1] + 1, is_planned=False)
        return NextBatch(planned[-1], is_planned=True)

    def has_spark_state(self) -> bool:
        """Whether a query of Spark's own with stateful operators made it."""
        return SPARK_STATE in self.files.names("")

    def _numbers(self, log: str) -> list[int]:
        return sorted(int(name) for name in self.files.names(log) if name.isdecimal())

    # -- pairing -------------------------------------------------------------------------------

    def check_pair(self, root: str, found: PairedVersion | None) -> None:
        """Refuse state that was not made with this checkpoint, or is gone.

        `found` is the newest version of the state in `root`. Raises IllegalState
        (STATE_STORE_WRONG_PAIR).
        """
        noted = self.state_id() or ""
        if found is None:
            if noted:
                raise IllegalState(
                    f"The checkpoint {self.location} belongs to the state {noted}, and there is "
                    f"none in {root}. Bring the state back, or start with a new checkpoint.",
                    condition=WRONG_PAIR,
                )
            return
        own = found.scope.get("id")
        if noted and noted != own:
            raise IllegalState(
                f"The checkpoint {self.location} belongs to the state {noted}; in {root} is the "
                f"state {own}. Give each query its own stateLocation.",
                condition=WRONG_PAIR,
            )
        query_id = self.query_id()
        if found.batch is not None and found.batch["query_id"] != query_id:
            raise IllegalState(
                f"The state in {root} belongs to Spark's query {found.batch['query_id']}; the "
                f"checkpoint {self.location} is that of "
                f"{'a new query' if query_id is None else f'query {query_id}'}. Use the "
                "checkpoint it was made with, or another stateLocation.",
                condition=WRONG_PAIR,
            )

    def check_not_native(self, newest: Callable[[], PairedVersion | None]) -> None:
        """Refuse a checkpoint that a query of Spark's own made.

        State of Holdfast's first versions has no id and left no note: it is known by Spark's
        query, as `check_pair` does. `newest` gives the newest version of the state, and is asked
        only where there is no note. Raises IllegalState (STATE_STORE_WRONG_PAIR).
        """
        if self.is_noted():
            return
        batches = [number + 1 for number in (*self.planned(), *self.committed())]
        # The latter two are there before the first batch, too.
        if not batches and not {METADATA, SPARK_STATE}.intersection(self.files.names("")):
            return
        found = newest()
        if found is None or (found.batch is None and "id" in found.scope):
            count = max(batches, default=0)
            raise IllegalState(
                f"The checkpoint {self.location} was made by Spark's own streaming "
                f"({count} {'batch' if count == 1 else 'batches'}), and Holdfast has no state for "
                "it. Nothing was changed. Start with a new checkpoint location.",
                condition=WRONG_PAIR,
            )

    def check_next_batch(
        self, last: Mapping[str, Any] | None, batch: Mapping[str, Any], root: str
    ) -> bool:
        """Whether Spark brings a batch again that is committed: by its content, not its number.

        `last` is the newest batch in the state, `batch` the one that Spark brings. Raises
        IllegalState (STATE_STORE_WRONG_PAIR) where that neither is the newest one again nor
        follows on it.
        """
        expected = 0 if last is None else last["id"] + 1
        if batch["id"] == expected:
            return False
        if last is not None and (batch["id"], batch["offsets"]) == (last["id"], last["offsets"]):
            return True
        seen = "none" if last is None else f"{last['id']}, up to {_source_offsets(last)}"
        raise IllegalState(
            f"Spark brings batch {batch['id']}, up to {_source_offsets(batch)}. The state's "
            f"last batch is {seen}. The checkpoint {self.location} and the state {root} do not "
            "belong together; nothing was changed.",
            condition=WRONG_PAIR,
        )


def moment_of(batch: Mapping[str, Any] | None) -> int | None:
    """When Spark planned a batch, in ms, by its `offsets`; None where they do not say."""
    return None if batch is None else OffsetEntry.parse(batch["offsets"] or "").timestamp_ms


def _source_offsets(batch: Mapping[str, Any]) -> str:
    """Where the sources stood at the end of a batch, in words."""
    entry = OffsetEntry.parse(batch["offsets"] or "")
    found = [
        offset or _NO_OFFSET if entry.version in (None, 1) else f"{source}:{offset or _NO_OFFSET}"
        for source, offset in entry.sources.items()
    ]
    return "; ".join(found) or "no known offsets"


def _planned_with(line: str) -> Mapping[str, Any] | None:
    """The line of Spark's settings for a batch; None for any other."""
    body = _json_object(line)
    is_found = body is not None and not {"batchWatermarkMs", "batchTimestampMs"}.isdisjoint(body)
    return body if is_found else None


def _source(line: str, number: int, version: int | None) -> tuple[str, str | None]:
    named = _NAMED.fullmatch(line) if version is not None and version > 1 else None
    source, offset = (str(number), line) if named is None else (named["source"], named["offset"])
    return source, None if offset == _NO_OFFSET else offset


def _json_object(text: str) -> Mapping[str, Any] | None:
    if not text.startswith("{"):
        return None
    try:
        body = json.loads(text)
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) else None
