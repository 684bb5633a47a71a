"""What ends a stream is one of Holdfast's errors, short, and still what Spark's users catch."""

from __future__ import annotations

import gc
import pickle
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from native import SCHEMA, write_batches
from pyspark.errors import PySparkException, PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import holdfast
from holdfast import stateful
from holdfast.errors import ArithmeticOverflow, Corruption, InvalidArgument, Unavailable
from holdfast.spark.running.failures import as_end, unwrapped, without_frames


def start(spark: SparkSession, folder: Path, deliver: Any) -> Any:
    rows = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1")
    return (
        stateful(rows.parquet(str(folder / "in")))
        .groupBy("id")
        .count()
        .writeStream.outputMode("update")
        .foreachBatch(deliver)
        .option("checkpointLocation", str(folder / "cp"))
        .start()
    )


@pytest.mark.spark
def test_damaged_state_ends_a_stream_as_corruption_wherever_it_is_asked(
    spark: SparkSession, tmp_path: Path
) -> None:
    write_batches(tmp_path / "in", seed=1, batches=1)
    query = start(spark, tmp_path, lambda frame, number: None)
    query.processAllAvailable()
    query.stop()
    for file in (tmp_path / "cp" / "holdfast").rglob("*"):
        if file.is_file() and file.parent.name != "versions" and file.stat().st_size > 200:
            file.write_bytes(b"\0" * file.stat().st_size)
    write_batches(tmp_path / "in", seed=1, batches=2)
    query = start(spark, tmp_path, lambda frame, number: None)
    with pytest.raises(holdfast.Corruption) as caught:
        query.processAllAvailable()
    with pytest.raises(holdfast.Corruption):
        query.awaitTermination(240)
    ended = query.exception()
    assert isinstance(ended, StreamingQueryException)
    assert isinstance(ended.__cause__, PySparkException)
    assert len(str(caught.value).splitlines()) <= 10
    assert len(str(caught.value)) < 1000
    query.stop()


@pytest.mark.spark
def test_an_exception_of_the_users_own_is_the_cause_with_its_type_and_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    class Mine(Exception):
        pass

    def deliver(frame: DataFrame, number: int) -> None:
        raise Mine("not today")

    write_batches(tmp_path / "in", seed=1, batches=1)
    query = start(spark, tmp_path, deliver)
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination(240)
    cause = caught.value.__cause__
    assert isinstance(cause, Mine)
    assert not isinstance(caught.value, holdfast.HoldfastError)
    frames = cause.__traceback__
    assert frames is not None
    while frames.tb_next is not None:
        frames = frames.tb_next
    assert frames.tb_frame.f_code.co_name == "deliver"


def test_an_error_of_a_task_is_found_in_the_text_that_reaches_the_driver() -> None:
    text = (
        "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
        '  File "task.py", line 1, in run\nholdfast.errors.Unavailable: The disk is gone.\n\n'
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\nholdfast.errors.InvalidArgument: No such column.\n"
        "[STATE_STORE_INVALID_SCHEMA]\nIn run 1, operator 0, partition 1\n\tat org.apache.spark\n"
    )
    found = unwrapped(PythonException(message=text))
    assert isinstance(found, InvalidArgument)
    assert (str(found), found.condition) == ("No such column.", "STATE_STORE_INVALID_SCHEMA")
    assert found.__notes__ == ["In run 1, operator 0, partition 1"]


def test_a_full_disk_under_spark_is_an_error_that_says_so() -> None:
    found = unwrapped(PythonException(message="java.io.IOException: No space left on device"))
    assert isinstance(found, Unavailable)
    assert "Free some space" in str(found)


def test_an_exception_that_a_processor_raises_from_one_of_ours_stays_its_own() -> None:
    text = (
        "Traceback (most recent call last):\nholdfast.errors.InvalidArgument: No such state.\n\n"
        "The above exception was the direct cause of the following exception:\n\n"
        "Traceback (most recent call last):\nValueError: my own check failed\n\n\tat org.apache\n"
    )
    error = PythonException(message=text)
    assert unwrapped(error) is error
    full = PythonException(message="OSError: [Errno 28] No space left on device: 'mine.csv'")
    assert unwrapped(full) is full


def test_an_error_that_is_not_ours_stays_as_it_is() -> None:
    for error in (KeyError("x"), PythonException(message="KeyError: 'x'")):
        assert unwrapped(error) is error


@pytest.mark.parametrize("kind", [Corruption, InvalidArgument, ArithmeticOverflow])
def test_the_end_of_a_query_is_caught_as_ours_and_as_sparks(kind: Any) -> None:
    ended = as_end(kind("What happened."))
    assert isinstance(ended, kind)
    assert isinstance(ended, StreamingQueryException)
    assert str(ended) == "What happened."
    assert ended.getCondition() == ended.condition == kind.default_condition
    again = pickle.loads(pickle.dumps(ended))
    assert (type(again), str(again)) == (kind, "What happened.")
    assert as_end(ended) is ended


class OfItsOwn(ValueError):
    """Is made of what is not its args, as errors of users' libraries may be."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{why} ({code})")
        self.code = code


@dataclass(frozen=True)
class Frozen(Exception):
    """Lets nobody change it."""

    code: int


def _raised(error: BaseException) -> tuple[BaseException, weakref.ref[Any]]:
    """An error that was raised, from another, and a reference to what was in the frame."""

    class Held:
        pass

    held = Held()
    try:
        try:
            raise KeyError("before")
        except KeyError as first:
            vars(error).update(__notes__=["a note"], _cause=first)
            raise error from first
    except BaseException as caught:
        return caught, weakref.ref(held)


_MADE: dict[str, Callable[[], BaseException]] = {
    "of its own": lambda: OfItsOwn(5, why="it is full"),
    "of a file": lambda: FileNotFoundError(2, "No such file", "a.json"),
    "of text": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "of a query": lambda: as_end(Corruption("A page is damaged.")),
    "of another": lambda: RuntimeError("it is full", _raised(KeyError("first"))[0]),
    "frozen": lambda: Frozen(5),
}


@pytest.mark.parametrize("make", _MADE.values(), ids=_MADE)
def test_an_error_that_is_kept_is_the_same_without_what_its_frames_held(
    make: Callable[[], BaseException],
) -> None:
    raised, held = _raised(make())
    kept = without_frames(raised)
    assert type(kept) is type(raised)
    assert (str(kept), repr(kept)) == (str(raised), repr(raised))
    assert getattr(kept, "code", None) == getattr(raised, "code", None)
    assert vars(kept).keys() == vars(raised).keys()
    assert isinstance(kept.__cause__, KeyError)
    assert kept.__cause__ is kept.__context__ is vars(kept)["_cause"]
    assert kept.__suppress_context__
    in_args = [each for each in kept.args if isinstance(each, BaseException)]
    for each in (kept, kept.__cause__, *in_args):
        assert each.__traceback__ is None
        assert "in _raised" in each.__notes__[-1]
    assert kept.__notes__[0] == "a note"
    again = without_frames(kept)
    assert (str(again), again.__notes__) == (str(kept), kept.__notes__)
    assert raised.__traceback__ is not None
    assert raised.__notes__ == ["a note"]
    assert held() is not None
    del raised
    gc.collect()
    assert held() is None
