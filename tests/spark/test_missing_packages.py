"""What a task could not import is named to the user, with what to do; other failures pass."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from holdfast.errors import InvalidArgument
from holdfast.spark.running.failures import explained

STREAMS = Path(__file__).resolve().parents[2] / "docs" / "streams.md"


def _failure(module: str) -> PySparkException:
    text = f"Job aborted.\nTraceback:\nModuleNotFoundError: No module named '{module}'\n at"
    return PySparkException(message=text)


@pytest.mark.parametrize("module", ["holdfast", "holdfast.streams.tasks.task", "xxhash"])
def test_a_module_that_tasks_lack_is_named_with_what_to_do(module: str) -> None:
    with pytest.raises(InvalidArgument) as raised, explained("/state"):
        raise _failure(module)
    assert raised.value.condition == "STATE_STORE_NOT_ON_EXECUTORS"
    for part in (f"'{module}'", "/state", "Install holdfast", "--py-files", "--archives"):
        assert part in str(raised.value)


def test_the_error_names_a_section_of_the_documentation() -> None:
    with pytest.raises(InvalidArgument) as raised, explained("/state"):
        raise _failure("holdfast")
    (section,) = re.findall(r"docs/streams\.md .* '(.+)'\.", str(raised.value))
    assert f"\n## {section}\n" in STREAMS.read_text()


@pytest.mark.parametrize(
    "error",
    [_failure("pandas"), _failure("holdfast_extras"), PySparkException(message="out of memory"),
     ModuleNotFoundError("No module named 'holdfast.nothing'")],
    ids=["another module", "a like name", "another failure", "the driver's own import"],
)  # fmt: skip
def test_other_failures_pass_as_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as raised, explained("/state"):
        raise error
    assert raised.value is error
