"""Listeners, figures and the live line tell what a query does, and do it no harm."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
import threading
import types
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from processors import ClearsWhatIsNot
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQueryListener
from waiting import until

import holdfast
from holdfast import stateful
from holdfast.spark.monitoring import line
from holdfast.spark.monitoring.listeners import MOST_WAITING, Announcer, Listeners
from holdfast.spark.monitoring.metrics import (
    CONTENT_TYPE,
    MetricsServer,
    QueryMetrics,
    metrics_text,
)

pytestmark = pytest.mark.spark


class Heard(StreamingQueryListener):
    """Keeps every event, as (kind, event)."""

    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def onQueryStarted(self, event: Any) -> None:
        self.events.append(("started", event))

    def onQueryProgress(self, event: Any) -> None:
        self.events.append(("progress", event))

    def onQueryIdle(self, event: Any) -> None:
        self.events.append(("idle", event))

    def onQueryTerminated(self, event: Any) -> None:
        self.events.append(("terminated", event))

    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.events]

    def progress(self) -> list[Any]:
        return [event.progress for kind, event in self.events if kind == "progress"]


class HeardFromTheStart(Heard):
    """Leaves out what it hears of queries it did not hear start.

    `stop()` waits for no listener: the end of an earlier test's query may be told in this one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._runs: set[str] = set()

    def onQueryStarted(self, event: Any) -> None:
        self._runs.add(str(event.runId))
        super().onQueryStarted(event)

    def onQueryProgress(self, event: Any) -> None:
        if str(event.progress.runId) in self._runs:
            super().onQueryProgress(event)

    def onQueryIdle(self, event: Any) -> None:
        if str(event.runId) in self._runs:
            super().onQueryIdle(event)

    def onQueryTerminated(self, event: Any) -> None:
        if str(event.runId) in self._runs:
            super().onQueryTerminated(event)


@pytest.fixture
def heard() -> Iterator[Heard]:
    """A listener to all queries that start in the test."""
    listener = HeardFromTheStart()
    holdfast.addListener(listener)
    yield listener
    holdfast.removeListener(listener)


def stream(spark: SparkSession, folder: Path, files: int = 2) -> Any:
    """Counts of a window's keys over `files` batches of ten rows; the last window stays open."""
    for number in range(files):
        first = number * 10
        rows = spark.range(first, first + 10, 1, 1).selectExpr(
            "concat('k', id % 5) AS k", "timestamp_seconds(1700000000 + id) AS ts"
        )
        rows.write.mode("append").parquet(str(folder))
    source = spark.readStream.schema("k string, ts timestamp").option("maxFilesPerTrigger", "1")
    frame = stateful(source.parquet(str(folder))).withWatermark("ts", "1 second")
    return frame.groupBy("k", F.window("ts", "5 seconds")).count()


def finish(frame: Any, **options: Any) -> Any:
    writer = frame.writeStream.outputMode("update").format("noop").trigger(availableNow=True)
    query = writer.start(**options)
    query.awaitTermination()
    return query


# -- listeners ---------------------------------------------------------------------------------


