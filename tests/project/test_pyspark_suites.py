"""How what came of PySpark's own suites is held against the list of expected differences."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pyspark_suites import __main__ as command
from pyspark_suites.outcomes import Difference, Outcome, judge, read_differences, stale
from pyspark_suites.report import page, suite_result, update
from pyspark_suites.suites import is_run, short_name

DIFFERENCES = [Difference("A*.test_limit", "one frame", "Frames are cut otherwise.")]
OUTCOMES = [
    Outcome("AOne.test_limit", "failed", "Traceback …\nAssertionError: one frame"),
    Outcome("ATwo.test_limit", "failed", "Traceback …\nAssertionError: no frame | none"),
    Outcome("AOne.test_basic", "passed"),
    Outcome("B.test_flaky", "skipped", "flaky"),
    Outcome("B.test_last", "unfinished"),
]
WORDS = ["expected", "unexpected", "passed", "skipped", "unexpected"]


def test_a_failure_is_expected_for_its_own_reason_alone() -> None:
    assert [verdict.word for verdict in judge(OUTCOMES, DIFFERENCES)] == WORDS


def test_a_line_that_no_failure_needs_is_stale_once_its_tests_have_run() -> None:
    gone = Difference("AOne.test_basic", "", "It fails no more.")
    elsewhere = Difference("C.test_other", "x", "Its suite has not run.")
    differences = [*DIFFERENCES, gone, elsewhere]
    assert stale(judge(OUTCOMES, differences), differences) == [gone]


def test_the_list_is_a_line_for_each_reason() -> None:
    text = "# why\n\nA*.test_limit | one frame | Frames are cut otherwise.\n"
    assert read_differences(text) == DIFFERENCES
    for wrong in ("A.test | failure", "A.test | | reason", "A.test | a | b | c"):
        with pytest.raises(ValueError, match="part of the failure"):
            read_differences(wrong)


def test_the_committed_list_names_tests_failures_and_reasons() -> None:
    for line in read_differences(command.LIST.read_text()):
        assert "test_" in line.tests
        assert line.reason.endswith(".")


def test_the_report_counts_suites_and_tells_each_difference() -> None:
    text = page({"state": suite_result(judge(OUTCOMES, DIFFERENCES), "PySpark 4")})
    assert "| state | 5 | 1 | 1 | 1 | 2 | PySpark 4 |" in text
    assert "- `ATwo.test_limit`: failed: AssertionError: no frame | none" in text
    assert "- `B.test_last`: unfinished: no failure was recorded" in text
    assert "- `AOne.test_limit`: Frames are cut otherwise." in text


def test_a_suite_that_runs_again_replaces_its_own_part_of_the_report(tmp_path: Path) -> None:
    report, suites = tmp_path / "results" / "report.md", ["state", "listener"]
    verdicts = judge(OUTCOMES, DIFFERENCES)
    update(report, {"listener": suite_result(verdicts[3:], "PySpark 4")}, suites)
    update(report, {"state": suite_result(verdicts[:3], "PySpark 4")}, suites)
    again = update(report, {"state": suite_result(verdicts[2:3], "PySpark 5")}, suites)
    assert again == report.read_text()
    rows = [line for line in again.splitlines() if line.endswith(("PySpark 4 |", "PySpark 5 |"))]
    assert rows == ["| state | 1 | 1 | 0 | 0 | 0 | PySpark 5 |",
                    "| listener | 2 | 0 | 1 | 0 | 1 | PySpark 4 |"]  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "code"), [(["passed", ""], 0), (["failed", "no"], 1), (["unfinished", ""], 1)]
)
def test_the_exit_code_is_that_of_unexpected_differences(
    outcome: list[str],
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "python" / "pyspark" / "sql" / "tests").mkdir(parents=True)
    # In the place of Spark's tests stands a module that knows what came of them.
    (tmp_path / "known.py").write_text(
        "import pathlib, sys\n"
        f"pathlib.Path(sys.argv[3]).write_text({json.dumps({'A.test_it': outcome})!r})\n"
    )
    monkeypatch.setattr(command, "RUNNER", [sys.executable, str(tmp_path / "known.py")])
    report = tmp_path / "report.md"
    arguments = [str(tmp_path), "--report", str(report)]
    assert command.main(arguments) == code
    assert "A.test_it" in report.read_text()
    assert "A.test_it" in capsys.readouterr().out


def test_tests_without_a_stream_are_left_out() -> None:
    assert short_name("pyspark.sql.tests.streaming.test_streaming.StreamingTests.test_a") == (
        "StreamingTests.test_a"
    )
    assert is_run("m.StreamingTests.test_stream_exception")
    assert not is_run("m.StreamingTests.test_assert_classic_mode")
    assert not is_run("m.TwsTesterTests.test_value")
