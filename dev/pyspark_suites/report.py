"""The report: for each suite what came of its tests when it last ran, and a page of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from pyspark_suites.outcomes import Verdict

_WORDS = ("passed", "skipped", "expected", "unexpected")


class SuiteResult(TypedDict):
    """What came of a suite: for each test a word of `Verdict` and, if it differs, why."""

    versions: str
    tests: dict[str, tuple[str, str]]


def suite_result(verdicts: Sequence[Verdict], versions: str) -> SuiteResult:
    """The result of a suite that has just run."""
    return {"versions": versions, "tests": {v.outcome.test: (v.word, _why(v)) for v in verdicts}}


def _why(verdict: Verdict) -> str:
    if verdict.expected is not None:
        return verdict.expected.reason
    if verdict.word != "unexpected":
        return ""
    last = verdict.outcome.detail.strip().splitlines()[-1:] or ["no failure was recorded"]
    return f"{verdict.outcome.status}: {last[0][:300]}"


def update(report: Path, results: Mapping[str, SuiteResult], suites: Sequence[str]) -> str:
    """Put new results in the place of older ones of these suites; write and return the page.

    `report` is the page; the results it is made of are beside it, as JSON.
    """
    data = report.with_suffix(".json")
    known = json.loads(data.read_text()) if data.exists() else {}
    known.update(results)
    merged = {suite: known[suite] for suite in suites if suite in known}
    report.parent.mkdir(parents=True, exist_ok=True)
    data.write_text(json.dumps(merged, indent=1) + "\n")
    text = page(merged)
    report.write_text(text)
    return text


def page(results: Mapping[str, SuiteResult]) -> str:
    """The page for people."""
    lines = [
        "# PySpark's own suites on Holdfast",
        "",
        "`make test-pyspark-suites SPARK=<checkout>` writes this file: Spark's tests, unchanged. "
        "Their streams are wrapped by `stateful()` before the first stateful operator; a stream "
        "without one is written through an operator that emits each row as it is.",
        "",
        "| suite | tests | passed | skipped | differ as expected | differ unexpectedly | with |",
        "|---|---|---|---|---|---|---|",
        *(_totals(suite, result) for suite, result in results.items()),
        "",
        "*Skipped* tests are skipped by Spark itself. What is expected to differ, and why, is in "
        "`dev/pyspark_suites/expected.txt`.",
        *_section(results, "unexpected", "Unexpected differences"),
        *_section(results, "expected", "Expected differences"),
        *_section(results, "skipped", "Skipped tests"),
        *_section(results, "passed", "Passed tests"),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def _totals(suite: str, result: SuiteResult) -> str:
    counts = Counter(word for word, _ in result["tests"].values())
    cells = [suite, len(result["tests"]), *(counts[word] for word in _WORDS), result["versions"]]
    return f"| {' | '.join(map(str, cells))} |"


def _section(results: Mapping[str, SuiteResult], word: str, title: str) -> Iterator[str]:
    found = [
        (test, why)
        for result in results.values()
        for test, (what, why) in result["tests"].items()
        if what == word
    ]
    if not found:
        return
    yield from ("", f"## {title}", "")
    for test, why in found:
        yield f"- `{test}`: {why}" if why else f"- `{test}`"
