"""The command line, called in this process, and what it prints."""

from __future__ import annotations

import json
import re
from typing import Any

from typer.testing import CliRunner

from holdfast.cli import app


def run(*arguments: object, code: int = 0) -> str:
    """What a command prints on stdout, once it ended with `code`."""
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert done.exit_code == code, f"{done.stdout}\n{done.stderr}\n{done.exception!r}"
    return done.stdout


def fails(*arguments: object, code: int) -> str:
    """What a command prints on stderr, having printed nothing else and ended with `code`."""
    done = CliRunner().invoke(app, [str(a) for a in arguments], env={"COLUMNS": "200"})
    assert (done.exit_code, done.stdout) == (code, ""), f"{done.stdout}\n{done.exception!r}"
    return done.stderr


def run_json(*arguments: object, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", code=code))


def lines(text: str) -> list[str]:
    """Lines as a person reads them: times replaced, runs of blanks made one."""
    timed = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", text)
    named = re.sub(r"[0-9a-f]{32}", "ID", timed)
    return [" ".join(line.split()) for line in named.splitlines() if line.strip(" ─")]
