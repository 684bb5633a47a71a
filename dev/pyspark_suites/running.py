"""Runs one of Spark's test modules in a process of its own, and records what came of each test.

python -m pyspark_suites.running CHECKOUT MODULE RESULT SECONDS
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import pyspark.sql
from pyspark import cloudpickle

from pyspark_suites.suites import PACKAGE, is_run, short_name
from pyspark_suites.wrapping import wrap_spark

_Raised = tuple[type[BaseException], BaseException, TracebackType]


class OverTime(BaseException):
    """A test that took longer than it may; no test catches this."""


class Recorder(unittest.TestResult):
    """Writes all outcomes to a file after each test: a process that dies has told what it knew."""

    def __init__(self, tests: list[str], path: Path, seconds: int) -> None:
        super().__init__()
        self._path, self._seconds = path, seconds
        self._outcomes = {name: ["unfinished", ""] for name in tests}
        signal.signal(signal.SIGALRM, self._over)
        self._write()

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        print(short_name(test.id()), flush=True)
        signal.alarm(self._seconds)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)
        self._write()

    def addSuccess(self, test: unittest.TestCase) -> None:
        if self._outcomes[short_name(test.id())][0] == "unfinished":
            self._record(test, "passed")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._record(test, "failed", _text(err))

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._record(test, "failed", _text(err))

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._record(test, "skipped", reason)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._record(test, "failed", _text(err))

    def _record(self, test: unittest.TestCase, status: str, detail: str = "") -> None:
        self._outcomes[short_name(test.id())] = [status, detail]
        if detail:
            print(f"  {status}: {detail}", flush=True)

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._outcomes))

    def _over(self, _signal: int, _frame: FrameType | None) -> None:
        raise OverTime(f"The test took longer than {self._seconds} s.")


def _text(err: _Raised) -> str:
    return "".join(traceback.format_exception(*err))


def main(checkout: Path, module: str, result: Path, seconds: int) -> None:
    _stand_in_for(checkout)
    wrap_spark()
    name = f"{PACKAGE}.{module}"
    loaded = unittest.defaultTestLoader.loadTestsFromName(name)
    tests = [test for test in _flat(loaded) if is_run(test.id())]
    names = [short_name(test.id()) for test in tests]
    unittest.TestSuite(tests).run(Recorder(names, result, seconds))


def _stand_in_for(checkout: Path) -> None:
    """Make Spark's tests and their files findable, beside the PySpark that is installed.

    Tests name their files relative to a checkout, and write into the folder they run in, which
    shall not be the checkout. Workers do not have the tests: they get them by value.
    """
    folder = tempfile.mkdtemp(prefix="pyspark-suites-")
    os.chdir(folder)
    Path("python").symlink_to(checkout / "python")
    pyspark.sql.__path__.append(str(checkout / "python" / "pyspark" / "sql"))
    by_value: Any = cloudpickle.register_pickle_by_value
    by_value(importlib.import_module(PACKAGE))
    by_value(importlib.import_module("pyspark_suites"))


def _flat(suite: unittest.TestSuite | unittest.TestCase) -> Iterator[unittest.TestCase]:
    if isinstance(suite, unittest.TestCase):
        yield suite
    else:
        for each in suite:
            yield from _flat(each)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]).resolve(), int(sys.argv[4]))
    # Streams that a test left running would keep the process alive.
    os._exit(0)
