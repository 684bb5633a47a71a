"""Every example runs as it stands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT
from scripts import Scripts

import totals_service

ROOT = Path(__file__).resolve().parents[2]
# The others have a test of their own below.
OWN = {
    "continuous_profit", "weekly_spending", "checkpointing", "demo", "shopping_totals",
    "weekly_purchases", "fraud_detection", "totals_service", "click_sessions",
    "anomaly_detector", "ported_upserts",
}  # fmt: skip
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in OWN)
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def run(example: Path, cwd: Path, *arguments: object, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "PYTHONUTF8": "1", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # Spark greets on stderr; an example without it says nothing there.
    assert done.stderr == "" or "pyspark" in example.read_text(), done.stderr
    return done.stdout


def left_in(folder: Path) -> list[str]:
    # PySpark 4.0 makes a folder "artifacts" wherever it is started.
    return [path.name for path in folder.iterdir() if path.name != "artifacts"]


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scripts]:
    """Runs examples in one process, since what most of them take is the start of the JVM."""
    running = Scripts(tmp_path_factory.mktemp("cwd"), tmp_path_factory.mktemp("log"))
    yield running
    running.close()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs_and_leaves_nothing_behind(example: Path, tmp_path: Path) -> None:
    assert run(example, tmp_path)
    assert left_in(tmp_path) == []


@pytest.mark.any_spark
def test_continuous_profit_is_that_of_the_worked_example(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "continuous_profit.py")
    assert left_in(scripts.cwd) == []
    profits = [
        [line.split("|")[2].strip() for line in batch.splitlines() if line.startswith("|{")]
        for batch in shown.split("Batch: ")[1:]
    ]
    assert profits == [["10"], ["28"], ["28", "-5"], ["33", "-5"]]
    assert "10:10 to 10:15: 28" in shown


@pytest.mark.any_spark
def test_weekly_spending_shows_what_closes_and_what_stays(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "weekly_spending.py")
    assert left_in(scripts.cwd) == []
    assert shown.splitlines() == [
        "Sankar spends 200 on 20-04-2020",
        "  state:  16-04..23-04 Sankar 200",
        "Jade spends 800 on 18-04-2020",
        "  state:  16-04..23-04 Jade 800, 16-04..23-04 Sankar 200",
        "Sankar spends 300 on 25-04-2020",
        "  closed: 16-04..23-04 Jade 800",
        "  closed: 16-04..23-04 Sankar 200",
        "  state:  23-04..30-04 Sankar 300",
        "Kun spends 100 on 28-04-2020",
        "  state:  23-04..30-04 Kun 100, 23-04..30-04 Sankar 300",
    ]


def test_weekly_purchases_shows_what_leaves_one_by_one(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "weekly_purchases.py")
    assert left_in(scripts.cwd) == []
    assert [line for line in shown.splitlines() if line.startswith("  state")] == [
        "  state: Sankar 200 until 20-04",
        "  state: Jade 800 until 18-04, Sankar 200 until 20-04",
        "  state: Sankar 500 until 25-04",
        "  state: Kun 100 until 28-04, Sankar 300 until 25-04",
    ]


def test_fraud_detection_blocks_the_stolen_card(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "fraud_detection.py")
    assert left_in(scripts.cwd) == []
    assert shown.splitlines() == [
        "4000 alert: 900.00",
        "4000 alert: 700.00",
        "4000 blocked: 650.00",
    ]


def test_click_sessions_are_written_once_across_a_restart(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "click_sessions.py")
    assert left_in(scripts.cwd) == []
    assert shown.splitlines() == [
        "after run 1",
        "  open: 2",
        "after run 2",
        "  Jade 12:05 to 12:14, 2 clicks",
        "  Sankar 12:00 to 12:13, 3 clicks",
        "  open: 1",
    ]


def test_anomaly_detector_finds_odd_and_silent_sensors(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "anomaly_detector.py")
    assert left_in(scripts.cwd) == []
    assert shown.splitlines() == [
        "oven high, 1 in an hour: 181 180 260",
        "door silent, 1 in an hour: 20",
        "oven high, 2 in an hour: 180 260 270",
    ]


def test_ported_upserts_give_with_holdfast_what_they_give_with_spark(scripts: Scripts) -> None:
    shown = scripts.run(ROOT / "examples" / "ported_upserts.py")
    assert left_in(scripts.cwd) == []
    sparks, ours = shown.splitlines()
    assert sparks == "spark: north 12:00 15, south 12:00 7, south 12:10 4"
    assert ours == sparks.replace("spark", "holdfast")


def test_processors_of_rows_need_neither_pandas_nor_protobuf(tmp_path: Path) -> None:
    for package in ("pandas", "google/protobuf"):
        absent = tmp_path / "absent" / package
        absent.mkdir(parents=True)
        (absent / "__init__.py").write_text("raise ImportError('not here')\n")
    done = subprocess.run(
        [sys.executable, "-c", "import google.protobuf"],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "absent")},
        capture_output=True,
        text=True,
    )
    assert "not here" in done.stderr, "the test hides what it means to hide"
    shown = run(
        ROOT / "examples" / "shopping_totals.py", tmp_path, PYTHONPATH=str(tmp_path / "absent")
    )
    assert left_in(tmp_path) == ["absent"]
    assert [line for line in shown.splitlines() if line.startswith("  state")] == [
        "  state: Sankar 200",
        "  state: Jade 800, Sankar 200",
        "  state: Jade 800, Sankar 500",
        "  state: Jade 800, Kun 100, Sankar 500",
    ]


@pytest.mark.any_spark
def test_checkpointing_prints_its_rows(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "checkpointing.py", tmp_path)
    assert left_in(tmp_path) == []
    assert "Batch: 1" in shown
    assert "|           timestamp|value|" in shown


def code_cells(notebook: Path) -> list[str]:
    content = json.loads(notebook.read_text())
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    return ["".join(cell["source"]) for cell in cells]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs_cell_by_cell(notebook: Path, tmp_path: Path, scripts: Scripts) -> None:
    # In another process, as it stops the session it starts.
    script = tmp_path / "notebook.py"
    cells = code_cells(notebook)
    lines = [f"exec(compile({cell!r}, 'cell {n}', 'exec'))" for n, cell in enumerate(cells)]
    names = ("tumbling", "sliding", "by_id", "before", "after")
    lines += ["import json, sys", f"print(json.dumps([globals()[name] for name in {names!r}]))"]
    script.write_text("import pyspark\n" + "\n".join(lines))
    (shown,) = scripts.run(script).splitlines()[-1:]
    tumbling, sliding, by_id, before, after = json.loads(shown)
    assert tumbling == [28, 7, -5, 35]
    assert sliding == [28, 35, 2, 30, 35]
    assert by_id == [10, 18, -8, 15, -5, 5, 30]
    assert before == [["10:10", 10], ["10:15", 7], ["10:20", -5]]
    assert after == [["10:10", 28], ["10:15", 7], ["10:20", -5]]


def test_demo_survives_the_crash_and_fits_a_terminal(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "store_demo.py", tmp_path, tmp_path / "totals")
    assert max(len(line) for line in shown.splitlines()) <= 80
    for part in ("killed by SIGKILL", "(2, (500,), None)", "((200,), (500,))", "all intact",
                 "left by the crash", "columns _hash, user, total, _dead"):  # fmt: skip
        assert part in shown, part
    assert (tmp_path / "totals" / "versions" / "3").exists()


def test_demo_recovers_both_streams_and_looks_back(tmp_path: Path) -> None:
    shown = run(ROOT / "examples" / "demo.py", tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert max(len(line) for line in shown.splitlines()) <= 80
    before, _, after = shown.partition("killed by SIGKILL: version 3 is committed")
    assert "profit  version 2: 10:10 +28" in before
    assert "profit  version 3: 10:10 +28, 10:20 -5" in after
    assert "profit  version 4: 10:10 +33, 10:20 -5" in after
    assert ", 0 missing, 0 repeated" in after
    assert "→ version 1: 10:10 +10" in after
    assert "closed: 16-04..23-04 Jade 800" in after


def test_make_demo_runs_an_example() -> None:
    makefile = (ROOT / "Makefile").read_text()
    assert "examples/demo.py" in makefile.partition("\ndemo:")[2].partition("\n\n")[0]


def test_the_service_asks_a_quorum_of_the_hosts_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: dict[str, Any] = {}

    class Cluster:
        def __init__(self, hosts: list[str], port: int, execution_profiles: Any) -> None:
            made.update(hosts=hosts, port=port, profile=execution_profiles[EXEC_PROFILE_DEFAULT])

        def connect(self) -> Any:
            return SimpleNamespace(prepare=lambda query: made.update(query=query))

    monkeypatch.setattr("cassandra.cluster.Cluster", Cluster)
    totals_service.from_cassandra("cassandra://one,two:9043/shop/Totals")
    assert (made["hosts"], made["port"]) == (["one", "two"], 9043)
    assert made["profile"].consistency_level == ConsistencyLevel.LOCAL_QUORUM
    assert 'FROM "shop"."Totals"' in made["query"]
    totals_service.from_cassandra("cassandra://one/shop/Totals")
    assert (made["hosts"], made["port"]) == (["one"], 9042)