def test_a_listener_gets_the_whole_progress_in_pysparks_classes(
    spark: SparkSession, tmp_path: Path, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.monitoring.watch._SPARKS_PROGRESS_S", 120)
    query = finish(stream(spark, tmp_path / "in"), queryName="told")
    until(lambda: "terminated" in heard.kinds())
    kinds = heard.kinds()
    assert kinds == ["started", *["progress"] * (len(kinds) - 2), "terminated"]
    first, *_, last = heard.progress()
    assert [p["version"] for p in heard.progress()] == list(range(1, len(kinds) - 1))
    assert first.batchId == 0
    assert first.name == "told"
    assert str(first.id) == query.id
    assert first.numInputRows == 10
    assert first.stateOperators[0].operatorName == "stateStoreSave"
    assert first.stateOperators[0].numRowsTotal == 10
    assert first.stateOperators[0].numRowsUpdated == 10
    assert first.sources[0].numInputRows == 10
    assert "FileStreamSource" in first.sources[0].description
    assert first.sink.description == "NoopSink"
    assert first.batchDuration == first.durationMs["triggerExecution"]
    assert '"numRowsTotal": 10' in first.json
    assert last["isTick"]
    assert last.sources[0].numInputRows == 0
    assert last.sources[0].startOffset == last.sources[0].endOffset
    assert last.eventTime["watermark"] == "2023-11-14T22:13:38.000Z"
    assert query.lastProgress.json == last.json
    assert [p["version"] for p in query.recentProgress] == [p["version"] for p in heard.progress()]
    _, ended = heard.events[-1]
    assert (str(ended.id), ended.exception) == (query.id, None)


def test_a_start_is_told_before_start_returns(
    spark: SparkSession, tmp_path: Path, heard: Heard
) -> None:
    writer = stream(spark, tmp_path / "in").writeStream.outputMode("update").format("noop")
    query = writer.queryName("begun").start()
    try:
        kind, event = heard.events[0]
        assert (kind, event.name, str(event.runId)) == ("started", "begun", query.runId)
    finally:
        query.stop()
    until(lambda: heard.kinds()[-1] == "terminated")


def test_queries_do_not_share_their_own_listeners(
    spark: SparkSession, tmp_path: Path, heard: Heard
) -> None:
    ours, gone = Heard(), Heard()
    queries = []
    for name in ("one", "two"):
        frame = stream(spark, tmp_path / name, files=1)
        queries.append(frame.writeStream.outputMode("update").format("noop").start(queryName=name))
    one, two = queries
    try:
        one.addListener(ours)
        one.addListener(gone)
        one.removeListener(gone)
        for query in queries:
            query.processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    until(lambda: heard.kinds().count("terminated") == 2)
    assert {progress.name for progress in ours.progress()} <= {"one"}
    until(lambda: ours.kinds()[-1] == "terminated")
    assert {progress.name for progress in heard.progress()} == {"one", "two"}
    assert gone.events == []
    assert two.exception() is None


def test_a_listener_that_raises_is_logged_and_does_no_harm(
    spark: SparkSession, tmp_path: Path, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(HeardFromTheStart):
        def onQueryProgress(self, event: Any) -> None:
            raise ValueError("no patience")

    broken = Broken()
    holdfast.addListener(broken)
    try:
        with caplog.at_level(logging.WARNING, "holdfast"):
            query = finish(stream(spark, tmp_path / "in", files=1))
            until(lambda: "terminated" in broken.kinds())
    finally:
        holdfast.removeListener(broken)
    assert query.exception() is None
    assert "onQueryProgress of the listener Broken failed" in caplog.text
    assert "no patience" in caplog.text
    assert "progress" in heard.kinds()
    assert broken.kinds() == ["started", "terminated"]


def test_a_listener_may_stop_the_query(spark: SparkSession, tmp_path: Path) -> None:
    running: list[Any] = []
    stopped = threading.Event()

    class Stops(Heard):
        def onQueryProgress(self, event: Any) -> None:
            running[0].stop()
            stopped.set()

    frame = stream(spark, tmp_path / "in", files=1)
    query = frame.writeStream.outputMode("update").format("noop").start()
    running.append(query)
    query.addListener(Stops())
    # What was there at the start may have been delivered before anybody listened.
    rows = spark.range(1).selectExpr("'k' AS k", "timestamp_seconds(1700000100) AS ts")
    rows.write.mode("append").parquet(str(tmp_path / "in"))
    assert stopped.wait(240)
    query.awaitTermination(240)
    assert not query.isActive


def test_a_failure_is_told_though_nobody_waits(
    spark: SparkSession, tmp_path: Path, heard: Heard
) -> None:
    def fail(frame: DataFrame, version: int) -> None:
        raise ValueError("the sink is full")

    writer = stream(spark, tmp_path / "in", files=1).writeStream.outputMode("update")
    query = writer.foreachBatch(fail).start()
    until(lambda: "terminated" in heard.kinds())
    _, event = heard.events[-1]
    assert "the sink is full" in event.exception
    assert not query.isActive
    with pytest.raises(Exception, match="the sink is full"):
        query.awaitTermination()


def test_an_idle_query_says_so(spark: SparkSession, tmp_path: Path, heard: Heard) -> None:
    setting = "spark.sql.streaming.noDataProgressEventInterval"
    spark.conf.set(setting, "300ms")
    try:
        frame = stream(spark, tmp_path / "in", files=1)
        query = frame.writeStream.outputMode("update").format("noop").start()
        try:
            until(lambda: heard.kinds().count("idle") >= 2)
        finally:
            query.stop()
    finally:
        spark.conf.unset(setting)
    assert heard.kinds().index("progress") < heard.kinds().index("idle")
    assert str(dict(heard.events)["idle"].runId) == query.runId


class ToldQuery:
    """A query as its announcer sees it; counts how often it is asked whether it is idle."""

    id = runId = str(uuid.uuid4())  # noqa: N815 - Spark's name
    name = "told"

    def __init__(self) -> None:
        self.asked = 0

    @property
    def is_idle(self) -> bool:
        self.asked += 1
        return True


def no_progress() -> dict[str, Any]:
    raise AssertionError("nobody listens")


def test_nobody_is_asked_for_what_nobody_hears() -> None:
    query = ToldQuery()
    announcer = Announcer(query, Listeners(), idle_interval_s=0.001)
    for _ in range(10):
        announcer.progressed(no_progress)
    assert not announcer._waiting
    announcer.terminated(None)
    announcer.join(120)
    assert query.asked == 0


def test_an_end_waits_for_no_listener_and_what_waits_for_one_is_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    goes_on, is_in = threading.Event(), threading.Event()

    class Slow(HeardFromTheStart):
        def onQueryProgress(self, event: Any) -> None:
            is_in.set()
            assert goes_on.wait(240)

    slow, own, asked = Slow(), Listeners(), []

    def told(number: int) -> dict[str, Any]:
        asked.append(number)
        zero = dict.fromkeys(("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond"), 0)
        times = {"timestamp": "", "durationMs": {}, "eventTime": {}, "batchDuration": 0}
        parts = {"stateOperators": [], "sources": [], "observedMetrics": {}}
        sink = {"sink": {"description": "", "numOutputRows": -1}}
        facts = {"id": ToldQuery.id, "runId": ToldQuery.runId, "name": "", "batchId": number}
        return {**facts, **zero, **times, **parts, **sink, "version": number, "isTick": False}

    own.add(slow)
    announcer = Announcer(ToldQuery(), own, idle_interval_s=240)
    announcer.progressed(partial(told, -1))
    assert is_in.wait(240)
    with caplog.at_level(logging.WARNING, "holdfast"):
        for number in range(2 * MOST_WAITING):
            announcer.progressed(partial(told, number))
    assert len(announcer._waiting) == MOST_WAITING
    assert caplog.text.count("too slow") == 1
    announcer.terminated(None)
    assert "terminated" not in slow.kinds()
    goes_on.set()
    announcer.join(240)
    assert slow.kinds() == ["started", "terminated"]
    assert asked == [-1, *range(MOST_WAITING, 2 * MOST_WAITING)]


def test_stop_returns_while_a_listener_is_busy(spark: SparkSession, tmp_path: Path) -> None:
    goes_on, is_in = threading.Event(), threading.Event()

    class Slow(HeardFromTheStart):
        def onQueryProgress(self, event: Any) -> None:
            is_in.set()
            assert goes_on.wait(240)

    slow = Slow()
    frame = stream(spark, tmp_path / "in", files=1)
    holdfast.addListener(slow)
    try:
        query = frame.writeStream.outputMode("update").format("noop").start()
        assert is_in.wait(240)
        query.stop()
        assert "terminated" not in slow.kinds()
        goes_on.set()
        until(lambda: "terminated" in slow.kinds())
    finally:
        goes_on.set()
        holdfast.removeListener(slow)


def test_only_pysparks_listeners_are_taken() -> None:
    with pytest.raises(holdfast.InvalidArgument, match="StreamingQueryListener, not of int"):
        holdfast.addListener(5)  # type: ignore[arg-type]


# -- figures -----------------------------------------------------------------------------------

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
_SAMPLE = re.compile(rf"({_NAME})\{{({_LABEL}(?:,{_LABEL})*)\}} (-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)")


def parsed(text: str) -> dict[str, dict[str, float]]:
    """Samples by name and labels, by the rules of the text format; a broken rule is an error."""
    families: dict[str, str] = {}
    samples: dict[str, dict[str, float]] = {}
    assert text.endswith("\n")
    lines = iter(text.splitlines())
    for text_line in lines:
        if text_line.startswith("# HELP "):
            name = text_line.split(" ", 3)[2]
            assert name not in families, "a family stands in one place"
            kind = re.fullmatch(rf"# TYPE {name} (counter|gauge)", next(lines))
            assert kind is not None
            families[name] = kind[1]
            continue
        match = _SAMPLE.fullmatch(text_line)
        assert match is not None, text_line
        assert match[1] == list(families)[-1], "samples follow their family's lines"
        assert families[match[1]] == "gauge" or match[1].endswith("_total")
        assert match[2] not in samples.setdefault(match[1], {}), "no sample stands twice"
        samples[match[1]][match[2]] = float(match[3])
    return samples


def test_the_figures_are_valid_prometheus_text_and_add_up(
    spark: SparkSession, tmp_path: Path
) -> None:
    query = finish(stream(spark, tmp_path / "in"), queryName='two "words" \\ more')
    found = parsed(query.metrics_text())
    label = r'query="two \"words\" \\ more"'
    operator = f'{label},operator="stateStoreSave",operator_id="0"'
    told = query.recentProgress
    assert found["holdfast_version"] == {label: query.version}
    assert found["holdfast_input_rows_total"] == {label: 20}
    assert found["holdfast_versions_total"] == {label: len(told)}
    assert found["holdfast_ticks_total"] == {label: sum(p["isTick"] for p in told)}
    assert found["holdfast_watermark_seconds"] == {label: 1700000018}
    rows = told[-1].stateOperators[0].numRowsTotal
    assert found["holdfast_state_rows"] == {operator: rows}
    updated = sum(p.stateOperators[0].numRowsUpdated for p in told)
    assert found["holdfast_updated_rows_total"] == {operator: updated}
    late = sum(p.stateOperators[0].numRowsDroppedByWatermark for p in told)
    assert found["holdfast_late_rows_total"] == {operator: late}
    measured = ["state_bytes", "duplicate_rows_total", "input_rows_per_second",
                "batch_duration_seconds", "commit_duration_seconds"]  # fmt: skip
    assert {f"holdfast_{name}" for name in measured} <= set(found)


def test_removed_rows_are_those_that_a_version_had(spark: SparkSession, tmp_path: Path) -> None:
    for first in (0, 2):
        spark.range(first, first + 4, 1, 1).write.mode("append").parquet(str(tmp_path))
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", "1")
    frame = stateful(rows.parquet(str(tmp_path))).groupBy("id")
    query = finish(
        frame.transformWithState(ClearsWhatIsNot(), "n long", "Update", "ProcessingTime")
    )
    batches = [each for each in query.recentProgress if each.numInputRows]
    last = batches[-1].stateOperators[0]
    assert (last.numRowsTotal, last.customMetrics["numCommittedRowsRemoved"]) == (4, 2)
    assert last.numRowsRemoved > 2, "as Spark counts it: with what never was"
    (removed,) = parsed(query.metrics_text())["holdfast_removed_rows_total"].values()
    assert removed == 2


def test_figures_before_the_first_version_are_valid_too() -> None:
    assert parsed(metrics_text([QueryMetrics()])) == {}


def get(url: str) -> tuple[str, str]:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def test_queries_share_a_port_which_closes_with_the_last(
    spark: SparkSession, tmp_path: Path
) -> None:
    spark.conf.set("spark.holdfast.metrics.port", "0")
    try:
        queries = [
            stream(spark, tmp_path / name, files=1)
            .writeStream.outputMode("update")
            .format("noop")
            .start(queryName=name)
            for name in ("left", "right")
        ]
    finally:
        spark.conf.unset("spark.holdfast.metrics.port")
    left, right = queries
    url = left.metrics_url
    try:
        assert url == right.metrics_url
        assert url.startswith("http://127.0.0.1:")
        for query in queries:
            query.processAllAvailable()
        kind, body = get(url)
        assert kind == CONTENT_TYPE
        labels = {'query="left"', 'query="right"'}
        assert set(parsed(body)["holdfast_version"]) == labels
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(url.removesuffix("/metrics"))
        left.stop()
        assert set(parsed(get(url)[1])["holdfast_version"]) == {'query="right"'}
    finally:
        for query in queries:
            query.stop()
    with pytest.raises(urllib.error.URLError, match="refused"):
        get(url)


@pytest.mark.parametrize("port", ["in use", 70_000])
def test_a_port_that_cannot_be_had_is_a_warning_and_the_query_runs(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture, port: int | str
) -> None:
    taken = MetricsServer(0)
    if port == "in use":
        port = int(taken.url.split(":")[2].removesuffix("/metrics"))
    try:
        query = finish(stream(spark, tmp_path / "in", files=1), **{"metrics.port": port})
    finally:
        taken.leave(QueryMetrics())
    assert query.metrics_url is None
    assert parsed(query.metrics_text())["holdfast_input_rows_total"] == {f'query="{query.id}"': 10}
    (told,) = [r.getMessage() for r in caplog.records if "Metrics are not served" in r.message]
    assert f"port {port} of 127.0.0.1" in told
    assert "spark.holdfast.metrics.port" in told


@pytest.mark.parametrize(
    ("name", "value"),
    [("metrics.prot", "1"), ("metrics.port", "many"), ("progress", "perhaps")],
)
def test_wrong_settings_are_refused_by_name(
    spark: SparkSession, tmp_path: Path, name: str, value: str
) -> None:
    spark.conf.set(f"spark.holdfast.{name}", value)
    try:
        with pytest.raises(holdfast.InvalidArgument, match=re.escape(f"spark.holdfast.{name}")):
            finish(stream(spark, tmp_path / "in", files=1))
    finally:
        spark.conf.unset(f"spark.holdfast.{name}")


# -- the live line -----------------------------------------------------------------------------

PROGRESS = {
    "version": 12,
    "inputRowsPerSecond": 12345.6,
    "eventTime": {"watermark": "2023-11-14T22:13:20.000Z"},
    "stateOperators": [{"numRowsTotal": 1_000_000}, {"numRowsTotal": 7}],
}


def test_the_line_tells_rate_state_watermark_and_version() -> None:
    assert line.line_of("totals", PROGRESS) == (
        "totals  version 12  12,346 rows/s  1,000,007 rows in state  watermark 2023-11-14T22:13:20"
    )
    unmarked = {**PROGRESS, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}
    assert "watermark" not in line.line_of("totals", unmarked)


def test_without_a_watermark_neither_line_nor_figures_tell_one() -> None:
    progress: dict[str, Any] = {
        **PROGRESS, "stateOperators": [], "isTick": False, "numInputRows": 1,
        "durationMs": {"triggerExecution": 1, "commit": 1},
    }  # fmt: skip
    marked, unmarked = QueryMetrics(), QueryMetrics()
    marked.add(progress)
    del progress["eventTime"]
    unmarked.add(progress)
    assert "holdfast_watermark_seconds{" in metrics_text([marked])
    assert "holdfast_watermark_seconds{" not in metrics_text([unmarked])
    assert "watermark" not in line.line_of("totals", progress)


def test_there_is_no_line_in_a_log_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert line.open_line() is None


_SCRIPT = """
import sys
from holdfast.spark.monitoring import line
from holdfast.spark.monitoring.listeners import MOST_WAITING, Announcer, Listeners
first, second = line.open_line(), line.open_line()
for number in range(3):
    first.show(f"first {number}")
    second.show(f"second {number}")
print("for the file")
if sys.argv[1] == "close":
    second.close()
    first.close()
"""


@pytest.mark.parametrize("end", ["close", "leave open"])
def test_lines_on_a_terminal_are_updated_in_place_and_end_with_a_newline(
    tmp_path: Path, end: str
) -> None:
    screen, terminal = os.openpty()
    out = tmp_path / "out"
    with out.open("w") as file:
        done = subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, end],
            stdout=file,
            stderr=terminal,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
        )
        os.close(terminal)
        shown = b""
        try:
            while chunk := os.read(screen, 4096):
                shown += chunk
        except OSError:  # the other end is closed
            pass
        finally:
            os.close(screen)
    assert done.wait(60) == 0
    assert out.read_text() == "for the file\n"
    text = shown.decode()
    assert "first 2" in text
    assert "second 2" in text
    assert "\x1b[1A" in text
    assert "\x1b[2K" in text
    assert text.endswith("\r\n\x1b[?25h"), "the cursor is visible, on a line of its own"


def test_a_line_in_a_notebook_is_updated_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            calls.append(("update", bundle["text/plain"]))

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        calls.append(("display", bundle["text/plain"]))
        return Handle()

    package, module = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    package.get_ipython = lambda: types.SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    shown = line.open_line()
    assert shown is not None
    for text in ("one", "two", "three"):
        shown.show(text)
    shown.close()
    assert calls == [("display", "one"), ("update", "two"), ("update", "three")]


def test_a_query_shows_its_line_unless_told_not_to(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []

    class Kept(line.Line):
        def show(self, text: str) -> None:
            shown.append(text)

        def close(self) -> None:
            shown.append("closed")

    monkeypatch.setattr("holdfast.spark.monitoring.watch.open_line", Kept)
    finish(stream(spark, tmp_path / "in", files=1), queryName="shown")
    assert shown[0].startswith("shown  version 1  ")
    assert "closed" in shown
    shown.clear()
    spark.conf.set("spark.holdfast.progress", "false")
    try:
        finish(stream(spark, tmp_path / "in2", files=1))
    finally:
        spark.conf.unset("spark.holdfast.progress")
    assert shown == []
