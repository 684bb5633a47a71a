"""What Spark's own streaming gave on a case, kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import custom_cases
import differential
import pyarrow as pa
from outcomes import Outcome

_TESTS = Path(__file__).parents[2] / "spark"
RECORDED = _TESTS / "recorded"
RECORDED_CUSTOM = _TESTS / "recorded_custom"
SCRIPT = "tests/spark/record_native.py"


@dataclass(frozen=True)
class Recording:
    """A case, and what the Spark of one version gave on it."""

    of: ClassVar[type[Any]] = differential.Case
    tables: ClassVar[Callable[[Any], Iterable[pa.Table]]] = staticmethod(differential.tables)

    case: Any
    spark: str
    outcome: Outcome

    def save(self, path: Path) -> None:
        """Write the file, one start a line."""
        head = {"script": SCRIPT, "spark": self.spark, "input": self.digest(self.case)}
        lines = ["{", *(f"{_text(k)}: {_text(v)}," for k, v in head.items())]
        lines += [f'"case": {_text(self.case.json())},', '"starts": [']
        lines += [",\n".join(map(_text, self.outcome)), "]}"]
        path.write_text("\n".join(lines) + "\n")

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; refused when the case's input is no longer the one it was made from."""
        body = json.loads(path.read_text())
        case = cls.of.from_json(body["case"])
        assert body["input"] == cls.digest(case), (
            f"{path.name} was made from other rows than the case gives now: run {SCRIPT} again."
        )
        return cls(case, body["spark"], body["starts"])

    @classmethod
    def digest(cls, case: Any) -> str:
        """A digest of a case's rows, by value."""
        digest = hashlib.sha256()
        for table in cls.tables(case):
            digest.update(str(table.schema).encode())
            digest.update(repr(_rows(table)).encode())
        return digest.hexdigest()[:16]


class CustomRecording(Recording):
    """The same of a case of custom state."""

    of = custom_cases.CustomCase
    tables = staticmethod(custom_cases.tables)


def _text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows
