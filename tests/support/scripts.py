"""Runs scripts one after another in one process: python scripts.py, then a script a line.

A script that starts Spark and stops it leaves the JVM running, and the next one has it. What a
script prints goes to the file that the line names; the answer is its exit code. No PYSPARK_PYTHON
is set, and the python3 of the PATH has no packages.
"""

from __future__ import annotations

import json
import os
import runpy
import shlex
import subprocess
import sys
import traceback
from pathlib import Path


class Scripts:
    """A process that runs scripts, each of them with a Spark of its own, in the folder `cwd`."""

    def __init__(self, cwd: Path, log: Path) -> None:
        self.cwd, self._log = cwd, log
        environment = {**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1"}
        environment.pop("PYSPARK_PYTHON", None)
        environment["PATH"] = f"{bare_python(log / 'bin')}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", __file__],
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, script: Path) -> str:
        """What a script prints; it has to end well."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        output = self._log / f"{script.stem}.out"
        self._process.stdin.write(json.dumps([str(script), str(output)]) + "\n")
        self._process.stdin.flush()
        code = self._process.stdout.readline().strip()
        printed = output.read_text()
        assert code == "0", printed
        return printed

    def close(self) -> None:
        """End the process, and its JVM with it."""
        self._process.communicate(timeout=120)


def bare_python(folder: Path) -> Path:
    """The folder, made with a python3 in it that has the standard library only."""
    folder.mkdir()
    python = folder / "python3"
    python.write_text(f'#!/bin/sh\nexec {shlex.quote(os.path.realpath(sys.executable))} -S "$@"\n')
    python.chmod(0o755)
    return folder


def _run(script: str) -> int:
    sys.argv, sys.path[0] = [script], str(Path(script).parent)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return int(end.code or 0)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        script, output = json.loads(line)
        with open(output, "w") as file:
            os.dup2(file.fileno(), 1)
        with open(f"{output}.err", "w") as file:
            os.dup2(file.fileno(), 2)
        code = _run(script)
        sys.stdout.flush()
        sys.stderr.flush()
        if code:
            Path(output).write_text(Path(output).read_text() + Path(f"{output}.err").read_text())
        answers.write(f"{code}\n")
        answers.flush()


if __name__ == "__main__":
    main()
